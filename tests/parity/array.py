"""What `make parity` proves: pairs of (split × state) of neighbours, schedule, recompute, family and process count.

A row of the covering array says two neighbours' roles and how they run; a case is a tiny model under such a plan.
Values are those that the rules speak of, so that what they allow tomorrow is proven tomorrow.
"""

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any, NamedTuple, get_args

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.ranks import format_ranks
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.rules_families import FAMILIES, NETWORK, OWN, Proof
from meshwright.plan.rules_runtime import PROVEN
from meshwright.plan.spec import ROLES, Recompute, Save, Saved
from meshwright.recipe.spec import Recipe
from tests.parity.harness import Case, build, plan_of, recipe_of
from tests.parity.models import spec_of

SEED = 7
ONE_STAGE, OF_HER_OWN, HER_NETWORK = "one stage", "OwnTransformer", "OwnResNet"
UNPROVEN = "runtime-unproven"
WITH_SIDES = ("t5", "whisper")
"""Families whose layers differ by states alone: tests/parity/families proves each."""
PROOFS: dict[str, Proof] = {
    **{name: proof for name, proof in FAMILIES.items() if name not in WITH_SIDES},
    OF_HER_OWN: OWN,
    HER_NETWORK: NETWORK,
}
MEANT = tuple(role for role in ROLES if role != "ep")
"""Roles of models without experts."""
SAVES = (*get_args(Saved), "half-matmul attention collective")
"""Lists of what recompute keeps; the last is torchtitan's."""
FACTORS: dict[str, tuple[str, ...]] = {
    "first": MEANT,
    "second": MEANT,
    "schedule": (ONE_STAGE, *map(str, PROVEN["plan.schedule"])),
    "recompute": ("none", "selective", "full", *(f"save {words}" for words in SAVES)),
    "family": tuple(PROOFS),
    "processes": ("2", "3", "4", "6", "8"),
}
"""What stands in a row."""
BESIDE = ("", "", "dp", "tp", "copy", "cp")
"""What layers do with a second axis of the mesh, where there is one."""
CUTS = {"interleaved": "abab", "zbv": "abba", "dualpipev": "abba"}
"""Schedule → the groups of its stages; those of others are two."""
SECOND = {4: 2, 6: 2, 8: 2}
"""Processes of a group → how many of them the second axis has."""


class Row(NamedTuple):
    """A row of the covering array."""

    first: str
    second: str
    schedule: str
    recompute: str
    family: str
    processes: str


def sized(settings: dict[str, Any], largest: int, random: Random) -> Case:
    """The smallest model and batch that divide over groups of 2, 4 and 8, or of 3 and 6 ranks; two steps."""
    family, three = settings["family"], largest % 3 == 0
    small = {"layers": 2, "heads": 6, "hidden": 24, "kv_heads": 3} if three else {"layers": 2, "heads": 8}
    drops = PROOFS[family].attention_dropout and random.random() < 0.5
    return Case(
        **{
            "samples": 12 if three else 16,
            "length": 12 if three else 16,
            "vocabulary": 48,
            "steps": 2,
            "dropout": 0.1,
            "attention_dropout": 0.1 if drops else 0.0,
            **(small if family in ("llama", "gpt2") else {}),  # of others the models have one size
            **settings,
        }
    )


def spans(family: str) -> tuple[str, str, str, str]:
    """The embedding, half of the layers, the other half, and the head."""
    if family in ("llama", "gpt2"):
        return "embed", "decoder.0", "decoder.1", "head"
    if family == HER_NETWORK:
        return "embed", "blocks.0", "blocks.1-2", "head"
    stack = _STACKS.get(family, "decoder")
    return "embed", f"{stack}.0-1", f"{stack}.2-3", "head"


_STACKS = {OF_HER_OWN: "blocks", "bert": "encoder", "vit": "encoder"}


def case_of(row: Row) -> Case | None:
    """The plan that a row stands for; none where a group of one rank would have something to split."""
    ranks, layers, random = int(row.processes), spans(row.family), Random(repr(row))
    settings = {"family": row.family, "rows": {}, "mesh": {}, "micro_batches": 4}
    if row.recompute != "none":
        settings["recompute"] = dict.fromkeys(layers[1:3], recompute_of(row.recompute))
    beside = random.choice(BESIDE)
    if row.schedule == ONE_STAGE:
        mesh, roles = _mesh(ranks, beside)
        rows = dict(zip(layers, map(roles, (row.first, row.first, row.second, row.second)), strict=True))
        fields = {"micro_batches": 2, "groups": {"a": (format_ranks(range(ranks)), mesh)}, "stages": (("a", rows),)}
        return sized(settings | fields, ranks, random)
    sizes = _halves(ranks, row)
    if sizes is None:
        return None
    (mesh_a, roles_a), (mesh_b, roles_b) = (_mesh(size, beside) for size in sizes)
    roles_of = {"a": roles_a(row.first), "b": roles_b(row.second)}
    on = CUTS.get(row.schedule, "ab")
    held = [layers[:2], layers[2:]] if len(on) == 2 else [(each,) for each in layers]
    fields = {
        "groups": {"a": (format_ranks(range(sizes[0])), mesh_a), "b": (format_ranks(range(sizes[0], ranks)), mesh_b)},
        "stages": tuple((group, dict.fromkeys(each, roles_of[group])) for group, each in zip(on, held, strict=True)),
        "schedule": row.schedule,
    }
    return sized(settings | fields, max(sizes), random)


def recompute_of(value: str) -> Recompute:
    """What a row calls a word, or 'save' and the words of its list."""
    word, *saved = value.split()
    return Save.model_validate({"save": saved}) if saved else word  # type: ignore[return-value]


def _halves(ranks: int, row: Row) -> tuple[int, int] | None:
    """Ranks of the two groups. One that is alone divides nothing, and its role is dp."""
    small, large = ranks // 2, ranks - ranks // 2
    sizes = (large, small) if row.second == "dp" else (small, large)
    alone = [role for size, role in zip(sizes, (row.first, row.second), strict=True) if size == 1]
    return sizes if all(role == "dp" for role in alone) else None


def _mesh(ranks: int, beside: str) -> tuple[dict[str, int], Any]:
    """A group's mesh, and what makes roles on it."""
    second = SECOND.get(ranks, 1) if beside else 1
    if second == 1:
        return {"x": ranks}, lambda role: {"x": role}
    return {"x": ranks // second, "y": second}, lambda role: {"x": role, "y": beside}


@cache
def _spec(case_fields: tuple[tuple[str, Any], ...]) -> ModelSpec:
    """What a model of these settings is."""
    return resolve_model(spec_of(build(Case({}, {}, **dict(case_fields)))))


OF_THE_MODEL = (
    "family", "tied", "dropout", "attention_dropout", "kv_heads", "vocabulary", "length", "layers", "heads", "hidden"
)  # fmt: skip


@cache
def _cluster(ranks: int) -> Cluster:
    return resolve_cluster(f"cpu:{ranks}")


@cache
def _recipe(family: str, samples: int, length: int, micro_batches: int) -> Recipe:
    recipe = recipe_of(Case({}, {}, family, samples=samples, length=length, micro_batches=micro_batches))
    assert isinstance(recipe, Recipe)
    return recipe


def inputs_of(case: Case) -> Inputs:
    """The case as rules see it."""
    spec = _spec(tuple((name, getattr(case, name)) for name in OF_THE_MODEL))
    recipe = _recipe(case.family, case.samples, case.length, case.micro_batches)
    return Inputs(plan_of(case), spec, _cluster(case.world_size), recipe)


def refusals(case: Case) -> list[str]:
    """The names of the rules that refuse a case, first those of the runtime. That none has proven it is no reason."""
    names = {problem.rule for problem in check_plan(inputs_of(case), "runtime") if problem.severity == "error"}
    return sorted(names - {UNPROVEN}, key=lambda name: (not name.startswith("runtime-"), name))


@cache
def refusal(row: Iterable[str]) -> str | None:
    """What is against a row."""
    case = case_of(Row(*row))
    if case is None:
        return "a group of one rank"
    found = refusals(case)
    return found[0] if found else None
