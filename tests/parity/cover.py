"""Covering arrays: few rows of values in which every pair of values of two factors stands somewhere."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from random import Random

Row = tuple[str, ...]
"""A value for each factor, in the factors' order."""
Pair = tuple[int, str, int, str]
"""Two factors' places, each with a value."""
TRIED, PASSES = 10, 3
"""Rows looked at for each new one; how often a pair is looked for."""


def pairs_of(row: Row) -> set[Pair]:
    """The pairs that a row has.

    >>> sorted(pairs_of(("a", "b", "c")))
    [(0, 'a', 1, 'b'), (0, 'a', 2, 'c'), (1, 'b', 2, 'c')]
    """
    return {(one, row[one], other, row[other]) for one, other in combinations(range(len(row)), 2)}


def all_pairs(factors: Sequence[Sequence[str]]) -> list[Pair]:
    """Every pair that there is, in order."""
    places = combinations(range(len(factors)), 2)
    return [(i, a, j, b) for i, j in places for a, b in product(factors[i], factors[j])]


def covering_array(
    factors: Sequence[Sequence[str]], refusal: Callable[[Row], str | None], seed: int
) -> tuple[list[Row], dict[Pair, str]]:
    """Rows that together have every pair that some allowed row has, and the others with why they have none.

    Greedy, as in AETG (Cohen 1997): for the next pair that is missing, of some random rows with it the one that brings
    most missing ones. `refusal` says what is against a row. A pair for which nothing was found is looked for
    again, in rows without the others of that kind.
    """
    random, rows = Random(seed), list[Row]()
    missing = dict.fromkeys(all_pairs(factors))
    failed: dict[Pair, str] = {}
    for _ in range(PASSES):
        order = sorted(failed) if failed else random.sample(list(missing), len(missing))
        for pair in order:
            if pair not in missing:
                continue
            failed.pop(pair, None)
            tried = [_completed(factors, pair, random, failed) for _ in range(TRIED)]
            tried.sort(key=lambda row: -len(pairs_of(row) & missing.keys()))
            row = next((row for row in tried if refusal(row) is None), None)
            if row is None:
                failed[pair] = Counter(str(refusal(row)) for row in tried).most_common(1)[0][0]
                continue
            rows.append(row)
            for found in pairs_of(row):
                missing.pop(found, None)
                failed.pop(found, None)
    return rows, failed


def _completed(factors: Sequence[Sequence[str]], pair: Pair, random: Random, failed: Mapping[Pair, str]) -> Row:
    """A random row with a pair, where possible without failed ones."""
    row: dict[int, str] = {pair[0]: pair[1], pair[2]: pair[3]}
    for place in random.sample(range(len(factors)), len(factors)):
        if place not in row:
            fit = [value for value in factors[place] if not any(_pair(row, at, place, value) in failed for at in row)]
            row[place] = random.choice(fit or factors[place])
    return tuple(row[place] for place in range(len(factors)))


def _pair(row: Mapping[int, str], at: int, place: int, value: str) -> Pair:
    return (at, row[at], place, value) if at < place else (place, value, at, row[at])
