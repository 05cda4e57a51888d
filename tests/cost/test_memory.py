"""Memory of a rank as a peak over instants, and its states against hand formulas."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.activations import layer_activations
from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.layer_states import States, layer_states
from meshwright.cost.memory import Instant, Memory, group_memory, plan_memory
from meshwright.cost.placement import Placement
from meshwright.cost.shares import Share
from meshwright.cost.uses import Storage
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Loss
from meshwright.model.resolve import CATALOG, resolve_model
from meshwright.model.spec import ModelSpec
from meshwright.model.work import Work
from meshwright.plan.orders import Order, orders
from meshwright.plan.rules import Inputs
from meshwright.plan.words import Schedule
from tests.cost.build import QUICK, gpt2, inputs, llama

N = 8_030_261_248
"""Parameters of Llama 3.1 8B, by transformers' own count."""
NORMS = 65 * 4096
"""Of these: two norms in each of 32 layers and one in the head, which tp ranks all hold."""
BF16 = {"precision": {"reduce": "bf16"}}


def states(given_inputs: Inputs, stage: int = 0) -> tuple[float, float, float]:
    """(parameters, gradients, optimizer states) of one rank of a stage."""
    placement, total = Placement(given_inputs), States()
    for block in placement.stage_blocks(stage):
        total = total.plus(layer_states(placement, block), len(block.names))
    return total.parameters, total.gradients, total.optimizer


def llama_8b(role: str, recipe: dict[str, Any] | None = None, **asked: Any) -> Inputs:
    """On eight H100."""
    return inputs(resolve_model("llama-3.1-8b"), "8xh100", {"all": 8}, {"all": role}, recipe=recipe, **asked)


@pytest.mark.parametrize(
    ("role", "recipe", "expected"),
    [
        pytest.param("dp", BF16, (2 * N, 2 * N, 12 * N), id="whole: 2 + 2 + 12 bytes"),
        pytest.param("dp/zero1", BF16, (2 * N, 2 * N, 12 * N / 8), id="zero1"),
        pytest.param("dp/zero2", BF16, (2 * N, 2 * N / 8, 12 * N / 8), id="zero2"),
        pytest.param("dp/zero3", BF16, (0, 2 * N / 8, 12 * N / 8), id="zero3: the shard is the master copy"),
        pytest.param("dp", {}, (2 * N, 4 * N, 12 * N), id="gradients added up in fp32: 2 + 4 + 12"),
        pytest.param(
            "dp", {"precision": {"master": None}, "optimizer": {"state": "bf16"}}, (2 * N, 4 * N, 4 * N), id="no master"
        ),
        pytest.param("dp", {"precision": {"compute": "fp32"}}, (4 * N, 4 * N, 8 * N), id="no second copy of one dtype"),
        pytest.param("dp", {"optimizer": {"name": "sgd"}}, (2 * N, 4 * N, 4 * N), id="plain descent"),
    ],
)
def test_states_take_the_bytes_of_the_formula(
    role: str, recipe: dict[str, Any], expected: tuple[float, float, float]
) -> None:
    assert states(llama_8b(role, recipe)) == expected


def test_tensor_parallel_ranks_hold_a_slice_of_all_but_the_norms() -> None:
    held = (N - NORMS) / 8 + NORMS
    assert states(llama_8b("tp", BF16)) == (2 * held, 2 * held, 12 * held)


def test_zero3_with_the_gradients_kept_whole_until_the_last() -> None:
    assert states(llama_8b("dp/zero3", BF16, execution={"sync": "last"})) == (0, 2 * N, 12 * N / 8)


def test_megatron_under_zero3_shards_a_copy_to_compute_with_beside_the_master_copy() -> None:
    found = states(llama_8b("dp/zero3", BF16, execution={"kernels": "megatron-fused"}))
    assert found == (2 * N / 8, 2 * N / 8, 12 * N / 8)


def test_nanotrons_gradients_have_buckets_in_the_compute_dtype_beside_those_in_float32() -> None:
    assert states(llama_8b("dp/zero1", execution={"kernels": "nanotron"})) == (2 * N, (4 + 2) * N, 12 * N / 8)


@pytest.mark.parametrize(("role", "ways"), [("dp", 1), ("dp/zero1", 8)])
def test_the_step_widens_gradients_that_are_narrower_than_the_master_copy(role: str, ways: int) -> None:
    for recipe, expected in ((BF16, 4 * N / ways), ({}, 0.0)):
        [found] = plan_memory(Placement(llama_8b(role, recipe)))
        assert found.instants[-1].parts["widened"] == expected


@pytest.mark.parametrize(
    ("offload", "expected"),
    [
        ({"optimizer": "cpu"}, (2 * N / 8, 0, 0)),
        ({"parameters": "cpu"}, (0, 2 * N / 8, 12 * N / 8)),
        ({"activations": "cpu"}, (0, 2 * N / 8, 12 * N / 8)),
    ],
    ids=["optimizer", "parameters", "activations"],
)
def test_offload_takes_states_off_the_device(offload: dict[str, str], expected: tuple[float, ...]) -> None:
    assert states(llama_8b("dp/zero3", BF16, offload=offload)) == expected


def test_adapters_alone_have_gradients_and_optimizer_states() -> None:
    """Rank 16 on queries (4096 to 4096) and values (4096 to 1024) of 32 layers."""
    adapters = 32 * 16 * (4096 + 4096 + 4096 + 1024)
    recipe = BF16 | {"trainable": {"lora": {"rank": 16}}}
    assert states(llama_8b("dp", recipe)) == (2 * (N + adapters), 2 * adapters, 12 * adapters)


def test_frozen_weights_rest_as_transformer_engine_multiplies_them() -> None:
    recipe = {"precision": {"matmul": "fp8"}, "trainable": {"lora": {"rank": 16, "targets": ["q_proj"]}}}
    wide, narrow = (
        states(llama_8b("dp", recipe, execution={"kernels": name}))[0] for name in ("hf-sdpa", "megatron-flash")
    )
    assert wide - narrow == N


def test_a_copy_of_a_tied_parameter_is_held_where_its_owner_is_not() -> None:
    table = 128 * 64
    body = 2 * gpt2().by_name["decoder.0"].parameters
    given_inputs = inputs(gpt2(), "2xh100", {"all": 1}, {"all": "dp"}, pp=2)
    assert states(given_inputs, 1)[0] == 2 * (body + 2 * 64 + table)
    together = inputs(gpt2(), "1xh100", {"all": 1}, {"all": "dp"})
    assert states(together)[0] == 2 * gpt2().parameters


ROLES = ["dp", "dp/zero1", "dp/zero2", "dp/zero3"]


@QUICK
@given(
    tensor=st.sampled_from([1, 2, 4]),
    scattered=st.booleans(),
    sync=st.sampled_from(["each", "last"]),
    tied=st.booleans(),
    reduce=st.sampled_from(["fp32", "bf16"]),
)
def test_more_sharding_never_needs_more_state_memory(
    *, tensor: int, scattered: bool, sync: str, tied: bool, reduce: str
) -> None:
    totals = [
        sum(
            states(
                inputs(
                    llama(tie_word_embeddings=tied, num_key_value_heads=4),
                    "8xh100",
                    {"dp": 8 // tensor, "tp": tensor},
                    {"dp": role, "tp": "tp+sp" if scattered else "tp"},
                    execution={"sync": sync},
                    recipe={"precision": {"reduce": reduce}},
                )
            )
        )
        for role in ROLES
    ]
    assert totals == sorted(totals, reverse=True)


RECOMPUTES: list[Any] = [
    "none",
    "selective",
    {"save": ["matmul", "attention", "collective"]},
    {"save": ["matmul"]},
    {"save": ["attention"]},
    {"save": ["qkv"]},
    {"repeat": ["norm", "activation"]},
    "full",
]
KERNELS = ["hf-eager", "hf-sdpa", "torch-compile", "megatron-fused", "megatron-flash"]


def kept(recompute: Any, kernels: str = "megatron-fused", role: str = "dp", ways: int = 1) -> float:
    """Bytes that one decoder layer of the small GPT-2 keeps for one micro-batch of 8 samples."""
    given_inputs = inputs(
        gpt2(), "8xh100", {"all": ways}, {"all": role}, recompute=recompute, execution={"kernels": kernels}
    )
    placement = Placement(given_inputs)
    return layer_activations(placement, placement.block_of["decoder.1"]).kept


S_B_H = 8 * 64 * 64


@pytest.mark.parametrize(
    ("recompute", "role", "ways", "per_number"),
    [
        pytest.param("selective", "tp+sp", 4, 34 / 4, id="selective with sp, equation 6"),
        pytest.param("selective", "tp", 4, 10 + 24 / 4, id="selective with tp"),
        pytest.param("full", "dp", 1, 2, id="full"),
        pytest.param("full", "tp", 4, 2, id="full, whole on every tp rank"),
        pytest.param("full", "tp+sp", 4, 2 / 4, id="full, a run of positions each"),
    ],
)
def test_recompute_keeps_korthikantis_bytes(recompute: str, role: str, ways: int, per_number: float) -> None:
    """Korthikanti 2022, table 2."""
    assert kept(recompute, role=role, ways=ways) == per_number * S_B_H


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("recompute", RECOMPUTES, ids=str)
def test_recompute_never_keeps_more(recompute: Any, kernels: str) -> None:
    assert kept(recompute, kernels) <= kept("none", kernels)


def test_a_list_keeps_the_input_and_what_it_names() -> None:
    """Matrices put out 3 + 1 + 4 + 1 widths, the core attention one; flash keeps a number for each row."""
    assert kept({"save": ["matmul"]}, "megatron-flash") == 2 * S_B_H * (1 + 9)
    assert kept({"save": ["attention"]}, "megatron-flash") == 2 * S_B_H * 2 + 4 * 8 * 64 * 4


def test_every_second_matrix_is_kept_beginning_with_the_first() -> None:
    """Of 3 + 1 + 4 + 1 widths the first and the third matrix."""
    assert kept({"save": ["half-matmul"]}, "megatron-flash") == 2 * S_B_H * (1 + 3 + 4)


def test_what_makes_queries_keys_and_values_is_kept_by_name() -> None:
    assert kept({"save": ["qkv"]}, "megatron-flash") == 2 * S_B_H * (1 + 3)


def test_repeated_norms_and_activations_leave_the_inputs_of_matrices_out() -> None:
    """Of 34 s b h two inputs of 2 behind the norms, one of 8 behind the activation (Korthikanti 2022, section 4.1)."""
    every, again = kept("none"), {word: kept({"repeat": [word]}) for word in ("norm", "activation")}
    assert (every - again["norm"], every - again["activation"]) == (4 * S_B_H, 8 * S_B_H)
    assert kept({"repeat": ["norm", "activation"]}) == every - 12 * S_B_H


def latent() -> ModelSpec:
    """A small DeepSeek-V3 without experts: 8 heads, of 16 + 8 numbers for queries and keys and 16 for values."""
    config = json.loads((CATALOG / "deepseek-v3.json").read_text(encoding="utf-8"))["config"]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    ranks = {"v_head_dim": 16, "q_lora_rank": 32, "kv_lora_rank": 16, "first_k_dense_replace": 2}
    return from_config(config | sizes | heads | ranks)


def test_repeated_up_projections_leave_queries_keys_and_values_out() -> None:
    """MLA of 8 heads: queries and keys of 24 numbers, values of 16; latents stay."""
    found = {}
    for recompute in ("none", {"repeat": ["up-projection"]}):
        given_inputs = inputs(
            latent(), "1xh100", {"all": 1}, {"all": "dp"}, recompute=recompute, execution={"kernels": "megatron-flash"}
        )
        placement = Placement(given_inputs)
        found[str(recompute)] = layer_activations(placement, placement.block_of["decoder.0"]).kept
    every, again = found.values()
    positions = 8 * 64
    assert every - again == 2 * positions * 8 * (24 + 24 + 16)


def test_of_sums_that_are_scattered_again_a_rank_keeps_its_own_positions() -> None:
    """Two a layer, and the layer's input: under `tp+sp` of half the positions, under `tp` of all."""
    plans = {
        role: inputs(gpt2(), "2xh100", {"x": 2}, {"x": role}, recompute={"save": ["collective"]})
        for role in ("tp", "tp+sp")
    }
    found = {}
    for role, given_inputs in plans.items():
        placement = Placement(given_inputs)
        found[role] = layer_activations(placement, placement.block_of["decoder.1"]).kept
    assert found["tp"] == 2 * found["tp+sp"] == 2 * S_B_H * 3


def alone(schedule: Schedule, micro_batches: int, stage: int = 0) -> Order:
    """The order of a group with one stage, which nobody waits for."""
    [order] = orders(schedule, (0,), micro_batches)
    return Order(order.stage + stage, order.kind, order.micro_batch)


def memory(stage: int = 0, in_flight: int = 1, **asked: Any) -> Memory:
    """A stage of the small Llama under dp 2."""
    model = asked.pop("model", None) or llama()
    role, order = asked.pop("role", "dp"), asked.pop("order", alone("gpipe", in_flight, stage))
    placement = Placement(inputs(model, "8xh100", {"all": 2}, {"all": role}, **asked))
    return group_memory(placement, f"g{stage}", order)


def part(found: Memory, name: str, instant: str = "backward") -> float:
    """One item of one instant."""
    return next(each for each in found.instants if each.name == instant).parts[name]


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_activations_grow_with_the_micro_batches_in_flight(in_flight: int) -> None:
    found, one = memory(in_flight=in_flight), memory()
    assert part(found, "activations", "forward") == in_flight * part(one, "activations", "forward")


@pytest.mark.parametrize(("prefetch", "layers"), [(0, 1), (1, 2), (9, 4)])
def test_prefetch_gathers_so_many_layers_more(prefetch: int, layers: int) -> None:
    found = memory(role="dp/zero3", execution={"prefetch": prefetch})
    model = llama()
    ends = model.by_name["embed"].parameters + model.by_name["head"].parameters if prefetch > 4 else 0
    assert part(found, "gathered") == 2 * (layers * model.by_name["decoder.0"].parameters + ends)


def test_without_zero3_nothing_is_gathered() -> None:
    assert part(memory(role="dp/zero2"), "gathered") == 0


@pytest.mark.parametrize("chunks", [1, 4])
def test_the_logits_exist_in_chunks(chunks: int) -> None:
    """4 samples of 64 positions of 128 classes: bf16 logits, and log-probabilities in fp32."""
    found = memory(recipe={"loss": {"chunks": chunks}})
    assert part(found, "logits") == 4 * 64 * 128 * (2 + 4) / chunks


def test_only_the_last_stage_has_logits() -> None:
    first, last = (memory(stage, pp=2) for stage in (0, 1))
    assert (part(first, "logits"), part(last, "logits") > 0) == (0, True)


def test_one_layer_at_a_time_is_recomputed() -> None:
    whole, input_alone = part(memory(), "activations"), part(memory(recompute="full"), "activations")
    found = part(memory(recompute="full"), "recomputed")
    assert 0 < found < whole - input_alone


def test_offloaded_activations_come_back_a_layer_at_a_time() -> None:
    found = memory(offload={"activations": "cpu"})
    assert part(found, "activations") == 0
    assert part(found, "recomputed") > 0


def test_the_peak_is_the_worst_instant() -> None:
    instants = (Instant("forward", {"a": 1.0, "b": 2.0}), Instant("backward", {"a": 3.0}), Instant("step", {"a": 2.0}))
    found = Memory(group="g", stages=(0,), capacity=2.5, instants=instants)
    assert (found.peak, found.worst.name, found.fits) == (3.0, "backward", False)


def test_gradients_come_as_activations_go() -> None:
    """The first backward starts without gradients. A later one has them, but under gpipe a micro-batch less, so here
    the first is the worse; under 1f1b as many micro-batches.
    """
    single, piled, turns = memory(), memory(in_flight=2), memory(order=alone("1f1b", 2))
    for found in (single, piled):
        assert part(found, "gradients") == 0
    assert part(piled, "activations") == 2 * part(single, "activations")
    assert part(turns, "activations") == part(single, "activations")
    assert part(turns, "gradients") == part(single, "gradients", "step")


def test_megatron_keeps_gradient_buffers_from_step_to_step() -> None:
    found = memory(execution={"kernels": "megatron-flash"})
    assert part(found, "gradients", "forward") == part(found, "gradients", "step")


def test_the_smallest_device_of_a_group_decides() -> None:
    given_inputs = inputs(llama(), "1xh100+1xv100", {"all": 2}, {"all": "dp"})
    assert group_memory(Placement(given_inputs), "g0", alone("gpipe", 1)).capacity == 32 * 2**30


def test_deepspeed_reduces_from_a_bucket_and_copies_the_shard_that_it_steps() -> None:
    """Half of 16-bit gradients in fp32, as elsewhere, and once more as they are; and a bucket of 5e8 numbers."""
    plain, found = (
        memory(role="dp/zero1", recipe=BF16, execution={"kernels": f"megatron-{name}"})
        for name in ("fused", "deepspeed")
    )
    half = llama().parameters / 2
    assert part(plain, "widened", "step") == 4 * half
    assert part(found, "widened", "step") == (4 + 2) * half + 2 * 5e8


def test_deepspeed_adds_16_bit_gradients_up_in_float32_beside_them() -> None:
    found = memory(role="dp/zero1", execution={"kernels": "megatron-deepspeed"})
    assert part(found, "gradients", "step") == (4 + 2) * llama().parameters


def test_deepspeed_keeps_what_a_stage_hands_on() -> None:
    plain, found = (
        memory(pp=2, recompute="full", execution={"kernels": f"megatron-{name}"}) for name in ("fused", "deepspeed")
    )
    assert part(found, "activations") - part(plain, "activations") == 2 * 4 * 64 * 64


def test_deepspeed_gathers_one_matrix_at_a_time() -> None:
    found = memory(role="dp/zero3", execution={"kernels": "megatron-deepspeed"})
    matrices = [op.parameters() for layer in llama().layers for op in layer.stack.operators]
    assert part(found, "gathered") == pytest.approx(2 * max(matrices))


def test_internevos_optimizer_makes_two_copies_on_its_way() -> None:
    plain, found = (
        memory(role="dp/zero1", recipe=BF16, execution={"kernels": name}) for name in ("nanotron", "internevo")
    )
    half = llama().parameters / 2
    assert part(found, "widened", "step") - part(plain, "widened", "step") == (2 * 4 + 2) * half + 2 * 2**29


def test_the_smaller_of_a_layers_backward_and_the_losss_lies_apart() -> None:
    found = memory(recompute="full")
    layer, loss = part(found, "recomputed"), part(found, "loss")
    assert (layer > 0) != (loss > 0)
    assert 0 < found.unlike <= max(layer, loss)
    assert found.footprint.reserved.low - replace(found, unlike=0.0).footprint.reserved.low == found.unlike


def test_segments_that_grow_leave_fewer_gaps() -> None:
    plain, found = (
        memory(in_flight=4, order=alone("gpipe", 4), recompute="full", execution={"expandable_segments": grown})
        for grown in (False, True)
    )
    assert found.footprint.allocated == plain.footprint.allocated
    assert found.footprint.device.high < plain.footprint.device.high


@pytest.mark.parametrize(("length", "more"), [(16, False), (512, True)])
def test_eager_attention_needs_gradients_of_long_rows_of_scores_on_its_way(length: int, *, more: bool) -> None:
    given_inputs = inputs(
        llama(), "1xh100", {"all": 1}, {"all": "dp"}, sequence=length, execution={"kernels": "hf-eager"}
    )
    placement = Placement(given_inputs)
    layer = layer_activations(placement, placement.block_of["decoder.0"])
    assert (layer.whole > layer.kept) == more


def test_copies_that_an_optimizer_makes_do_not_depend_on_how_gradients_add_up() -> None:
    """InternEvo's AdamW: twice float32 beside each number that it steps and the reduced shard once more; its float32
    gradient is one more where gradients add up in bf16.
    """
    found = []
    for reduce in ("bf16", "fp32"):
        recipe = {"precision": {"reduce": reduce}}
        given = inputs(
            llama(), "8xh100", {"all": 8}, {"all": "dp/zero1"}, recipe=recipe, execution={"kernels": "internevo"}
        )
        placement = Placement(given)
        block = placement.block_of["decoder.1"]
        found.append(layer_states(placement, block).widened / (block.stack.parameters / 8))
    assert found == [2 * 4 + 4 + 2, 2 * 4 + 4]


def test_what_no_gradient_comes_by_holds_nothing_in_backward() -> None:
    loss = Share(Loss(classes=16), Work(1, 8, 8), learns=False, passes=False)
    kernels = KERNEL_SETS["hf-eager"]
    assert kernels.use(loss, Storage()).passing == 0 < kernels.use(loss._replace(passes=True), Storage()).passing
