"""Bytes and collectives of plans, against DESIGN's table of states and Megatron's scheme."""

from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.memory import plan_memory
from meshwright.cost.placement import Placement
from meshwright.cost.volumes import Collective, step_collectives
from meshwright.model.hf_config import from_config
from meshwright.model.resolve import resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.plan.words import Schedule
from meshwright.recipe.spec import Recipe
from tests.cost.build import LLAMA, gpt2, inputs, llama
from tests.plan.models import mixture

LAYERS, M, BATCH, LENGTH, HIDDEN = 4, 3, 12, 64, 64
OLMO2 = LLAMA | {"model_type": "olmo2", "pad_token_id": 0}
LAYER = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64
"""Parameters of one decoder layer of the small Llama."""


def plan(
    roles: dict[str, str], mesh: dict[str, int] | None = None, model: ModelSpec | None = None, **asked: Any
) -> Inputs:
    """The small Llama on some GPUs: bf16, gradients in fp32, three micro-batches."""
    sizes = mesh or dict.fromkeys(roles, 2)
    settings: dict[str, Any] = {"batch": BATCH, "sequence": LENGTH, "micro_batches": M} | asked
    return inputs(model or llama(), "4x8xh100", sizes, roles, **settings)


def found(given: Inputs, *purposes: str, span: str | None = None) -> list[tuple[Any, ...]]:
    """(kind, when, bytes, count) of the collectives for some purposes."""
    every = [one for one in step_collectives(given) if one.purpose in purposes and span in (None, one.span)]
    return [(one.kind, one.when, one.bytes, one.count) for one in every]


# The table of states: L layers, M micro-batches, parameters in bf16 (2 bytes), gradients in fp32 (4).
STATES: dict[str, tuple[str, dict[str, str], list[tuple[str, str, int, int]]]] = {
    "none": ("dp", {}, [("all_reduce", "reduce", 4 * LAYER, LAYERS)]),
    "zero1": (
        "dp/zero1",
        {},
        [("reduce_scatter", "reduce", 4 * LAYER, LAYERS), ("all_gather", "update", 2 * LAYER, LAYERS)],
    ),
    "zero2": (
        "dp/zero2",
        {},
        [("reduce_scatter", "backward", 4 * LAYER, LAYERS * M), ("all_gather", "update", 2 * LAYER, LAYERS)],
    ),
    "zero3": (
        "dp/zero3",
        {},
        [
            ("all_gather", "forward", 2 * LAYER, LAYERS * M),
            ("all_gather", "backward", 2 * LAYER, LAYERS * M),
            ("reduce_scatter", "backward", 4 * LAYER, LAYERS * M),
        ],
    ),
    "zero2, reduced once": (
        "dp/zero2",
        {"sync": "last"},
        [("reduce_scatter", "reduce", 4 * LAYER, LAYERS), ("all_gather", "update", 2 * LAYER, LAYERS)],
    ),
    "zero3, reduced once": (
        "dp/zero3",
        {"sync": "last"},
        [
            ("all_gather", "forward", 2 * LAYER, LAYERS * M),
            ("all_gather", "backward", 2 * LAYER, LAYERS * M),
            ("reduce_scatter", "reduce", 4 * LAYER, LAYERS),
        ],
    ),
}


@pytest.mark.parametrize(("role", "execution", "expected"), STATES.values(), ids=STATES.keys())
def test_each_state_moves_what_the_table_says(role: str, execution: dict[str, str], expected: list[Any]) -> None:
    given = plan({"all": role}, {"all": 4}, execution=execution)
    assert found(given, "shard", "gradient", span="decoder.0-3") == expected


@pytest.mark.parametrize("pp", [1, 2])
def test_the_last_layer_is_not_gathered_again_where_its_backward_follows_at_once(pp: int) -> None:
    head = found(plan({"all": "dp/zero3"}, {"all": 4}, pp=pp), "shard", span="head")
    assert [(kind, when, count) for kind, when, _, count in head] == [
        ("all_gather", "forward", M),
        ("reduce_scatter", "backward", M),
    ]


@pytest.mark.parametrize(
    ("schedule", "again"),
    [("gpipe", True), ("1f1b", False), ("interleaved", False), ("zb-h1", False), ("zbv", False), ("dualpipev", True)],
)
def test_under_gpipe_and_dualpipev_other_micro_batches_come_between(schedule: Schedule, again: bool) -> None:
    model, recipe, virtual = llama(), Recipe(global_batch=8, sequence=64), 1 + (schedule == "interleaved")
    uniform = mw.uniform_plan(
        model, "4xh100", recipe, pp=2, zero=3, schedule=schedule, virtual=virtual, micro_batches=4
    )
    head = found(Inputs(uniform, model, mw.cluster("4xh100"), recipe), "shard", span="head")
    assert [when for kind, when, _, _ in head if kind == "all_gather"] == ["forward"] + ["backward"] * again


@pytest.mark.parametrize(("micro_batches", "again"), [(1, False), (4, True)])
def test_one_stage_under_gpipe_keeps_several_micro_batches_and_gathers_the_last_layer_again(
    micro_batches: int, again: bool
) -> None:
    """What moves and what is kept follow from one order: all forwards first."""
    given = plan({"all": "dp/zero3"}, {"all": 4}, batch=16, micro_batches=micro_batches, schedule="gpipe")
    head = found(given, "shard", span="head")
    assert [when for kind, when, _, _ in head if kind == "all_gather"] == ["forward"] + ["backward"] * again
    at_once = given._replace(plan=given.plan.model_copy(update={"schedule": "1f1b"}))
    kept = [plan_memory(Placement(each))[0].instants[1].parts["activations"] for each in (given, at_once)]
    assert kept[0] == micro_batches * kept[1]


def test_replicas_of_a_shard_group_add_their_shards_up_once() -> None:
    given = plan({"node": "dp", "gpu": "dp/zero3"}, {"node": 2, "gpu": 4})
    replicas = [one for one in step_collectives(given) if one.purpose == "gradient" and one.span == "decoder.0-3"]
    assert [(one.axes, one.ranks, one.bytes, one.count) for one in replicas] == [(("node",), (0, 4), LAYER, LAYERS)]


def test_states_over_two_axes_form_one_shard_group() -> None:
    given = plan({"cp": "cp/zero3", "dp": "dp/zero3"}, {"cp": 2, "dp": 2})
    shard = [one for one in step_collectives(given) if one.purpose == "shard"]
    assert {(one.axes, one.ranks) for one in shard} == {(("cp", "dp"), (0, 1, 2, 3))}


def test_gradients_that_copies_have_alike_move_nowhere() -> None:
    assert found(plan({"all": "copy"}, {"all": 4}), "gradient", "shard") == []
    sharded = found(plan({"all": "copy/zero1"}, {"all": 4}), "gradient", "shard", span="decoder.0-3")
    assert sharded == [("all_gather", "update", 2 * LAYER, LAYERS)]


ACTIVATIONS = 2 * BATCH // M * LENGTH * HIDDEN
"""Bytes of [batch, seq, hidden] of a micro-batch, in bf16."""


def test_tensor_parallelism_moves_four_all_reduces_a_layer() -> None:
    assert found(plan({"all": "tp"}), "tensor", span="decoder.0-3") == [
        ("all_reduce", "backward", ACTIVATIONS, 2 * LAYERS * M),
        ("all_reduce", "forward", ACTIVATIONS, 2 * LAYERS * M),
    ]


def test_the_ends_of_a_model_move_one_each_and_the_loss_three_small_ones() -> None:
    given = plan({"all": "tp"})
    assert found(given, "tensor", span="embed") == [("all_reduce", "forward", ACTIVATIONS, M)]
    assert found(given, "tensor", span="head") == [("all_reduce", "backward", ACTIVATIONS, M)]
    assert found(given, "loss") == [("all_reduce", "forward", 4 * BATCH // M * LENGTH, 3 * M)]


@pytest.mark.parametrize(
    ("kernels", "again"), [("hf-sdpa", 0), ("megatron-flash", 2)], ids=["gathered inputs kept", "gathered again"]
)
def test_sequence_parallelism_gathers_and_scatters_instead(kernels: str, again: int) -> None:
    """Korthikanti 2022, section 4.2.2: the bytes of tp alone, and a gather in backward where inputs are not kept."""
    given = found(plan({"all": "tp+sp"}, execution={"kernels": kernels}), "tensor", span="decoder.0-3")
    count = {(kind, when): times for kind, when, size, times in given if size == ACTIVATIONS}
    assert count == {
        ("all_gather", "forward"): 2 * LAYERS * M,
        ("reduce_scatter", "forward"): 2 * LAYERS * M,
        ("all_gather", "backward"): (2 + again) * LAYERS * M,
        ("reduce_scatter", "backward"): 2 * LAYERS * M,
    }


@pytest.mark.parametrize(
    ("kernels", "scaling", "narrow"),
    [
        ("torch-compile", "tensors", 2),
        ("torch-compile", "rows", 1),
        ("megatron-flash", "tensors", 2),
        ("hf-sdpa", "tensors", 1),
    ],
)
def test_what_a_narrow_product_wants_is_gathered_narrow_but_for_scales_of_rows(
    kernels: str, scaling: str, narrow: int
) -> None:
    """In fp8 half the bytes of bf16; sums stay wide, and so do those of the ends of a model."""
    asked = {"recipe": {"precision": {"matmul": "fp8", "scaling": scaling}}, "execution": {"kernels": kernels}}
    given = plan({"all": "tp+sp"}, **asked)
    sizes = {(kind, size) for kind, _, size, _ in found(given, "tensor", span="decoder.0-3")}
    assert sizes == {("all_gather", ACTIVATIONS / narrow), ("reduce_scatter", ACTIVATIONS)}
    assert {size for _, _, size, _ in found(given, "tensor", span="head")} == {ACTIVATIONS}


def test_saved_collectives_are_sums_and_what_is_gathered_is_gathered_again() -> None:
    """Of each layer two gathers; a rank keeps its own run of what a matrix reads."""
    given = plan({"all": "tp+sp"}, recompute={"save": ["matmul", "attention", "collective"]})
    again = [
        (kind, times) for kind, when, _, times in found(given, "tensor", span="decoder.0-3") if when == "recompute"
    ]
    assert again == [("all_gather", 2 * LAYERS * M)]


def test_norms_that_see_a_run_of_positions_each_add_their_gradients_up() -> None:
    norms = found(plan({"all": "tp+sp"}), "gradient", span="decoder.0-3")
    assert norms == [("all_reduce", "reduce", 4 * 2 * HIDDEN, LAYERS)]


@pytest.mark.parametrize(
    ("recompute", "kernels", "again"),
    [
        ("full", "hf-sdpa", 1),
        ("full", "megatron-flash", 2),
        ("selective", "hf-sdpa", 0),
        ({"save": ["matmul"]}, "hf-sdpa", 1),
        ({"save": ["matmul", "collective"]}, "hf-sdpa", 0),
    ],
    ids=["full, stops early", "full", "selective", "matmuls saved", "collectives saved"],
)
def test_recompute_repeats_collectives(recompute: Any, kernels: str, again: int) -> None:
    """Of four layers under tp, torch.utils.checkpoint repeats four all-reduces: it stops before each layer's last."""
    given = plan({"all": "tp"}, recompute=recompute, execution={"kernels": kernels})
    repeated = [times for _, when, _, times in found(given, "tensor", span="decoder.0-3") if when == "recompute"]
    assert sum(repeated) == again * LAYERS * M


@pytest.mark.parametrize(
    ("role", "model", "again"),
    [
        pytest.param("cp", llama(), 1, id="the ring is inside of the layer"),
        pytest.param("ulysses", llama(), 4, id="and so are all four exchanges"),
        pytest.param("tp", gpt2(), 2, id="dropout behind the last matrix wants its sum"),
        pytest.param("tp", gpt2(resid_pdrop=0.0), 1, id="one that drops nothing does not"),
        pytest.param("tp", from_config(OLMO2), 2, id="a norm behind it wants its sum"),
    ],
)
def test_recompute_stops_early_only_before_a_sum_that_nothing_behind_it_wants(
    role: str, model: ModelSpec, again: int
) -> None:
    given = plan({"all": role}, model=model, recompute="full")
    found = [one for one in step_collectives(given) if one.when == "recompute" and one.span == "decoder.0-3"]
    assert sum(one.count for one in found) == again * LAYERS * M


def test_both_kinds_of_tensor_parallelism_together_leave_out_both_last_sums() -> None:
    given = plan({"a": "tp", "b": "tp+sp"}, recompute="full")
    again = {
        (one.axes, one.kind): one.count
        for one in step_collectives(given)
        if one.when == "recompute" and one.span == "decoder.0-3"
    }
    each = LAYERS * M
    assert again == {(("a",), "all_reduce"): each, (("b",), "reduce_scatter"): each, (("b",), "all_gather"): 2 * each}


def test_the_loss_is_not_computed_again() -> None:
    given = plan({"all": "tp"}, recompute="full", execution={"kernels": "megatron-flash"})
    assert {when for _, when, _, _ in found(given, "loss")} == {"forward"}


def test_a_ring_passes_keys_and_values_on() -> None:
    """2 KV heads of 16 numbers, keys and values; in backward they go round again, and so do their gradients."""
    size = 2 * BATCH // M * LENGTH // 4 * 2 * 2 * 16
    assert found(plan({"all": "cp"}, {"all": 4}), "context", span="decoder.0-3") == [
        ("p2p", "forward", size, 3 * LAYERS * M),
        ("p2p", "backward", size, 2 * 3 * LAYERS * M),
    ]


def test_ulysses_exchanges_four_times_each_way() -> None:
    queries, keys = (2 * BATCH // M * LENGTH * heads // 2 * 16 for heads in (4, 2))
    assert found(plan({"all": "ulysses"}), "sequence", span="decoder.0-3") == [
        ("all_to_all", when, size, 2 * LAYERS * M) for when in ("forward", "backward") for size in (queries, keys)
    ]


def _routed() -> Inputs:
    """Experts over both axes, of which attention has one for dp and one for tp+sp."""
    roles = {"dp": "dp/zero1", "tp": "tp+sp"}
    rows = [
        {"span": "embed"},
        {"span": "decoder.0-3"},
        {"span": "decoder.1-3", "part": "experts", "roles": {"dp": "ep", "tp": "ep"}},
        {"span": "head"},
    ]
    return plan(roles, {"dp": 2, "tp": 2}, mixture(llama(), 8), rows=rows)


def test_routed_experts_dispatch_and_combine() -> None:
    """Each rank sends its own positions, twice: top_k is 2."""
    given = _routed()
    size = 2 * BATCH // M * LENGTH // 4 * 2 * HIDDEN
    assert found(given, "expert") == [("all_to_all", when, size, 2 * 3 * M) for when in ("forward", "backward")]
    assert found(given, "transition") == []


def test_the_router_beside_spread_experts_is_equal_on_all_their_ranks() -> None:
    gradients = [one for one in step_collectives(_routed()) if one.purpose == "gradient" and one.span == "decoder.1-3"]
    assert [(one.axes, one.bytes) for one in gradients] == [
        (("tp",), 4 * HIDDEN / 2),
        (("dp", "tp"), 4 * 8 * HIDDEN),
    ]


def test_unlike_neighbours_hand_over_once_each_way() -> None:
    rows = [
        {"span": "embed", "roles": {"all": "dp"}},
        {"span": "decoder.0-1", "roles": {"all": "dp"}},
        {"span": "decoder.2-3", "roles": {"all": "tp"}},
        {"span": "head", "roles": {"all": "dp"}},
    ]
    assert found(plan({"all": "dp"}, rows=rows), "transition") == [
        ("all_gather", "forward", ACTIVATIONS, M),
        ("all_gather", "backward", ACTIVATIONS, M),
    ]


def test_a_stage_cut_passes_activations_on_and_their_gradients_back() -> None:
    cuts = [one for one in step_collectives(plan({"all": "dp"}, pp=2)) if one.purpose == "pipeline"]
    assert [(one.groups, one.ranks, one.when, one.bytes, one.count) for one in cuts] == [
        (("g0", "g1"), (0, 2), "forward", ACTIVATIONS / 2, M),
        (("g0", "g1"), (0, 2), "backward", ACTIVATIONS / 2, M),
    ]


def test_copies_of_a_tied_parameter_add_their_gradients_up() -> None:
    tied = [one for one in step_collectives(plan({"all": "tp"}, model=gpt2(), pp=2)) if one.purpose == "tied"]
    assert [(one.kind, one.ranks, one.bytes, one.count) for one in tied] == [
        ("all_reduce", (0, 2), 4 * 128 * 64 / 2, 1)
    ]


TABLE = 4 * 128 * 64
"""Bytes of the gradient of the small GPT-2's table of words."""


def with_ends(first: dict[str, str], last: dict[str, str], meshes: list[dict[str, int]]) -> Inputs:
    """The small GPT-2 on two groups, each with its own mesh and roles."""
    given = plan({"all": "tp"}, {"all": 4}, model=gpt2(), pp=2)
    data = {"meshwright_plan": 1} | given.plan.as_data()
    for name, mesh in zip(data["groups"], meshes, strict=True):
        data["groups"][name]["mesh"] = mesh
    for stage, roles in zip(data["stages"], (first, last), strict=True):
        stage["layers"] = [row | {"roles": roles} for row in stage["layers"]]
    return given._replace(plan=Plan.from_data(data))


@pytest.mark.parametrize(
    ("first", "last", "meshes", "size"),
    [
        pytest.param({"x": "tp"}, {"x": "tp"}, [{"x": 4}, {"x": 4}], TABLE / 4, id="cut alike: a slice each"),
        pytest.param({"x": "tp"}, {"y": "tp"}, [{"x": 4}, {"y": 4}], TABLE / 4, id="by whatever name"),
        pytest.param({"x": "dp"}, {"x": "tp"}, [{"x": 4}, {"x": 4}], TABLE, id="whole beside cut, on equal meshes"),
        pytest.param(
            {"x": "dp", "y": "tp"},
            {"x": "dp", "y": "tp"},
            [{"x": 2, "y": 2}, {"y": 2, "x": 2}],
            TABLE,
            id="halves that lie otherwise",
        ),
        pytest.param({"x": "dp/zero3"}, {"x": "dp/zero3"}, [{"x": 4}, {"x": 4}], TABLE / 4, id="a shard each"),
        pytest.param({"x": "dp"}, {"x": "dp/zero3"}, [{"x": 4}, {"x": 4}], TABLE, id="a shard beside the whole"),
        pytest.param({"x": "dp/zero3"}, {"x": "dp"}, [{"x": 4}, {"x": 4}], TABLE, id="the whole beside a shard"),
    ],
)
def test_copies_of_a_tied_parameter_meet_as_slices_only_where_all_are_cut_alike(
    first: dict[str, str], last: dict[str, str], meshes: list[dict[str, int]], size: float
) -> None:
    tied = [one for one in step_collectives(with_ends(first, last, meshes)) if one.purpose == "tied"]
    assert [(one.bytes, one.groups) for one in tied] == [(size, ("g0", "g1"))]


def test_a_tied_parameter_on_one_group_is_reduced_once() -> None:
    given = plan({"all": "dp"}, model=gpt2())
    reduced = {one.span: one.bytes for one in step_collectives(given) if one.purpose == "gradient"}
    assert reduced["embed"] == 4 * (128 + 256) * 64
    assert reduced["head"] == 4 * 2 * 64


def test_layers_that_share_a_parameter_are_gathered_together() -> None:
    given = found(plan({"all": "dp/zero3"}, model=gpt2()), "shard")
    ends = 2 * ((128 + 256) * 64 + 2 * 64)
    assert [one for one in given if one[0] == "all_gather" and one[2] == ends] == [("all_gather", "forward", ends, M)]


@pytest.mark.parametrize(
    ("trainable", "learns"),
    [({"frozen": ["decoder.0-3"]}, 0), ({"lora": {"rank": 2}}, 2 * 2 * 64 + 64 * 2 + 32 * 2)],
    ids=["frozen", "adapters"],
)
def test_only_what_learns_has_gradients_to_reduce(trainable: dict[str, Any], learns: int) -> None:
    every = step_collectives(plan({"all": "dp"}, recipe={"trainable": trainable}))
    reduced = [one for one in every if one.purpose == "gradient" and one.span.startswith("decoder")]
    assert sum(one.bytes * one.count for one in reduced) == 4 * learns * LAYERS


def test_no_gradient_goes_back_into_layers_that_do_not_want_one() -> None:
    given = plan({"all": "tp"}, pp=2, recipe={"trainable": {"frozen": ["embed", "decoder.0-1"]}})
    assert {when for _, when, _, _ in found(given, "pipeline")} == {"forward"}
    assert {when for _, when, _, _ in found(given, "tensor", span="decoder.0-1")} == {"forward"}


@pytest.mark.parametrize(("clip_norm", "count"), [(1.0, 1), (None, 0)])
def test_the_norm_is_one_number_over_all_ranks(clip_norm: float | None, count: int) -> None:
    norms = [
        one
        for one in step_collectives(plan({"all": "dp"}, pp=2, recipe={"clip_norm": clip_norm}))
        if one.purpose == "norm"
    ]
    assert [(one.ranks, one.bytes, one.count) for one in norms] == [((0, 1, 2, 3), 8, 1)] * count


def test_one_device_moves_nothing() -> None:
    assert step_collectives(inputs(llama(), "1xh100", {"all": 1}, {"all": "dp/zero3"})) == []


def _llama_8b(role: str) -> Collective:
    given = inputs(resolve_model("llama-3.1-8b"), "8xh100", {"all": 8}, {"all": role}, sequence=4096)
    return next(one for one in step_collectives(given) if one.span.startswith("decoder"))


@pytest.mark.parametrize(
    ("role", "total"),
    [("dp", lambda n: 4 * n), ("dp/zero1", lambda n: 4 * n), ("dp/zero3", lambda n: 2 * n)],
    ids=["all-reduce", "reduce-scatter", "all-gather"],
)
def test_a_real_model_moves_its_own_size(role: str, total: Callable[[int], int]) -> None:
    """A decoder layer of Llama 3.1 8B has 218,112,000 parameters."""
    assert _llama_8b(role).bytes == total(218_112_000)
