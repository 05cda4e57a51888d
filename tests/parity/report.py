"""docs/parity.md: which pairs are proven, how well, and what rules refuse."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import torch

from tests.parity.array import FACTORS, SEED
from tests.parity.cover import all_pairs
from tests.parity.verdict import SPREADS


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    name: str
    holds: bool
    error: float
    says: str = ""
    seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    """Rule → random plans that it refused before this one."""


def written(results: list[Result], refused: list[list[Any]]) -> str:
    """The document."""
    rows, drawn, single, half = (
        [each for each in results if each.name.startswith(kind)] for kind in ("row-", "random-", "float32-", "bf16-")
    )
    before = sum((Counter(each.refused) for each in drawn), Counter[str]())
    head = (
        "# Parity: many processes against one\n\n"
        "`make parity` writes this page. Each case is a small model, dropout on, unequal numbers of tokens in its\n"
        "micro-batches, two steps in float64 on CPU processes; losses, norms, gradients and parameters agree with one\n"
        "process to 1e-9 of a tensor's largest value on every rank. Families besides run in float32, and in bf16 with\n"
        f"masters in float32, each value within {SPREADS:g} times what one process differs from itself by in other\n"
        "orders of summation.\n\n"
        f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, seed {SEED}.\n\n"
        "| | cases | largest difference |\n|---|---|---|\n"
        f"| covering array | {len(rows)} | {_most(rows)} |\n| random plans | {len(drawn)} | {_most(drawn)} |\n"
        f"| families, float32 | {len(single)} | {_most(single)} |\n| families, bf16 | {len(half)} | {_most(half)} |\n\n"
    )
    return (
        head
        + _pairs(refused)
        + _rules("Pairs that rules refuse", Counter(str(each[-1]) for each in refused))
        + (_rules("Random plans that rules refuse, and others were drawn for", before))
    )


def _most(results: list[Result]) -> str:
    return f"{max(each.error for each in results):.1e}" if results else "-"


def _pairs(refused: list[list[Any]]) -> str:
    """For each two factors: pairs, those in a case that holds, and those that are refused."""
    names = list(FACTORS)
    gone: dict[tuple[int, int], int] = defaultdict(int)
    for one, _, other, _, _ in refused:
        gone[one, other] += 1
    counts = Counter((one, other) for one, _, other, _ in all_pairs(list(FACTORS.values())))
    lines = [
        f"| {names[one]} × {names[other]} | {counts[one, other]} | {counts[one, other] - gone[one, other]} | "
        f"{gone[one, other]} |"
        for one, other in combinations(range(len(names)), 2)
    ]
    return "## Pairs\n\n| | pairs | proven | refused |\n|---|---|---|---|\n" + "\n".join(lines) + "\n\n"


def _rules(title: str, counts: Counter[str]) -> str:
    lines = [f"| {rule} | {count} |" for rule, count in counts.most_common()]
    return f"## {title}\n\n| rule | count |\n|---|---|\n" + "\n".join(lines) + "\n\n"
