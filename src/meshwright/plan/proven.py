"""The rule that what no proof has is refused, by a table of what cases have (proven.json, from tests/parity).

The table has pairs: roles of neighbours, a role with a schedule, a family with a recompute. Its cases run in
`make parity` and `make test`. Where another rule of the runtime refuses a plan it says why, and this one is silent.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import NamedTuple

from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.rules_families import NETWORK, OWN, proof_of
from meshwright.plan.rules_runtime import RUNTIME_RULES
from meshwright.plan.sites import Site
from meshwright.plan.spec import Recompute, Save

TABLE = Path(__file__).with_name("proven.json")


class Fact(NamedTuple):
    """What a plan has of one factor."""

    factor: str
    value: str


Pair = tuple[Fact, Fact]


@cache
def proven_pairs() -> frozenset[Pair]:
    """What the table has."""
    kept = json.loads(TABLE.read_text())
    return frozenset(
        (Fact(entry["factors"][0], one), Fact(entry["factors"][1], other))
        for entry in kept
        for one, others in entry["pairs"].items()
        for other in others
    )


def pairs_of(inputs: Inputs) -> Iterator[tuple[Site, Pair]]:
    """The pairs that a plan has, each with the row where it has it. Roles on axes of one rank do nothing, and experts
    that have a row of their own have a rule of their own.
    """
    whole = [site for site in inputs.sites if site.row.part is None]
    for site in whole:
        for one, other in combinations(_facts(inputs, site), 2):
            yield from ((site, pair) for pair in product(one, other))
    for site, following in pairwise(whole):
        for before, after in product(_roles(site), _roles(following)):
            yield following, (Fact("role", before), Fact("next role", after))


def _facts(inputs: Inputs, site: Site) -> list[list[Fact]]:
    plan = inputs.plan
    return [
        [Fact("role", role) for role in _roles(site)],
        [Fact("schedule", plan.schedule if len(plan.stages) > 1 else "one stage")],
        [Fact("recompute", word) for word in _recomputes(site.row.recompute)],
        [Fact("family", _family(inputs))],
    ]


def _recomputes(recompute: Recompute) -> list[str]:
    if isinstance(recompute, str):
        return [recompute]
    return [f"save {word}" for word in recompute.save] if isinstance(recompute, Save) else []


def _family(inputs: Inputs) -> str:
    proof = proof_of(inputs.model)
    return "traced decoder" if proof is OWN else "traced network" if proof is NETWORK else inputs.model.family


def _roles(site: Site) -> list[str]:
    return list(dict.fromkeys(str(role) for axis, role in site.row.roles.items() if site.group.mesh.get(axis, 1) > 1))


def _unproven(inputs: Inputs) -> Iterator[Finding]:
    missing = [(site, pair) for site, pair in pairs_of(inputs) if pair not in proven_pairs()]
    if missing and not _refused(inputs):
        for site, (one, other) in missing:
            yield found(site.where, one=f"{one.factor} '{one.value}'", other=f"{other.factor} '{other.value}'")


def _refused(inputs: Inputs) -> bool:
    return any(True for rule in RUNTIME_RULES if rule.severity == "error" for _ in rule.check(inputs))


PROVEN_RULES = (
    Rule(
        "runtime-unproven",
        "runtime",
        _unproven,
        "{one} with {other} stands in no case of the proofs, and what is not proven is refused",
        "change one of the two",
    ),
)
