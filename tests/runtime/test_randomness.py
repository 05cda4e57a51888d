"""Dropout masks that depend on what a value is, not on who holds it."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meshwright.runtime.randomness import Counter, install_dropout, keep_mask, kept_at, places_of, random_words

CPU = torch.device("cpu")


def _mask(samples: int, first: int, key: int = 7, probability: float = 0.3) -> torch.Tensor:
    return keep_mask(torch.Size((samples, 6, 5)), probability, key=key, first_sample=first, device=CPU)


@given(first=st.integers(0, 10), count=st.integers(1, 5))
def test_a_rank_draws_the_part_of_the_mask_that_it_holds(first: int, count: int) -> None:
    assert torch.equal(_mask(count, first), _mask(16, 0)[first : first + count])


@given(position=st.integers(0, 5), count=st.integers(1, 3))
def test_a_rank_draws_the_part_of_its_positions(position: int, count: int) -> None:
    some = torch.arange(position, min(6, position + count)).flip(0)
    places = places_of([(torch.arange(2, 5), 0), (some, 6), (torch.arange(5), 5)])
    assert torch.equal(kept_at(places, 0.3, 7), _mask(3, 2)[:, some])


def test_the_share_that_stays_is_one_less_the_probability() -> None:
    for probability in (0.1, 0.5, 0.9):
        kept = keep_mask(torch.Size((64, 64, 64)), probability, key=3, first_sample=0, device=CPU).double().mean()
        assert abs(float(kept) - (1 - probability)) < 0.003


def test_masks_of_other_keys_and_neighbours_are_unrelated() -> None:
    one, other = _mask(200, 0, key=1, probability=0.5).double(), _mask(200, 0, key=2, probability=0.5).double()
    for pair in ((one, other), (one[1:], one[:-1])):
        correlation = torch.corrcoef(torch.stack([tensor.flatten() for tensor in pair]))[0, 1]
        assert abs(float(correlation)) < 0.05


def test_random_words_are_those_of_splitmix64() -> None:
    # The first outputs for seed 0 (state 0x9E3779B97F4A7C15, then its multiples), as published with the generator.
    gamma = 0x9E3779B97F4A7C15
    states = torch.tensor([((gamma * turn) % 2**64 + 2**63) % 2**64 - 2**63 for turn in (1, 2, 3)])
    words = [word % 2**64 for word in random_words(states).tolist()]
    assert words == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_dropout_changes_with_the_step_and_rests_in_evaluation() -> None:
    module, counter = nn.Dropout(0.5), Counter(0)
    install_dropout(module, "layer", counter, lambda: 0)
    x = torch.ones(4, 8, 8)
    first, again = module(x), module(x)
    counter.step = 1
    assert torch.equal(first, again)
    assert not torch.equal(first, module(x))
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(module.eval()(x), x)
