"""The peak of a small Llama in one process, against what torch's allocator notes."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from meshwright.cost.estimate import estimate_plan  # noqa: E402
from meshwright.runtime.loss import next_token_labels, token_loss  # noqa: E402
from tests.cost.build import inputs, llama  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
SAMPLES, LENGTH = 4, 128
FP32 = {"precision": {"compute": "fp32", "reduce": "fp32", "master": None}}


def measured(micro_batches: int, attention: str) -> float:
    """Bytes at the peak of the second step: parameters and AdamW's moments, and what the allocator notes on top."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation=attention)).train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ids = torch.randint(0, SIZES["vocab_size"], (SAMPLES, LENGTH))

    def step() -> None:
        for part in ids.chunk(micro_batches):
            output = model(input_ids=part, use_cache=False)  # held until backward is through, as the runtime does
            (token_loss(output.logits, next_token_labels(part)) / ids.numel()).backward()
            del output
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    notes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(notes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return float(peak + 3 * sum(parameter.nbytes for parameter in model.parameters()))


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_peak_is_what_the_allocator_notes(micro_batches: int, attention: str) -> None:
    found = estimate_plan(
        inputs(
            llama(**SIZES),
            "cpu:1",
            {"all": 1},
            {"all": "dp"},
            batch=SAMPLES,
            sequence=LENGTH,
            micro_batches=micro_batches,
            recipe=FP32,
            execution={"kernels": f"hf-{attention}"},
        )
    )
    assert found.memory_peak_bytes == pytest.approx(measured(micro_batches, attention), rel=0.03)
