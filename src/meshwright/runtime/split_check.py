"""Whether a module that no proof covers computes under tensor parallelism what it did before.

Its code may read sizes that we do not know of, or lay out the heads of a fused matrix in another way than its shapes
say, and some such mistakes raise nothing. So a few tokens go through it before its matrices are cut, and after.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.errors import PlanError
from meshwright.plan.rules_families import FAMILIES
from meshwright.runtime.place import Place
from meshwright.runtime.precision import kept
from meshwright.runtime.stage import logits_of

_SAMPLES, _LENGTH = 2, 8
_UNLIKE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Differences that are no rounding any more, of the largest value."""


class SplitCheck:
    """Made before a module is cut; `check` after. Does nothing for families that are proven, and without cuts."""

    def __init__(self, module: nn.Module, place: Place) -> None:
        self.module, self.place = module, place
        model = place.inputs.model
        cut = any(place.tensor_ranks(placed) for placed in place.here)
        self.needed = cut and model.family not in FAMILIES
        if self.needed and not self._is_empty:
            generator = torch.Generator().manual_seed(place.inputs.recipe.seed)
            length = min(_LENGTH, model.streams["tokens"].limit or _LENGTH)
            tokens = torch.randint(model.vocabulary or 1, (_SAMPLES, length), generator=generator)
            self.tokens = tokens.to(next(module.parameters()).device)
            self.wanted = self._outputs()

    @property
    def _is_empty(self) -> bool:
        return any(parameter.is_meta for parameter in self.module.parameters())

    def check(self) -> None:
        """Raises PlanError where a layer puts out something else than before, where its code fails, and where it has no
        values to compute with.
        """
        if not self.needed:
            return
        if self._is_empty:
            raise PlanError(
                f"family '{self.place.inputs.model.family}' is not known, so its cut is tried with values, and the "
                "module is on meta: build it on a real device, or write 'dp'"
            )
        try:
            found = self._outputs()
        except Exception as error:
            raise PlanError(f"under tp the module's own code fails ({error}); {_FIX}") from error
        for layer, before in self.wanted.items():
            after = found[layer]
            if after.shape != before.shape or _distance(after, before) > _UNLIKE[before.dtype]:
                raise PlanError(f"under tp '{layer}' computes something else than the untouched module; {_FIX}")

    def _outputs(self) -> dict[str, Tensor]:
        """What every layer puts out."""
        outputs: dict[str, Tensor] = {}
        with self._recording(outputs), torch.no_grad(), kept(next(self.module.parameters()).dtype):
            logits_of(self.module, {"input_ids": self.tokens})
        return outputs

    @contextmanager
    def _recording(self, outputs: dict[str, Tensor]) -> Iterator[None]:
        modes = {module: module.training for module in self.module.modules()}
        handles = []
        for placed in self.place.here:
            last = self.module.get_submodule(self.place.layer(placed).modules[-1])

            def hook(_: nn.Module, __: Any, output: Any, layer: str = placed.layer) -> None:
                outputs[layer] = output if isinstance(output, Tensor) else output[0]

            handles.append(last.register_forward_hook(hook))
        self.module.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            for handle in handles:
                handle.remove()


_FIX = (
    "write 'dp' for it, or let its code take the number of heads from an attribute as transformers names them "
    "(num_heads), and queries, keys and values of one matrix one after the other"
)


def _distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))
