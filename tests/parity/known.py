"""The table of the rule `runtime-unproven`: `python -m tests.parity.known` writes it, from every case that there is."""

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from meshwright.plan.proven import TABLE, Pair, pairs_of
from tests.parity.array import inputs_of
from tests.parity.cases import every
from tests.parity.experts import EXPERTS
from tests.parity.families import FAMILIES, STAGED
from tests.parity.harness import Case
from tests.parity.pipelines import PIPELINES, RECOMPUTE

NAMED: tuple[dict[str, Case], ...] = (every(), PIPELINES, RECOMPUTE, FAMILIES, STAGED, EXPERTS)
"""Cases that `make test` runs, all of them."""


def table_of(rows: Iterable[Case]) -> list[dict[str, Any]]:
    """What `proven.json` holds: for two factors, each value of one with the values of the other beside which a named
    case has it, or one of `rows`.
    """
    cases = [*rows, *(case for named in NAMED for case in named.values())]
    pairs: set[Pair] = {pair for case in cases for _, pair in pairs_of(inputs_of(case))}
    known: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one, other in pairs:
        known[one.factor, other.factor][one.value].add(other.value)
    return [
        {"factors": list(factors), "pairs": {value: sorted(others) for value, others in sorted(of.items())}}
        for factors, of in sorted(known.items())
    ]


def write_table(rows: Iterable[Case]) -> None:
    """Keep the table in the package."""
    TABLE.write_text(json.dumps(table_of(rows), indent=1) + "\n")


if __name__ == "__main__":
    from tests.parity.run import rows

    write_table(rows())
