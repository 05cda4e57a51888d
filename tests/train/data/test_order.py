"""The order of samples: every epoch is a permutation, whatever is asked for first."""

from hypothesis import given
from hypothesis import strategies as st

from meshwright.train.data.order import Order, permuted

counts = st.integers(1, 300)
orders = st.builds(Order, counts, st.integers(0, 2**40), st.booleans(), st.integers(1, 40))


@given(orders, st.integers(0, 5))
def test_every_epoch_has_each_sample_once(order: Order, epoch: int) -> None:
    places = range(epoch * order.count, (epoch + 1) * order.count)
    assert sorted(order.at(places)) == list(range(order.count))


@given(orders, st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_a_place_has_the_same_sample_whoever_asks_with_it(order: Order, places: list[int]) -> None:
    assert order.at(places) == [order.at([place])[0] for place in places]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    drawn = [Order(100, seed, True).at(range(first, first + 100)) for seed in (0, 1) for first in (0, 100)]
    assert all(a != b for place, a in enumerate(drawn) for b in drawn[place + 1 :])


def test_without_a_shuffle_samples_come_as_they_lie() -> None:
    assert Order(3, 5, False).at(range(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_blocks_stay_together_and_are_shuffled() -> None:
    order = Order(1000, 1, True, block=50).at(range(1000))
    blocks = [{index // 50 for index in order[first : first + 50]} for first in range(0, 1000, 50)]
    assert all(len(block) == 1 for block in blocks)
    assert [next(iter(block)) for block in blocks] != sorted(next(iter(block)) for block in blocks)
    assert order[:50] != sorted(order[:50])


def test_neighbours_are_spread_over_the_whole_range() -> None:
    """Of 1,000 neighbours a tenth each falls into a tenth of a million, within four standard deviations."""
    found = permuted(range(1000), 1_000_000, 7)
    tenths = [int(((found >= low) & (found < low + 100_000)).sum()) for low in range(0, 1_000_000, 100_000)]
    assert all(abs(count - 100) < 4 * 90**0.5 for count in tenths), tenths
