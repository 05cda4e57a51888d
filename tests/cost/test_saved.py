"""What transformers' kernel sets keep of small models of every family, against what autograd keeps."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from meshwright.cost.habits import HABITS, Habits  # noqa: E402
from tests.cost.saved import SHARED, measured, predicted  # noqa: E402
from tests.model.samples import SAMPLES  # noqa: E402
from tests.model.samples.build import BATCH, LENGTH, Sample  # noqa: E402

WITHIN = 0.02
INDICES = 16 * BATCH * LENGTH
"""Two numbers of int64 a position: what indices of positions and token types take, which some code makes for every
sample, some for one, and some keeps in a buffer. It is much beside the 32 values of a small model's position, and
nothing beside those of a real one."""
LARGER: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"moe_intermediate_size": 40, "hidden_size": 128},
    "deepseek_v3": {"moe_intermediate_size": 40, "hidden_size": 128},
    "gptj": {"n_embd": 64},
    "qwen2_moe": {"moe_intermediate_size": 16},
    "qwen3_moe": {"moe_intermediate_size": 16},
}
"""Sizes for which torch has grouped products in bf16, and beside which the indices of chosen experts (DeepSeek's are
chosen by groups) and the rotary tables that GPT-J makes in each layer are small.
"""


def _sized(sample: Sample) -> Sample:
    return replace(sample, config=sample.config | LARGER.get(sample.config["model_type"], {}))


def _family(sample: Sample) -> str:
    return str(sample.config["model_type"])


STATE_SPACE = frozenset({"falcon_mamba", "jamba", "mamba", "mamba2"})
ALL = [_sized(sample) for sample in SAMPLES if _family(sample) not in STATE_SPACE]
FIRST = list({_family(sample): sample for sample in reversed(ALL)}.values())
"""One of each family."""
by_name = {"ids": lambda sample: sample.name}


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
    total, indices = "the whole", {name: 0 if "." in name else INDICES for name in said}
    said, found = said | {total: sum(said.values())}, found | {total: sum(found.values())}
    return {
        name: (said[name], found[name])
        for name in said
        if name != SHARED and abs(said[name] - found[name]) > max(WITHIN * found[name], indices.get(name, 0))
    }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("sample", ALL, **by_name)
def test_each_layer_keeps_what_autograd_keeps(sample: Sample, attention: str) -> None:
    """In bf16, layer by layer and in all."""
    if attention == "sdpa" and not has_sdpa(sample):
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            sample.build("sdpa")
        assert predicted(sample, "hf-sdpa", 2)["head"] == predicted(sample, "hf-eager", 2)["head"]
        return
    assert differences(sample, attention, 2) == {}


@pytest.mark.parametrize("sample", FIRST, **by_name)
def test_each_layer_keeps_what_autograd_keeps_in_float32(sample: Sample) -> None:
    assert differences(sample, "sdpa" if has_sdpa(sample) else "eager", 4) == {}


@pytest.mark.parametrize("sample", FIRST, **by_name)
def test_under_full_recompute_numbered_layers_keep_their_input(sample: Sample) -> None:
    """torch.utils.checkpoint around each numbered layer."""
    assert differences(sample, "eager", 2, "full") == {}
