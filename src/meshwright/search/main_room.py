"""The memory of a shape's stages, for the layers that are most in number: how many of them may lie in each, before a
state of theirs is costed.

Beside these layers a stage holds what stands before or after the numbered ones, where it is the first or the last, and
the last keeps the logits of one micro-batch: it runs each backward at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshwright.search.benches import Benches
from meshwright.search.fill import Fill, Recomputed
from meshwright.search.frontier import Bools, Floats
from meshwright.search.outline import Kept, Outline
from meshwright.search.space import Shape


class Main(NamedTuple):
    """A layer of those that are most in number, on one replica, and the head beside it."""

    forward: float
    backward: tuple[float, ...]
    """Seconds under each recompute."""
    kept: tuple[float, ...]
    """Bytes for each micro-batch in flight."""
    again: tuple[float, ...]
    """Bytes that are there once."""
    logits: float
    """Bytes of the head, and what its loss needs beside: both there once."""
    loss: float


class Flight(NamedTuple):
    """Micro-batches in flight on each group of a pipeline."""

    alive: Floats
    """In the mean over a group's stages."""
    most: Floats
    """Of one of them."""
    begun: Bools
    """Whether all its stages have gradients then."""


class MainRoom:
    """Of the shapes of an outline; `by_state` gives what there is of each state: [numbers, states, shapes]."""

    def __init__(self, outline: Outline, by_state: Callable[[Callable[[Kept], Any]], Floats], benches: Benches) -> None:
        facts = outline.facts
        self._facts, self._benches = facts, benches
        layers = benches.problem.model.layers
        self._after = [layers[place] for place in facts.ends[1]]
        of_main = facts.held([layers.index(facts.main)])
        self._rest, self._gradients = by_state(lambda state: outline.rests(state, *of_main))
        self._on_its_way = by_state(lambda state: outline.once(state, facts.of_main))[0]
        ends = [facts.held(each) for each in facts.ends]
        self._of_ends = by_state(lambda state: np.concatenate([outline.rests(state, *each) for each in ends]))
        """Of what stands before and after the numbered layers: what rests, and gradients, of the one and the other."""
        self._mains: dict[Shape, Main] = {}

    def main(self, inner: Shape) -> Main:
        """Of one replica."""
        if inner not in self._mains:
            bench, layer = self._benches.replica(inner), self._facts.main
            names = bench.recomputes(layer)
            seconds = [bench.computed(layer, name) for name in names]
            sizes = [bench.alive(layer, name) for name in names]
            losses = [bench.alive(each, bench.fastest(each)) for each in self._after]
            self._mains[inner] = Main(
                forward=seconds[-1].forward.compute,
                backward=tuple(each.backward.compute for each in seconds),
                kept=tuple(each.kept for each in sizes),
                again=tuple(each.whole - each.kept for each in sizes),
                logits=sum(each.logits for each in losses),
                loss=sum(each.passing for each in losses),
            )
        return self._mains[inner]

    def fill(
        self, shape: Shape, place: int, states: list[int], paces: list[Floats], *, flight: Flight, last: int
    ) -> Fill:
        """The stages of a shape, which is at a place of the outline, under some states. `paces` are the seconds of a
        layer under each recompute; the last stage is on the group `last`.
        """
        main, facts, groups = self.main(shape.inner), self._facts, np.arange(shape.pp)
        saves = [main.kept[-1] - kept for kept in main.kept]
        rest, gradients, once = (
            each[states, place][:, None] for each in (self._rest, self._gradients, self._on_its_way)
        )
        # The gradients of a stage's first backward are there when its micro-batch is not in flight any more.
        begun = np.full(shape.pp, facts.begun) | flight.begun
        reduced = begun | (flight.alive > 1)
        alive, most = (facts.moving * np.where(begun, each, np.maximum(each - 1, 1)) for each in flight[:2])
        # What is computed again may be what most is in flight of.
        options = [
            Recomputed(pace, rest + gradients * reduced + alive * main.kept[-1] - most * saved, facts.moving * again)
            for pace, saved, again in zip(paces, saves, main.again, strict=True)
        ]
        before, of_before, after, of_after = self._of_ends[:, states, place, None]
        held = (groups == 0) * (before + of_before * reduced)
        held = held + (groups == last) * (after + of_after * reduced + facts.moving * main.logits)
        loss = (groups == last) * np.maximum(0.0, facts.moving * main.loss - once)
        return Fill(options, facts.capacity - once - held, loss)
