"""Uniform plans from degrees: Megatron-LM's ranks, plans with a meaning, and the nearest degree where there is none."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.cluster.shorthand import parse_cluster
from meshwright.errors import PlanError
from meshwright.model.resolve import resolve_model
from meshwright.plan.groups import process_groups
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.spec import Plan
from meshwright.recipe.spec import Recipe
from tests.plan.models import listener, llama, mixture, resnet

MODEL = llama(layers=8, hidden=96, ffn=96, heads=24, kv_heads=24)
MOE = mixture(MODEL, experts=16)
RECIPE = Recipe(global_batch=64, sequence=96)


def uniform(model: Any = MODEL, cluster: str = "8xh100", recipe: Recipe = RECIPE, **degrees: Any) -> Plan:
    return uniform_plan(model, parse_cluster(cluster), recipe, **degrees)


def ranks_of(plan: Plan, purpose: str) -> set[tuple[int, ...]]:
    """The process groups of one purpose."""
    return {ranks for group in process_groups(plan) if group.purpose == purpose for ranks in group.ranks}


def laid_out(sizes: dict[str, int], *kinds: str) -> set[tuple[int, ...]]:
    """Process groups in an order of ranks whose first kind varies fastest, written down as plainly as can be."""
    names, world = list(sizes), math.prod(sizes.values())
    places: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world):
        rest, place = rank, {}
        for name in names:
            rest, place[name] = divmod(rest, sizes[name])
        places.setdefault(tuple(place[name] for name in names if name not in kinds), []).append(rank)
    return {tuple(ranks) for ranks in places.values()}


def several(groups: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """The groups of more than one rank."""
    return {ranks for ranks in groups if len(ranks) > 1}


def test_16_gpus_with_tp_2_and_pp_4_form_the_groups_that_megatron_documents() -> None:
    """megatron/core/parallel_state.py, initialize_model_parallel: the example of its docstring."""
    plan = uniform(cluster="2x8xh100", tp=2, pp=4)
    assert ranks_of(plan, "tensor") == {(first, first + 1) for first in range(0, 16, 2)}
    assert ranks_of(plan, "pipeline") == {(first, first + 4, first + 8, first + 12) for first in range(4)}
    assert ranks_of(plan, "batch") == {(first, first + 2) for first in (0, 1, 4, 5, 8, 9, 12, 13)}


@pytest.mark.parametrize(
    ("tp", "cp", "pp", "etp", "ep"),
    [
        (2, 2, 2, 2, 2),
        (4, 1, 2, 1, 8),
        (8, 1, 1, 1, 16),
        (2, 4, 1, 1, 4),
        (4, 2, 1, 2, 8),
        (1, 1, 4, 1, 8),
        (4, 1, 1, 2, 1),
    ],
)
def test_experts_lie_as_in_megatron(tp: int, cp: int, pp: int, etp: int, ep: int) -> None:
    """Dense layers as tp-cp-dp-pp, experts as etp-ep-edp-pp, both with the first fastest."""
    plan = uniform(MOE, "8x8xh100", tp=tp, cp=cp, pp=pp, etp=etp, ep=ep, sp=tp > 1, zero=1)
    dense = {"tp": tp, "cp": cp, "dp": 64 // (tp * cp * pp), "pp": pp}
    experts = {"tp": etp, "ep": ep, "dp": 64 // (etp * ep * pp), "pp": pp}
    assert ranks_of(plan, "tensor") == several(laid_out(dense, "tp") | laid_out(experts, "tp"))
    assert ranks_of(plan, "expert") == several(laid_out(experts, "ep"))
    assert ranks_of(plan, "shard") == several(laid_out(dense, "dp", "cp") | laid_out(experts, "dp"))
    assert ranks_of(plan, "context") >= several(laid_out(dense, "cp"))


def test_tp_8_beside_ep_16_is_a_mesh_of_4_by_2_by_8() -> None:
    plan = uniform(MOE, "8x8xh100", tp=8, ep=16, etp=1, sp=True)
    assert list(plan.groups["a"].mesh.items()) == [("dp", 4), ("ep", 2), ("tp", 8)]
    rows = {
        (row.span, row.part): {axis: str(role) for axis, role in row.roles.items()} for row in plan.stages[0].layers
    }
    assert rows == {
        ("embed", None): {"dp": "dp", "ep": "dp", "tp": "tp+sp"},
        ("decoder.0-7", None): {"dp": "dp", "ep": "dp", "tp": "tp+sp"},
        ("decoder.1-7", "experts"): {"dp": "dp", "ep": "ep", "tp": "ep"},
        ("head", None): {"dp": "dp", "ep": "dp", "tp": "tp+sp"},
    }


def test_the_nearest_ranks_shard_together_and_the_others_are_replicas() -> None:
    """HSDP over a node: {replicas: dp, node: dp/zero3}."""
    plan = uniform(cluster="4x8xh100", zero=3, shard=8)
    assert list(plan.groups["a"].mesh.items()) == [("dp_replica", 4), ("dp", 8)]
    assert {str(role) for role in plan.stages[0].layers[1].roles.values()} == {"dp", "dp/zero3"}
    nodes = [tuple(range(node * 8, node * 8 + 8)) for node in range(4)]
    assert ranks_of(plan, "shard") == set(nodes)
    assert ranks_of(plan, "batch") == {tuple(range(32))}
    assert ranks_of(plan, "replica") == set(zip(*nodes, strict=True))


def test_experts_shard_over_the_same_ranks_as_layers() -> None:
    plan = uniform(MOE, "4x8xh100", tp=2, ep=4, etp=1, sp=True, zero=1, shard=8)
    assert list(plan.groups["a"].mesh.items()) == [("dp_replica", 2), ("dp", 4), ("ep", 2), ("tp", 2)]
    roles = {row.part: tuple(map(str, row.roles.values())) for row in plan.stages[0].layers}
    assert roles[None] == ("dp", "dp/zero1", "dp/zero1", "tp+sp")
    assert roles["experts"] == ("dp", "dp/zero1", "ep", "ep")


def test_all_ranks_that_can_shard_are_what_shard_means_where_it_is_not_given() -> None:
    assert uniform(tp=2, zero=3, shard=4) == uniform(tp=2, zero=3)


def test_a_uniform_plan_says_what_its_flags_say() -> None:
    plan = uniform(
        cluster="2x8xh100", tp=2, cp=2, ulysses=2, pp=2, zero=1, sp=True, recompute="selective", micro_batch=4
    )
    data = plan.as_data()
    roles = {"cp": "cp/zero1", "ulysses": "ulysses/zero1", "tp": "tp+sp"}
    selective = {"recompute": "selective"}
    assert data["micro_batches"] == 16
    assert data["schedule"] == "1f1b"
    assert data["groups"] == {
        "a": {"devices": "0-7", "mesh": {"cp": 2, "ulysses": 2, "tp": 2}},
        "b": {"devices": "8-15", "mesh": {"cp": 2, "ulysses": 2, "tp": 2}},
    }
    assert data["stages"] == [
        {"on": "a", "layers": [{"span": "embed", "roles": roles}, {"span": "decoder.0-3", "roles": roles} | selective]},
        {"on": "b", "layers": [{"span": "decoder.4-7", "roles": roles} | selective, {"span": "head", "roles": roles}]},
    ]
    assert data["model"]["fingerprint"] == MODEL.fingerprint
    assert data["recipe"]["fingerprint"] == RECIPE.fingerprint


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ({"virtual": 2}, "abab"),
        ({"schedule": "interleaved", "virtual": 4}, "abababab"),
        ({"schedule": "zbv"}, "abba"),
        ({"schedule": "dualpipev", "virtual": 2}, "abba"),
        ({"schedule": "gpipe"}, "ab"),
    ],
)
def test_stages_lie_as_the_schedule_needs(flags: dict[str, Any], on: str) -> None:
    assert "".join(stage.on for stage in uniform(pp=2, **flags).stages) == on


@pytest.mark.parametrize(
    ("layers", "pp", "names"),
    [
        (8, 2, "embed decoder.0-3 | decoder.4-7 head"),
        (7, 2, "embed decoder.0-3 | decoder.4-6 head"),
        (7, 4, "embed decoder.0-1 | decoder.2-3 | decoder.4-5 | decoder.6 head"),
        (5, 4, "embed decoder.0 | decoder.1-2 | decoder.3 | decoder.4 head"),
    ],
)
def test_layers_are_cut_evenly_with_the_rest_in_the_middle(layers: int, pp: int, names: str) -> None:
    plan = uniform(llama(layers=layers), pp=pp)
    assert " | ".join(" ".join(row.span for row in stage.layers) for stage in plan.stages) == names


def test_layers_per_stage_are_taken_as_they_are_given() -> None:
    plan = uniform(pp=4, layers_per_stage=[0, 3, 4, 1])
    assert [[row.span for row in stage.layers] for stage in plan.stages] == [
        ["embed"],
        ["decoder.0-2"],
        ["decoder.3-6"],
        ["decoder.7", "head"],
    ]


def test_the_first_and_last_stages_may_have_the_embedding_and_the_head_alone() -> None:
    plan = uniform(pp=2, virtual=5, schedule="interleaved", layers_per_stage=[0, *[1] * 8, 0])
    assert [stage.names() for stage in plan.stages[:: len(plan.stages) - 1]] == [["embed"], ["head"]]


def test_pp_before_dp_is_the_order_of_megatrons_other_mapping() -> None:
    """`--use-tp-pp-dp-mapping`: tp fastest, then pp, then dp."""
    plan = uniform(tp=2, pp=2, rank_order="megatron-pp-dp")
    assert [str(group.devices) for group in plan.groups.values()] == ["(0, 1, 4, 5)", "(2, 3, 6, 7)"]
    sizes = {"tp": 2, "pp": 2, "dp": 2}
    assert ranks_of(plan, "batch") == laid_out(sizes, "dp")
    assert ranks_of(plan, "pipeline") == laid_out(sizes, "pp")


def test_one_device_is_a_mesh_of_one() -> None:
    plan = uniform(cluster="cpu:1", recipe=Recipe(global_batch=4, sequence=8))
    assert plan.as_data()["groups"] == {"a": {"devices": "0", "mesh": {"dp": 1}}}
    assert {str(row.roles["dp"]) for row in plan.stages[0].layers} == {"dp"}


def test_a_model_of_several_streams_is_not_cut_but_may_stand_on_one_stage() -> None:
    assert len(uniform(listener()).stages) == 1
    with pytest.raises(PlanError, match="a uniform cut into stages makes no sense for 'listener'"):
        uniform(listener(), pp=2)


def test_micro_batches_come_from_the_recipe_where_it_fixes_them() -> None:
    fixed = Recipe(global_batch=64, sequence=96, micro_batches=4)
    assert uniform(resnet(), recipe=fixed).micro_batches == 4
    assert uniform(tp=2, micro_batches=8).micro_batches == 8
    assert uniform(tp=2).micro_batches == 16


def test_fewer_devices_than_there_are_may_be_used() -> None:
    plan = uniform(tp=2, dp=2)
    assert plan.world_size == 4
    assert [problem.rule for problem in check_plan(Inputs(plan, MODEL, parse_cluster("8xh100"), RECIPE))] == [
        "devices-have-work"
    ]


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "tp": ({"tp": 3}, "tp 3 does not divide the 8 devices of '8xh100'; take tp 2", {"tp": 2}),
    "tp and pp": (
        {"tp": 3, "pp": 2},
        "tp 3 x pp 2 = 6 does not divide the 8 devices of '8xh100'; take tp 2",
        {"tp": 2},
    ),
    "more than there are": ({"tp": 16}, "tp 16 does not divide the 8 devices of '8xh100'; take tp 8", {"tp": 8}),
    "dp": ({"tp": 2, "dp": 8}, "tp 2 x dp 8 = 16 is more than the 8 devices of '8xh100'; take dp 4", {"dp": 4}),
    "none": ({"tp": 0}, "tp counts ranks, from 1 on (got 0)", {"tp": 1}),
    "no dp": ({"dp": 0}, "dp counts ranks, from 1 on (got 0)", {"dp": 1}),
    "too many stages": ({"pp": 8, "virtual": 2}, "8 layers do not fill 16 stages; take pp 4", {"pp": 4}),
    "too many stages for a V": ({"pp": 8, "schedule": "zbv"}, "8 layers do not fill 16 stages; take pp 4", {"pp": 4}),
    "too many stages and devices that do not divide": (
        {"cluster": "5x8xh100", "pp": 12},
        "pp 12 does not divide the 40 devices of '5x8xh100'; take pp 8",
        {"pp": 8, "recipe": Recipe(global_batch=40, sequence=96)},
    ),
    "more layers than divide": (
        {"cluster": "5x8xh100", "pp": 10},
        "8 layers do not fill 10 stages; take pp 8",
        {"pp": 8, "recipe": Recipe(global_batch=40, sequence=96)},
    ),
    "few stages on many groups": (
        {"pp": 2, "virtual": 16},
        "8 layers do not fill 32 stages; take at most 8 (pp x virtual)",
        {"virtual": 4},
    ),
    "heads that would not divide next": (
        {"cluster": "5x8xh100", "tp": 6},
        "tp 6 does not divide the 40 devices of '5x8xh100'; take tp 4",
        {"tp": 4, "recipe": Recipe(global_batch=40, sequence=96)},
    ),
    "nothing to shard": (
        {"tp": 8, "zero": 3},
        "zero3 shards over dp, cp and ulysses, and each of them is 1; take zero 0, or fewer ways of tp or pp",
        {"tp": 4},
    ),
    "nobody to shard over": (
        {"cluster": "1xh100", "zero": 1},
        "zero1 shards over dp, cp and ulysses, and each of them is 1; take zero 0",
        {"zero": 0},
    ),
    "shard without zero": (
        {"shard": 4},
        "shard 4 says over how many ranks zero shards, and zero is 0; take zero 3, or leave it out",
        {"zero": 3},
    ),
    "shard": (
        {"cp": 2, "zero": 3, "shard": 6},
        "shard 6 is no part of the 8 ranks of dp, cp and ulysses; take shard 4",
        {"shard": 4},
    ),
    "shard over one": (
        {"zero": 3, "shard": 1},
        "shard 1 is no part of the 8 ranks of dp, cp and ulysses; take shard 2",
        {"shard": 2},
    ),
    "nothing left to shard": (
        {"tp": 8, "zero": 1, "shard": 2},
        "shard 2 is no part of the 1 ranks of dp, cp and ulysses; leave shard out",
        {"tp": 4},
    ),
    "heads": (
        {"cluster": "5xh100", "tp": 5},
        "24 heads do not divide over tp 5; split them over 4 ranks",
        {"cluster": "4xh100", "tp": 4},
    ),
    "no experts": (
        {"ep": 4},
        "ep 4 and etp 1 are for routed experts, and 'tiny' has none; leave them out",
        {"ep": 1},
    ),
    "ep": (
        {"model": MOE, "ep": 3},
        "ep 3 does not fit 16 experts over etp 1, tp 1, ulysses 1, cp 1, dp 8; take ep 2",
        {"ep": 2},
    ),
    "ep beyond": (
        {"model": MOE, "ep": 16},
        "ep 16 does not fit 16 experts over etp 1, tp 1, ulysses 1, cp 1, dp 8; take ep 8",
        {"ep": 8},
    ),
    "etp": ({"model": MOE, "tp": 4, "etp": 3}, "etp 3 does not divide tp 4; take etp 2", {"etp": 2}),
    "ep across pp": (
        {"model": MOE, "tp": 2, "ep": 4, "pp": 2, "etp": 1, "rank_order": "megatron-pp-dp"},
        "ep 4 does not fit 16 experts over etp 1, tp 2, ulysses 1, cp 1, dp 2; take ep 2",
        {"ep": 2},
    ),
    "sp": ({"sp": True}, "sp cuts activations over the tp ranks, and tp is 1; take tp 2, or leave sp out", {"tp": 2}),
    "zero": ({"zero": 4}, "zero is 0, 1, 2 or 3 (got 4); take 3", {"zero": 3}),
    "virtual": ({"virtual": 0}, "virtual counts stages on a group, from 1 on (got 0)", {"virtual": 1}),
    "interleaved": (
        {"pp": 2, "schedule": "interleaved"},
        "interleaved has two or more stages on each group, and virtual is 1; take virtual 2",
        {"virtual": 2},
    ),
    "not interleaved": (
        {"pp": 2, "schedule": "1f1b", "virtual": 2},
        "1f1b has 1 stage on each group, and virtual is 2; take 'interleaved'",
        {"schedule": "interleaved"},
    ),
    "a large V": (
        {"pp": 2, "schedule": "zbv", "virtual": 3},
        "zbv has 2 stages on each group, and virtual is 3; take virtual 2",
        {"virtual": 2},
    ),
    "no pipeline": (
        {"virtual": 2},
        "interleaved needs a pipeline, and pp is 1; take pp 2, or '1f1b' with virtual 1",
        {"pp": 2},
    ),
    "schedule": ({"schedule": "1f1"}, "'1f1' is no schedule; did you mean '1f1b'?", {"schedule": "1f1b"}),
    "recompute": ({"recompute": "ful"}, "'ful' is no recompute; did you mean 'full'?", {"recompute": "full"}),
    "layers": (
        {"pp": 2, "layers_per_stage": [4, 5]},
        "layers_per_stage has 2 numbers with the sum 9, for 2 stages of 8 layers; take for example [4, 4]",
        {"layers_per_stage": [4, 4]},
    ),
    "two sizes": (
        {"micro_batch": 1, "micro_batches": 8},
        "micro_batch and micro_batches say the same thing in two ways; give one of them",
        {"micro_batches": None},
    ),
    "micro_batch": (
        {"tp": 2, "micro_batch": 3},
        "micro_batch 3 x dp 4 does not divide the global batch of 64; take micro_batch 2",
        {"micro_batch": 2},
    ),
    "no samples": ({"micro_batch": 0}, "micro_batch counts samples, from 1 on (got 0)", {"micro_batch": 1}),
    "batch": (
        {"cluster": "6xh100"},
        "a global batch of 64 does not divide over dp 6; use 66",
        {"recipe": Recipe(global_batch=66, sequence=96)},
    ),
    "micro_batches": (
        {"micro_batches": 16},
        "the samples of a micro-batch (4) do not divide over 8 ranks (dp); use 8 micro-batches",
        {"micro_batches": 8},
    ),
    "too many micro-batches": ({"micro_batches": 10**6}, "plan: micro_batches: must be at most", {"micro_batches": 8}),
}


@pytest.mark.parametrize(("asked", "message", "mended"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_is_impossible_is_said_with_the_nearest_that_works(
    asked: dict[str, Any], message: str, mended: dict[str, Any]
) -> None:
    with pytest.raises(PlanError) as caught:
        uniform(**asked)
    assert str(caught.value).startswith(message)
    uniform(**(asked | mended))


WHOLE = ("tp", "pp", "cp", "ulysses", "ep", "etp", "dp", "zero", "shard", "virtual", "micro_batch", "micro_batches")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["2", 2.0, True], ids=repr)
def test_what_is_no_whole_number_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(PlanError) as caught:
        uniform(**{name: value})
    assert str(caught.value) == f"{name} must be a whole number (got {value!r})"


def test_a_number_of_layers_that_is_none_is_refused_by_its_place() -> None:
    with pytest.raises(PlanError, match=r"^layers_per_stage\[1\] must be a whole number \(got '2'\)$"):
        uniform(pp=2, layers_per_stage=[2, "2"])


def test_experts_alone_may_be_sharded() -> None:
    plan = uniform(MOE, tp=8, etp=1, ep=4, sp=True, zero=3)
    states = {(row.part, role.state) for row in plan.stages[0].layers for role in row.roles.values()}
    assert states == {(None, None), ("experts", None), ("experts", "zero3")}


def test_what_a_plan_is_for_may_be_named_instead_of_made() -> None:
    named = uniform_plan("gpt2", "8xh100", {"global_batch": 64, "sequence": 96}, tp=2)
    recipe = Recipe(global_batch=64, sequence=96)
    assert named == uniform_plan(resolve_model("gpt2"), parse_cluster("8xh100"), recipe, tp=2)


GRID = list(itertools.product([1, 2, 3, 4], [1, 2, 4], [1, 2], [1, 2], [0, 1, 2, 3], [False, True]))


def test_every_grid_of_degrees_that_fits_gives_a_plan_with_a_meaning() -> None:
    """`uniform_plan` asks the rules itself; here, that it finds a plan for every combination that divides."""
    recipe = Recipe(global_batch=48, sequence=96)
    for tp, pp, cp, ulysses, zero, sp in GRID:
        if (sp and tp == 1) or 48 % (tp * pp * cp * ulysses):
            continue
        plan = uniform(cluster="6x8xh100", recipe=recipe, tp=tp, pp=pp, cp=cp, ulysses=ulysses, zero=zero, sp=sp)
        assert plan.world_size == 48
        assert [len(group.devices) for group in plan.groups.values()] == [48 // pp] * pp


degrees = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from([1, 2, 3, 4, 6, 8]) for name in ("tp", "pp", "cp", "ep", "etp", "dp", "ulysses")},
        "zero": st.integers(0, 3),
        "shard": st.sampled_from([1, 2, 3, 4, 6]),
        "virtual": st.integers(1, 3),
        "sp": st.booleans(),
        "micro_batch": st.integers(1, 4),
        "micro_batches": st.integers(1, 64),
        "recompute": st.sampled_from(["none", "full", "selective"]),
        "schedule": st.sampled_from(["gpipe", "1f1b", "interleaved", "zbv", "dualpipev"]),
        "rank_order": st.sampled_from(["megatron", "megatron-pp-dp"]),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([MODEL, MOE, listener(), resnet()]), st.sampled_from(["cpu:1", "12xh100", "3x8xh100"]), degrees)
def test_degrees_give_a_plan_with_a_meaning_or_one_clear_error(model: Any, cluster: str, asked: dict[str, Any]) -> None:
    recipe = Recipe.from_data(
        {
            "meshwright_recipe": 1,
            "global_batch": 144,
            "sequence": 96,
            "precision": {"compute": "fp32"},
            "micro_batches": 6,
        }
    )
    try:
        plan = uniform(model, cluster, recipe, **asked)
    except PlanError:
        return
    problems = check_plan(Inputs(plan, model, parse_cluster(cluster), recipe))
    assert [problem for problem in problems if problem.severity == "error"] == []
    assert Plan.parse(plan.to_yaml()) == plan
