"""Where a rank stands in a step, kept as it goes: what to tell of one that raised, and of one that died.

Layers are noted as forward comes into them and as the gradient of what they put out arrives, since backward is torch's
own code. Whoever runs ranks may listen (`LISTENER`): a rank that is killed tells nothing any more.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from meshwright.model.spans import format_spans
from meshwright.plan.spec import Placed
from meshwright.runtime.place import Place

LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("meshwright_standing", default=None)
"""Who hears of every change of where a rank stands."""


@lru_cache(maxsize=4096)
def _line(rank: int, layer: str, where: str, doing: str) -> str:
    """Kept, since each step takes the same path."""
    inside = f"layer {layer} of " if layer else ""
    return f"on rank {rank}, in {inside}{where}: {doing}"


class Standing:
    """Where this rank stands."""

    def __init__(self, place: Place) -> None:
        self._rank, self._listener = place.processes.rank, LISTENER.get()
        self._stages = {
            number: f"stage {number} ({', '.join(format_spans([each.layer for each in place.of_stage(number)]))})"
            for number in place.stages
        }
        self._where = self._everywhere = " and ".join(self._stages.values())
        self._doing, self._layer = "", ""

    def __str__(self) -> str:
        return _line(self._rank, self._layer, self._where, self._doing)

    def at(self, doing: str, stage: int | None = None) -> "Standing":
        """What is done from here on, in which stage; of this rank's all where none is said. What is raised inside of
        it, as a context, gets a note of where it was.
        """
        self._where = self._everywhere if stage is None else self._stages[stage]
        self._doing, self._layer = doing, ""
        self._say()
        return self

    def between_steps(self) -> None:
        """The runtime is done for now."""
        self.at("what its program does between steps: the optimizer")

    def __enter__(self) -> None: ...

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, Exception):
            error.add_note(str(self))

    def _say(self) -> None:
        if self._listener is not None:
            self._listener(str(self))

    def _enter(self, layer: str) -> None:
        self._layer = layer
        self._say()

    def follow(self, module: nn.Module, place: Place, placed: Placed) -> None:
        """Note when forward comes into a layer, and when backward does."""
        paths = place.layer(placed).modules

        def before(_: nn.Module, __: Any) -> None:
            self._enter(placed.layer)

        def after(_: nn.Module, __: Any, output: Any) -> None:
            first = output if isinstance(output, Tensor) else output[0] if isinstance(output, tuple) else None
            if first is not None and first.requires_grad:
                first.register_hook(lambda _: self._enter(placed.layer))

        module.get_submodule(paths[0]).register_forward_pre_hook(before, prepend=True)
        module.get_submodule(paths[-1]).register_forward_hook(after)
