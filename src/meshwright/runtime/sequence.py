"""The sequence under a plan whose layers divide its positions: what each layer of the untouched module is given.

The model gets position ids in the order of the stream (`plan.positions`), and makes its rotary tables of them; each
layer takes its part of these. Embeddings take their part of the tokens here, where all of them are known.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.model.operators import Embedding
from meshwright.model.spec import ModelSpec
from meshwright.plan import positions
from meshwright.plan.positions import divides_positions, length_unit, ring_pieces, stream_order
from meshwright.plan.spec import Placed
from meshwright.runtime.place import Place

_ROTARY = "position_embeddings"
"""The name under which transformers' models pass the tables of rotary positions [samples or 1, positions, width]."""


class Sequence:
    """The micro-batch at hand, whole: each layer takes its part of it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        plan = place.inputs.plan
        self.is_divided, self.unit = divides_positions(plan), length_unit(plan)
        self.is_needed = self.is_divided or _drops_causally(place.inputs.model)
        """Where positions are divided, or causal attention is to drop what one process would."""
        self.length = 0
        self._pieces = ring_pieces(plan)
        self._ids = self._mask = torch.empty(0)
        self._has_mask = False
        self._found: dict[tuple[str, str, int, torch.device], Tensor] = {}

    def enter(self, batch: Mapping[str, Tensor], first: int, device: torch.device) -> None:
        """Take up the micro-batch that begins at a sample of the global batch."""
        self.length = batch["input_ids"].shape[1]
        taken = slice(first, first + self.place.micro_batch)
        self._ids, self._has_mask = batch["input_ids"][taken].to(device), "attention_mask" in batch
        if self._has_mask:
            self._mask = batch["attention_mask"][taken].to(device=device, dtype=torch.bool)

    def inputs(self, placed: Placed) -> dict[str, Tensor]:
        """What the model's forward is called with, where its last layer is `placed`: tokens of the shape that the last
        layer puts out, which some models ask for; embeddings take their own.
        """
        order, (_, length) = self._order(), self._between(placed)
        first, count = self.place.held(placed)
        return {"input_ids": self._ids[first : first + count, :length], "position_ids": order[None]}

    def at_matrices(self, placed: Placed) -> Tensor:
        """The positions that a layer's matrices see on this rank, in their order."""
        return self._order()[self._index("at_matrices", placed)]

    def at_attention(self, placed: Placed) -> Tensor:
        """The positions of this rank's queries."""
        return self._order()[self._index("at_attention", placed)]

    def around_the_ring(self, placed: Placed) -> list[Tensor]:
        """The positions of the keys of each rank of its ring."""
        return [self._order()[places] for places in self._index("around_the_ring", placed)]

    def between(self, placed: Placed) -> tuple[Tensor, int] | None:
        """The positions that this rank holds between layers, and how many there are; none where it holds all in their
        own order.
        """
        if not self.is_divided:
            return None
        first, count = self._between(placed)
        return self._order()[first : first + count], self.length

    def mask(self, placed: Placed) -> Tensor | None:
        """[held samples, all positions] True where a token is real; none where all are."""
        first, count = self.place.held(placed)
        return self._mask[first : first + count] if self._has_mask else None

    def install(self, module: nn.Module, placed: Placed) -> None:
        """Let a layer's modules take their part."""
        layer = self.place.layer(placed)
        for operator in layer.stack.operators:
            if isinstance(operator, Embedding):
                takes = self._tokens if operator.split else self._positions
                table = module.get_submodule(layer.module_path(operator.path))
                table.register_forward_pre_hook(partial(takes, placed))
        for path in layer.modules:
            module.get_submodule(path).register_forward_pre_hook(partial(self._rotary, placed), with_kwargs=True)

    def _tokens(self, placed: Placed, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        first, count = self.place.held(placed)
        return (self._ids[first : first + count][:, self.at_matrices(placed)], *args[1:])

    def _positions(self, placed: Placed, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        first, count = self._between(placed)
        return (args[0][:, first : first + count], *args[1:])

    def _rotary(
        self, placed: Placed, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if _ROTARY not in kwargs:
            return args, kwargs
        index = self._index("at_matrices", placed)
        return args, kwargs | {_ROTARY: tuple(table[:, index] for table in kwargs[_ROTARY])}

    def _between(self, placed: Placed) -> tuple[int, int]:
        group = self.place.groups[placed.group]
        return positions.between_layers(self.length, group, placed.row, self.place.processes.rank)

    def _index(self, which: str, placed: Placed) -> Tensor:
        """What `plan.positions` says of a layer, reckoned once for each length."""
        key = which, placed.layer, self.length, self._ids.device
        if key not in self._found:
            group, rank = self.place.groups[placed.group], self.place.processes.rank
            places = getattr(positions, which)(self.length, group, placed.row, rank)
            self._found[key] = torch.tensor(places, device=self._ids.device)
        return self._found[key]

    def _order(self) -> Tensor:
        return _order(self.length, self._pieces, self._ids.device)


def _drops_causally(model: ModelSpec) -> bool:
    """Whether a model's attention drops, and is of the one kind that `runtime.attention` has: causal, within a
    sequence. Other kinds drop where they are called (`randomness.draw_calls`).
    """
    return model.is_causal and bool(model.attention_dropout)


@lru_cache(maxsize=16)
def _order(length: int, pieces: int, device: torch.device) -> Tensor:
    return torch.tensor(stream_order(length, pieces), device=device)
