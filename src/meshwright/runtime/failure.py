"""Where a rank stands in a step, kept as it goes: what to tell of one that raised, and of one that died.

Layers are noted as forward comes into them and as the gradient of what they put out arrives, since backward is torch's
own code. Whoever runs ranks may listen (`LISTENER`): a rank that is killed tells nothing any more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from meshwright.model.spans import format_spans
from meshwright.plan.spec import Placed
from meshwright.runtime.place import Place

LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("meshwright_standing", default=None)
"""Who hears of every change of where a rank stands."""


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
        inside = f"layer {self._layer} of " if self._layer else ""
        return f"on rank {self._rank}, in {inside}{self._where}: {self._doing}"

    @contextmanager
    def at(self, doing: str, stage: int | None = None, layer: str = "") -> Iterator[None]:
        """What is done from here on, in which stage; of this rank's all where none is said. What is raised inside gets
        a note of where it was.
        """
        self._set(doing, stage, layer)
        try:
            yield
        except Exception as error:
            error.add_note(str(self))
            raise
        self._set("what its program does between steps: the optimizer", None, "")

    def _set(self, doing: str, stage: int | None, layer: str) -> None:
        self._where = self._everywhere if stage is None else self._stages[stage]
        self._doing, self._layer = doing, layer
        self._say()

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
