"""What transformers' kernel sets keep of small models of every family, against what autograd keeps."""

from dataclasses import replace
from itertools import compress
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from meshwright.cost.habits import HABITS, Habits  # noqa: E402
from meshwright.cost.kernels import KERNEL_SETS  # noqa: E402
from meshwright.cost.saved import stack_uses  # noqa: E402
from meshwright.cost.shares import Extent  # noqa: E402
from meshwright.cost.uses import storage_of  # noqa: E402
from meshwright.model.operators import Loss, Norm  # noqa: E402
from tests.cost.saved import SHARED, measured, predicted  # noqa: E402
from tests.model.samples import SAMPLES  # noqa: E402
from tests.model.samples.build import BATCH, LENGTH, Sample  # noqa: E402

WHOLE = "the whole"
WITHIN = 0.02
INDICES = 16 * BATCH * LENGTH
"""Two numbers of int64 a position: what indices of positions and token types take, which some code makes for every
sample, some for one, and some keeps in a buffer. It is much beside the 32 values of a small model's position, and
nothing beside those of a real one."""
LARGER: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"moe_intermediate_size": 40, "hidden_size": 128},
    "deepseek_v3": {"moe_intermediate_size": 40, "hidden_size": 128},
    "falcon_mamba": {"vocab_size": 1024},
    "gptj": {"n_embd": 64},
    "mamba": {"vocab_size": 1024},
    "mamba2": {"vocab_size": 1024, "chunk_size": 8},
    "qwen2_moe": {"moe_intermediate_size": 16},
    "qwen3_moe": {"moe_intermediate_size": 16},
}
"""Sizes for which torch has grouped products in bf16, and beside which the indices of chosen experts (DeepSeek's are
chosen by groups) and the rotary tables that GPT-J makes in each layer are small. The last norm of a Mamba works on
float32, which its small head would notice; a chunk of Mamba 2 longer than the sequence is not small.
"""


def _sized(sample: Sample) -> Sample:
    return replace(sample, config=sample.config | LARGER.get(sample.config["model_type"], {}))


def _family(sample: Sample) -> str:
    return str(sample.config["model_type"])


ALL = [_sized(sample) for sample in SAMPLES]
FIRST = list({_family(sample): sample for sample in reversed(ALL)}.values())
"""One of each family."""


ROUNDED = frozenset(
    {"deepseek-v2", "deepseek-v3", "falcon-7b", "falcon-mamba", "gpt-oss", "gptj", "jamba"}
    | {"mamba2", "olmoe", "qwen2-moe", "qwen3-moe", "swin"}
)
"""Whose layers keep some indices, tables or single numbers more or fewer than is counted."""


def has_sdpa(sample: Sample) -> bool:
    """Whether transformers has the family's attention as SDPA; it refuses to build others."""
    return HABITS.get(sample.spec.family, Habits()).sdpa


def differences(
    sample: Sample, attention: str, element: int, recompute: str = "none"
) -> dict[str, tuple[float, float]]:
    """Layers, and the whole, whose bytes are off: predicted and measured."""
    said = predicted(sample, f"hf-{attention}", element, recompute=recompute)
    found = measured(sample, attention, {2: torch.bfloat16, 4: torch.float32}[element], recompute=recompute)
    if recompute == "full":  # what a layer is handed besides is the same with and without
        said[SHARED] = found[SHARED] = 0
    said, found = said | {WHOLE: sum(said.values())}, found | {WHOLE: sum(found.values())}
    indices = {name: 0 if "." in name else INDICES for name in said} | {WHOLE: 2 * INDICES}
    return {
        name: (said[name], found[name])
        for name in said
        if name != SHARED and abs(said[name] - found[name]) > max(WITHIN * found[name], indices[name])
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("sample", ALL, ids=lambda sample: sample.name)
def test_each_layer_keeps_what_autograd_keeps(sample: Sample, attention: str) -> None:
    """In bf16, layer by layer and in all."""
    if attention == "sdpa" and not has_sdpa(sample):
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            sample.build("sdpa")
        assert predicted(sample, "hf-sdpa", 2)["head"] == predicted(sample, "hf-eager", 2)["head"]
        return
    assert differences(sample, attention, 2) == {}


@pytest.mark.parametrize(
    "sample", [sample for sample in FIRST if sample.name not in ROUNDED], ids=lambda sample: sample.name
)
def test_numbered_layers_keep_to_the_byte_what_autograd_keeps(sample: Sample) -> None:
    said, found = predicted(sample, "hf-eager", 2), measured(sample, "eager", torch.bfloat16)
    numbered = [name for name in said if "." in name]
    assert [said[name] for name in numbered] == [found[name] for name in numbered]


@pytest.mark.parametrize("sample", FIRST, ids=lambda sample: sample.name)
def test_each_layer_keeps_what_autograd_keeps_in_float32(sample: Sample) -> None:
    assert differences(sample, "sdpa" if has_sdpa(sample) else "eager", 4) == {}


@pytest.mark.parametrize("sample", FIRST, ids=lambda sample: sample.name)
def test_fused_kernels_move_no_more_than_those_they_are_made_of(sample: Sample) -> None:
    """Per layer, in bf16 on GPUs, for 2,048 positions of what has no length of its own. Megatron-LM's loss of 2022 is
    cut into more kernels than torch's (`loss_uses.loss_cut`), as is the RMS norm of 2023 (`uses.norm_divided`): these
    are left out, the norm where it is compared with another.
    """
    spec = sample.spec
    lengths = {name: stream.length or 2048 for name, stream in spec.streams.items()}
    storage = storage_of(2, "nccl", spec.family)
    for stack in spec.stacks:
        extent = Extent(BATCH, lengths, stack.stream)
        counted, others = (
            [not isinstance(op, left_out) for op in stack.operators] for left_out in ((Loss,), (Loss, Norm))
        )
        moved, but_norms = (
            {
                name: sum(use.moved for use in compress(stack_uses(stack, name, extent, storage), these))
                for name in KERNEL_SETS
            }
            for these in (counted, others)
        )
        if any(counted):
            assert 0 < moved["torch-compile"] <= moved["hf-sdpa"]
            assert 0 < moved["megatron-flash"] <= moved["megatron-fused"] <= moved["megatron-fused-eager"]
            assert moved["megatron-flash"] <= moved["megatron-flash-eager"]
            assert moved["megatron-fused-eager"] <= moved["megatron-eager"]
            assert but_norms["megatron-eager"] <= but_norms["hf-eager"]


@pytest.mark.parametrize("sample", FIRST, ids=lambda sample: sample.name)
def test_under_full_recompute_numbered_layers_keep_their_input(sample: Sample) -> None:
    """torch.utils.checkpoint around each numbered layer."""
    assert differences(sample, "eager", 2, "full") == {}
