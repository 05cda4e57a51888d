"""What stays between the two halves of a backward, against torch.distributed.pipelining on small models."""

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from meshwright.cost.activations import layer_activations  # noqa: E402
from meshwright.cost.placement import Placement  # noqa: E402
from meshwright.cost.saved import shared_bytes  # noqa: E402
from meshwright.model.hf_config import from_config  # noqa: E402
from tests.cost.build import inputs  # noqa: E402

SAMPLES, LENGTH = 4, 128
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 2, "vocab_size": 512}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SIZES | {"model_type": "llama"},
    "qwen2, biases": SIZES | {"model_type": "qwen2"},
    "qwen3, norms of heads": SIZES | {"model_type": "qwen3", "head_dim": 32},
    "gpt2, layer norms and dropout": GPT2,
    "mixtral, experts": SIZES | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Stage:
    """A small decoder without its embedding, between a stage before and one after it."""

    def __init__(self, config: dict[str, Any], attention: str, dtype: Any, *, recomputes: bool) -> None:
        torch.manual_seed(0)
        settings = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=attention)
        self.model = model.to(dtype).train()
        if recomputes:
            model.activation_checkpointing_enable()
        table = model.get_input_embeddings().weight
        self.weights = [parameter for parameter in model.parameters() if parameter is not table]
        self.came_in = torch.randn(SAMPLES, LENGTH, model.config.hidden_size, dtype=dtype, requires_grad=True)
        self.comes_back = torch.randn(SAMPLES, LENGTH, model.config.vocab_size, dtype=dtype)

    def first_half(self) -> list[dict[str, Any]]:
        """Forward, and the gradient of the input, which the stage before gets; what waits for the second half."""
        output = self.model(inputs_embeds=self.came_in, use_cache=False).logits
        _, waiting = stage_backward_input([output], [self.comes_back], [self.came_in], iter(self.weights))
        self.came_in.grad = None
        return waiting

    def held(self) -> int:
        """Bytes between the halves: what the first takes from the allocator and keeps, and what the neighbours gave."""
        stage_backward_weight(iter(self.weights), self.first_half())  # makes the gradients' buffers
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            waiting = self.first_half()
            gc.collect()
        notes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        stage_backward_weight(iter(self.weights), waiting)
        given = int(self.came_in.nbytes + self.comes_back.nbytes)
        return sum(int(event.nbytes()) for event in notes) + given


def predicted(config: dict[str, Any], kernels: str, dtype: str, recompute: str) -> float:
    """The same by the kernel set, on a CPU."""
    given = inputs(
        from_config(config),
        "cpu:1",
        {"all": 1},
        {"all": "dp"},
        batch=SAMPLES,
        sequence=LENGTH,
        rows=[{"span": "embed"}, {"span": "decoder.0-1", "recompute": recompute}, {"span": "head"}],
        recipe={"precision": {"compute": dtype}},
        execution={"kernels": kernels},
    )
    placement = Placement(given)
    blocks = [block for block in placement.blocks if block.span != "embed"]
    layers = sum(len(block.names) * layer_activations(placement, block).weights for block in blocks)
    return layers + shared_bytes(given.model, kernels, placement.lengths, SAMPLES, placement.storage("g0"))


WAYS = [("sdpa", "fp32"), ("eager", "fp32"), ("sdpa", "bf16"), ("eager", "bf16")]
CASES = [("llama", *way) for way in WAYS] + [(name, "sdpa", "bf16") for name in CONFIGS if name != "llama"]


@pytest.mark.parametrize(("name", "attention", "dtype"), CASES)
def test_all_that_forward_kept_stays_and_the_gradients_that_weights_wait_for(
    name: str, attention: str, dtype: str
) -> None:
    config = CONFIGS[name]
    between = Stage(config, attention, DTYPES[dtype], recomputes=False).held()
    assert between == pytest.approx(predicted(config, f"hf-{attention}", dtype, "none"), rel=0.03)


def test_what_was_recomputed_for_the_first_half_is_let_go() -> None:
    """And computed again for the second."""
    between = Stage(CONFIGS["llama"], "sdpa", torch.float32, recomputes=True).held()
    assert between == pytest.approx(predicted(CONFIGS["llama"], "hf-sdpa", "fp32", "full"), rel=0.03)
