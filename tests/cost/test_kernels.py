"""What kernel sets keep, against what autograd keeps and what the papers count."""

from collections.abc import Callable
from typing import Any

import pytest

from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.saved import looked_at, shared_bytes, stack_uses
from meshwright.cost.shares import Extent, Learning, Share, layer_shares
from meshwright.cost.uses import Storage, storage_of
from meshwright.cost.ways import Ways
from meshwright.model.hf_config import from_config
from meshwright.model.operators import Activation, Attention, Linear, Loss, Norm, Rotary
from meshwright.model.spec import Part
from meshwright.model.work import Work
from tests.cost.build import GPT2, LLAMA

SAMPLES, LENGTH = 2, 64
DROPPED = GPT2 | {"resid_pdrop": 0.1, "attn_pdrop": 0.1}
KEPT_WHOLE = GPT2 | {"resid_pdrop": 0.0, "attn_pdrop": 0.0}
Measure = Callable[[dict[str, Any], str, str], float]


def predicted(
    config: dict[str, Any], kernels: str, element: float, ways: Ways | None = None, backend: str = "gloo"
) -> float:
    """Bytes that one decoder layer keeps for one micro-batch."""
    model = from_config(config)
    stack = next(stack for stack in model.stacks if stack.span.startswith("decoder"))
    parts = [(_with_activation(part, config.get("activation_function")), ways or Ways()) for part in stack.parts]
    shares = layer_shares(parts, Extent(SAMPLES, {"tokens": LENGTH}, "tokens"), Learning())
    storage = storage_of(element, backend, model.family)
    return sum(KERNEL_SETS[kernels].use(share, storage).kept for part in shares for share in part)


def _with_activation(part: Part, function: str | None) -> Part:
    changed = {"function": function} if function else {}
    operators = tuple(op.model_copy(update=changed) if isinstance(op, Activation) else op for op in part.operators)
    return part.model_copy(update={"operators": operators})


@pytest.fixture(scope="module")
def measured() -> Measure:
    """Bytes that autograd keeps of the second decoder layer: each storage once, parameters and buffers left out."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def measure(config: dict[str, Any], attention: str, dtype: str) -> float:
        settings = transformers.AutoConfig.for_model(**config, bos_token_id=0, eos_token_id=0)
        built = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=attention)
        model = built.to(getattr(torch, dtype)).train()
        layer = next(m for name, m in model.named_modules() if name.endswith((".h.1", ".layers.1")))
        known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        found: dict[int, Any] = {}
        here = [False]

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if here[0] and storage.data_ptr() not in known:
                found.setdefault(storage.data_ptr(), storage)
            known.add(storage.data_ptr())
            return tensor

        layer.register_forward_pre_hook(lambda *_: here.__setitem__(0, True))
        layer.register_forward_hook(lambda *_: here.__setitem__(0, False))
        ids = torch.randint(0, config["vocab_size"], (SAMPLES, LENGTH))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=ids, use_cache=False)
        return float(sum(storage.nbytes() for storage in found.values()))

    return measure


@pytest.mark.parametrize(
    ("config", "dtype", "element"),
    [
        pytest.param(DROPPED, "bfloat16", 2, id="gpt2 bf16"),
        pytest.param(DROPPED, "float32", 4, id="gpt2 fp32"),
        pytest.param(KEPT_WHOLE, "bfloat16", 2, id="gpt2 without dropout"),
        pytest.param(KEPT_WHOLE | {"activation_function": "relu"}, "bfloat16", 2, id="relu"),
        pytest.param(DROPPED | {"activation_function": "quick_gelu"}, "bfloat16", 2, id="quick gelu"),
        pytest.param(DROPPED | {"activation_function": "gelu"}, "bfloat16", 2, id="gelu"),
        pytest.param(LLAMA, "bfloat16", 2, id="llama bf16"),
        pytest.param(LLAMA, "float32", 4, id="llama fp32"),
        pytest.param(LLAMA, "float64", 8, id="llama fp64"),
        pytest.param(LLAMA | {"attention_dropout": 0.1}, "bfloat16", 2, id="llama with dropout"),
        pytest.param(LLAMA | {"num_key_value_heads": 4}, "bfloat16", 2, id="llama without grouped heads"),
    ],
)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hf_kernel_sets_keep_what_autograd_keeps(
    measured: Measure, config: dict[str, Any], dtype: str, element: int, attention: str
) -> None:
    assert predicted(config, f"hf-{attention}", element) == measured(config, attention, dtype)


def test_gpt2_keeps_84_bytes_eager_and_114_with_sdpa_on_cpu() -> None:
    """Per sample, position and hidden number, in bf16 with a s / h = 4, besides the norms' statistics."""
    numbers = SAMPLES * LENGTH * GPT2["n_embd"]
    assert [int(predicted(DROPPED, kernels, 2) / numbers) for kernels in ("hf-eager", "hf-sdpa")] == [84, 114]


@pytest.mark.parametrize(
    ("config", "per_number"),
    [
        pytest.param(LLAMA, 29.375, id="llama"),
        pytest.param(GPT2 | {"attn_pdrop": 0.0}, 34.375, id="gpt2"),
        pytest.param(GPT2, 77.1875, id="gpt2 with attention dropout"),
    ],
)
def test_compiled_layers_keep_what_the_partitioner_was_measured_to_keep(
    config: dict[str, Any], per_number: float
) -> None:
    """Measured once with torch 2.13, backend aot_eager_decomp_partition, bf16 on CPU: bytes per s b h."""
    kept = predicted(config, "torch-compile", 2) / (SAMPLES * LENGTH * 64)
    assert kept == pytest.approx(per_number, rel=0.01)


@pytest.mark.parametrize(
    ("ways", "formula"),
    [
        pytest.param(Ways(), lambda a_s_h, t: 34 + 5 * a_s_h, id="one rank, equation 1"),
        pytest.param(Ways(tensor=2), lambda a_s_h, t: 10 + 24 / t + 5 * a_s_h / t, id="tp, equation 2"),
        pytest.param(Ways(tensor=2, scattered=2), lambda a_s_h, t: (34 + 5 * a_s_h) / t, id="tp+sp, equation 4"),
        pytest.param(Ways(tensor=4, scattered=4), lambda a_s_h, t: (34 + 5 * a_s_h) / t, id="tp+sp of 4, equation 4"),
    ],
)
def test_megatron_fused_keeps_korthikantis_bytes(ways: Ways, formula: Callable[[float, int], float]) -> None:
    """Korthikanti 2022, table 2: bytes of one layer, in units of s b h."""
    heads, hidden = GPT2["n_head"], GPT2["n_embd"]
    expected = SAMPLES * LENGTH * hidden * formula(heads * LENGTH / hidden, ways.tensor)
    assert predicted(GPT2, "megatron-fused", 2, ways, backend="nccl") == expected


def test_flash_attention_keeps_one_number_a_row_instead_of_the_scores() -> None:
    """34 s b h, less the mask of nothing, and 4 bytes for each head and position."""
    numbers, rows = SAMPLES * LENGTH * GPT2["n_embd"], SAMPLES * LENGTH * GPT2["n_head"]
    assert predicted(GPT2, "megatron-flash", 2, backend="nccl") == 34 * numbers + 4 * rows


GELU = GPT2 | {"activation_function": "gelu"}
"""One kernel in torch too, as Megatron-LM's."""


@pytest.mark.parametrize("kernels", ["megatron-eager", "megatron-fused-eager"])
def test_unfused_kernels_of_megatron_keep_the_same_and_statistics_of_norms(kernels: str) -> None:
    """By hand: 34 + 5 a s / h bytes per s b h, of which softmax, its mask and the dropped weights 2 + 1 + 2 a s^2 b;
    and a mean and a deviation of 4 bytes a position for each of two norms.
    """
    numbers, scores = SAMPLES * LENGTH * 64, SAMPLES * 4 * LENGTH * LENGTH
    assert predicted(GELU, kernels, 2, backend="nccl") == 34 * numbers + 5 * scores + 2 * 8 * SAMPLES * LENGTH


def test_a_softmax_in_float32_keeps_that_beside_its_weights() -> None:
    """Of eager Llama 4 + 2 bytes a score, of the fused kernel 2; keys and values copied for every head in both."""
    eager, fused = (predicted(LLAMA, name, 2, backend="nccl") for name in ("megatron-eager", "megatron-fused-eager"))
    assert eager - fused == 4 * SAMPLES * 4 * LENGTH * LENGTH


def test_flash_attention_keeps_no_mask_for_its_own_dropout() -> None:
    """By hand: 34 s b h, 4 bytes for each head and position, the statistics of two norms, and 2 s b h that the kernel
    put out for several samples, beside their copy.
    """
    numbers, rows, statistics = SAMPLES * LENGTH * 64, SAMPLES * LENGTH * 4, 2 * 8 * SAMPLES * LENGTH
    assert predicted(GELU, "megatron-flash-eager", 2, backend="nccl") == (34 + 2) * numbers + 4 * rows + statistics


def test_transformer_engine_keeps_inputs_of_matrices_as_they_were_multiplied() -> None:
    """By hand, of a Llama layer in fp8: two norms' inputs in bf16; two inputs, the core's output and the product of
    gate and up in one byte; queries, keys, values, the output once more, gate and up in two; 4 bytes a row.
    """
    spec = from_config(LLAMA)
    kept = {}
    for narrow in (None, 1):
        storage = storage_of(2, "nccl", "llama")._replace(narrow=narrow)
        uses = stack_uses(spec.stacks[1], "megatron-flash", Extent(SAMPLES, {"tokens": LENGTH}, "tokens"), storage)
        kept[narrow] = sum(use.kept for use in uses)
    hidden, ffn = LLAMA["hidden_size"], LLAMA["intermediate_size"]
    inputs_of_matrices = hidden + hidden + hidden + ffn
    assert kept[None] - kept[1] == SAMPLES * LENGTH * (inputs_of_matrices - 2 * hidden)


def test_megatrons_loss_is_cut_into_more_kernels_than_a_fused_one_and_keeps_as_much() -> None:
    """Of 16 x 7 logits in fp16: 38 bytes forward and 14 backward for each, a third and two thirds of them all; where
    kernels are joined, 30 and 14; fused they are read and written in float32, 2 + 4. All keep float32.
    """
    loss, work = Loss(classes=7), Work(1, 16, 16)
    share = Share(loss, work, learns=False, passes=True)
    cut, joined, fused = (
        KERNEL_SETS[name].use(share, storage_of(2, "nccl", "gpt2"))
        for name in ("megatron-fused", "megatron-flash", "internevo")
    )
    assert (cut.moved, joined.moved, fused.moved) == pytest.approx((16 * 7 * 52 / 3, 16 * 7 * 44 / 3, 16 * 7 * 6))
    assert cut.kept == joined.kept == fused.kept == 16 * 7 * 4


def test_a_gpu_keeps_dropout_masks_in_bytes() -> None:
    on_cpu, on_gpu = (predicted(DROPPED, "hf-eager", 2, backend=backend) for backend in ("gloo", "nccl"))
    masks = SAMPLES * LENGTH * (2 * GPT2["n_embd"] + GPT2["n_head"] * LENGTH)
    statistics = 4 * SAMPLES * LENGTH
    assert on_cpu - on_gpu == masks - 2 * statistics


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_flash_sets_keep_less_than_eager_ones_on_gpus(config: dict[str, Any]) -> None:
    kept = {name: predicted(config, name, 2, backend="nccl") for name in KERNEL_SETS}
    assert kept["torch-compile"] < kept["hf-sdpa"] < kept["hf-eager"]
    assert kept["megatron-flash"] < kept["megatron-fused"] < kept["hf-eager"]


def test_every_kernel_set_has_a_kernel_for_every_operator() -> None:
    from typing import get_args

    from meshwright.model.operators import Operator

    kinds = set(get_args(get_args(Operator)[0]))
    assert all(set(kernels.kernels) == kinds for kernels in KERNEL_SETS.values())


def test_the_kernel_sets_are_those_that_a_plan_may_name() -> None:
    from typing import get_args

    from meshwright.plan.spec import Execution

    assert set(KERNEL_SETS) == set(get_args(Execution.model_fields["kernels"].annotation))


def test_an_encoders_output_is_kept_once_for_all_layers_that_look_at_it() -> None:
    sizes = {
        "model_type": "t5",
        "vocab_size": 48,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 40,
        "num_layers": 3,
        "num_heads": 4,
    }
    model = from_config(sizes)
    lengths = {"source": 20, "target": 12}
    assert looked_at(model.stacks) == {"source": 32}
    assert shared_bytes(model, "megatron-flash", lengths, SAMPLES, storage_of(2, "nccl", "t5")) == 2 * SAMPLES * 20 * 32
    layer = next(stack for stack in model.stacks if stack.span.startswith("decoder."))
    part = next(part for part in layer.parts if part.name == "cross_attention")
    shares = layer_shares([(part, Ways())], Extent(SAMPLES, lengths, "target"), Learning())[0]
    assert [share.fresh for share in shares if isinstance(share.operator, Linear)] == [True, False, False, True]


@pytest.mark.parametrize(("element", "bytes_moved"), [(2, 124), (4, 120)])
def test_an_eager_norm_of_2023_reads_and_writes_what_its_kernels_do_forward_and_backward(
    element: int, bytes_moved: int
) -> None:
    """Counted by hand (`norm_divided`); backward is taken to move twice as much as forward."""
    share = Share(Norm(kind="rms", width=8), Work(2, 5, 5), learns=True, passes=True)
    moved = KERNEL_SETS["megatron-flash-eager"].use(share, Storage(element)).moved
    assert 3 * moved == pytest.approx(2 * 5 * 8 * bytes_moved)


def test_torchtitans_rotary_embedding_and_copies_of_keys_move_more_than_compiled_ones() -> None:
    """Ten tensors of 8 numbers for two; of keys and values, a head of 4 each, 16 positions are read and four heads
    written.
    """
    work, storage = Work(1, 16, 16), storage_of(2, "nccl", "llama")
    turn, core = Rotary(width=8), Attention(heads=4, kv_heads=1, head_dim=4)
    more = [
        KERNEL_SETS["torchtitan"].use(one, storage).moved - KERNEL_SETS["torch-compile"].use(one, storage).moved
        for one in (Share(each, work, learns=False, passes=True, keys=16) for each in (turn, core))
    ]
    assert more == [2 * 8 * 16 * 8, 2 * 2 * 16 * 4 * (1 + 4)]
