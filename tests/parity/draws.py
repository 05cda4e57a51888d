"""Random plans that no rule refuses, each from a number: unlike layers, meshes of up to three axes, any execution."""

from collections import Counter
from random import Random
from typing import Any, get_args

from meshwright.plan.ranks import format_ranks
from meshwright.plan.rules_runtime import PROVEN
from meshwright.plan.spec import STATEFUL, STATES, Recompute, Saved
from tests.parity.array import CUTS, HER_NETWORK, OF_HER_OWN, PROOFS, SEED, recompute_of, refusals, sized, spans
from tests.parity.harness import Case

SIZES = (2, 3, 4, 6, 8)
DIVISIONS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,),),
    2: ((2,),),
    3: ((3,),),
    4: ((4,), (2, 2)),
    6: ((6,), (3, 2), (2, 3)),
    8: ((8,), (4, 2), (2, 4), (2, 2, 2)),
}
"""Ranks of a group → the meshes that they can make."""
UNTIED = ("gpt_neox", "vit", OF_HER_OWN, HER_NETWORK)
"""Families whose models here tie nothing."""
SCHEDULES = tuple(map(str, PROVEN["plan.schedule"]))


def drawn(number: int) -> tuple[Case, Counter[str]]:
    """The plan of a number, and how often rules refused what was drawn before it."""
    random, refused = Random(1000 * SEED + number), Counter[str]()
    while True:
        case = _draw(random)
        found = refusals(case)
        if not found:
            return case, refused
        refused[found[0]] += 1


def _draw(random: Random) -> Case:
    family, ranks = random.choice(tuple(PROOFS)), random.choice(SIZES)
    layers = spans(family)
    tied = family not in UNTIED and random.random() < 0.25
    recompute = {span: _recompute(random) for span in layers[1:3]}
    settings: dict[str, Any] = {"family": family, "rows": {}, "mesh": {}, "tied": tied, "recompute": recompute}
    if random.random() < 0.4:
        settings |= {"schedule": random.choice(SCHEDULES), "micro_batches": 4}
        first = random.choice([n for n in range(1, ranks) if n in DIVISIONS and ranks - n in DIVISIONS])
        sizes, letters = {"a": first, "b": ranks - first}, CUTS.get(settings["schedule"], "ab")
    else:
        settings |= {"schedule": random.choice(SCHEDULES[:2]), "micro_batches": random.choice((1, 2, 4))}
        sizes, letters = {"a": ranks}, "a"
    meshes = {name: random.choice(DIVISIONS[size]) for name, size in sizes.items()}
    ranks_of = {"a": range(sizes["a"]), "b": range(sizes["a"], sum(sizes.values()))}
    settings["groups"] = {
        name: (format_ranks(ranks_of[name]), dict(zip("xyz", mesh, strict=False))) for name, mesh in meshes.items()
    }
    stages = [
        (name, {span: _roles(random, family, meshes[name]) for span in held})
        for name, held in zip(letters, _cut(layers, len(letters)), strict=True)
    ]
    if tied:
        stages[-1][1]["head"] = stages[0][1]["embed"]
    settings |= {"stages": tuple(stages), "execution": _execution(random, stages)}
    return sized(settings, max(sizes.values()), random)


def _recompute(random: Random) -> Recompute:
    """Nothing as often as the core attention, whole layers or all but some operators."""
    word = random.choice(("none", "none", "selective", "full", "save", "save"))
    words = get_args(Saved)
    saved = random.sample(words, random.randint(1, len(words))) if word == "save" else ()
    return recompute_of(" ".join((word, *saved)))


def _cut(layers: tuple[str, ...], stages: int) -> list[tuple[str, ...]]:
    each = len(layers) // stages
    return [layers[first : first + each] for first in range(0, len(layers), each)]


def _roles(random: Random, family: str, mesh: tuple[int, ...]) -> dict[str, str]:
    """A role for each axis; one state for all that it falls on."""
    state = random.choice((None, None, *STATES))
    splits = {
        axis: random.choice(PROOFS[family].splits) if size > 1 else "dp"
        for axis, size in zip("xyz", mesh, strict=False)
    }
    return {
        axis: f"{split}/{state}" if state and split in STATEFUL and size > 1 and random.random() < 0.8 else split
        for (axis, split), size in zip(splits.items(), mesh, strict=True)
    }


def _execution(random: Random, stages: list[tuple[str, dict[str, dict[str, str]]]]) -> dict[str, Any]:
    """Buckets of any size; gradients reduced once or each time, where a state makes that a choice."""
    roles = {role for _, rows in stages for row in rows.values() for role in row.values()}
    chosen: dict[str, Any] = {"bucket_mib": random.choice((0.01, 25.0))}
    if any(role.endswith(("zero2", "zero3")) for role in roles):
        chosen["sync"] = random.choice(("each", "last"))
    return chosen
