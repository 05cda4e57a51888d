"""Messages between two groups bring everybody what it wants, once, from one that has it."""

import math
from collections import Counter
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.moves import crossing
from meshwright.plan.block import Block, Size, held_block
from meshwright.plan.crossings import Side, crossing_messages
from meshwright.plan.divisions import division
from meshwright.plan.spec import Group, Row
from tests.cost.build import QUICK

WAYS = st.sampled_from([1, 2, 3, 4])


@st.composite
def _sides(draw: st.DrawFn, first: int) -> Side:
    """Ranks in any order, divided over samples, over positions and not, any axis outside."""
    mesh = {axis: draw(WAYS) for axis in draw(st.permutations(["dp", "cp", "tp"]))}
    size = math.prod(mesh.values())
    devices = draw(st.permutations(range(first, first + size)))
    roles: dict[str, Any] = {axis: axis for axis in mesh}
    return Group(devices=tuple(devices), mesh=mesh), Row(span="a", roles=roles)


@st.composite
def _crossings(draw: st.DrawFn) -> tuple[Size, Side, Side]:
    """Samples and positions that divide on both sides."""
    source, target = draw(_sides(0)), draw(_sides(100))
    samples, positions = (
        draw(st.integers(1, 2)) * math.lcm(source[0].mesh[axis], target[0].mesh[axis]) for axis in ("dp", "cp")
    )
    return (samples, positions), source, target


def _held(size: Size, side: Side, rank: int) -> Block:
    return held_block(size, side[0], division(side[1], side[0].mesh), rank)


def _tokens(block: Block) -> list[tuple[int, int]]:
    (sample, samples), (position, positions) = block
    return list(product(range(sample, sample + samples), range(position, position + positions)))


@QUICK
@given(crossed=_crossings())
def test_everyone_gets_its_tokens_once_from_one_that_holds_them(crossed: tuple[Size, Side, Side]) -> None:
    size, source, target = crossed
    got: dict[int, list[tuple[int, int]]] = {receiver: [] for receiver in target[0].devices}
    for sender, receiver, block in crossing_messages(size, source, target):
        got[receiver] += _tokens(block)
        assert block.common(_held(size, source, sender)) == block
    for receiver, tokens in got.items():
        assert sorted(tokens) == _tokens(_held(size, target, receiver))


@QUICK
@given(crossed=_crossings())
def test_the_busiest_rank_moves_what_estimates_say(crossed: tuple[Size, Side, Side]) -> None:
    size, source, target = crossed
    sent, received = Counter[int](), Counter[int]()
    for sender, receiver, block in crossing_messages(size, source, target):
        sent[sender] += block.tokens
        received[receiver] += block.tokens
    said = crossing(source, target, math.prod(size)).forward
    assert said <= max(*sent.values(), *received.values()) < said + 1, "nobody sends a part of a token"
