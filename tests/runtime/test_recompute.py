"""What is kept and computed again under a list of saved operators: the same gradients, and the bytes of `cost`."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

import meshwright as mw
from meshwright.cost.activations import layer_activations
from meshwright.cost.placement import Placement
from meshwright.errors import PlanError
from meshwright.model.resolve import resolve_model
from meshwright.plan.resolve import read_inputs
from meshwright.plan.spec import Recompute, Save
from meshwright.runtime.recompute import recompute_layer

LAYERS, SAMPLES, LENGTH = 2, 2, 64
LISTS: tuple[tuple[str, ...], ...] = (
    ("matmul",),
    ("half-matmul",),
    ("qkv",),
    ("attention",),
    ("collective",),
    ("matmul", "attention"),
    ("half-matmul", "attention", "collective"),
)


def _llama() -> nn.Module:
    config: dict[str, Any] = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**config, vocab_size=256, hidden_size=64, intermediate_size=160))


def _gpt2() -> nn.Module:
    dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=LAYERS, n_head=4, **dropped))


BUILT = {"llama": _llama, "gpt2": _gpt2}


def _built(family: str, how: Recompute) -> Any:
    torch.manual_seed(0)
    module: Any = BUILT[family]()
    for layer in resolve_model(module.config).layers:
        if layer.index is not None:
            recompute_layer(module, layer, how)
    return module


def _ids() -> Tensor:
    return torch.randint(0, 256, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def _gradients(family: str, how: Recompute) -> list[Tensor]:
    module = _built(family, how)
    module(_ids()).logits.square().sum().backward()
    return [each.grad for each in module.parameters() if each.grad is not None]


def _save(words: tuple[str, ...]) -> Save:
    return Save.model_validate({"save": words})


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
@pytest.mark.parametrize("family", BUILT)
def test_gradients_are_those_of_a_layer_that_keeps_all(family: str, words: tuple[str, ...]) -> None:
    for found, wanted in zip(_gradients(family, _save(words)), _gradients(family, "none"), strict=True):
        assert torch.equal(found, wanted)


def _kept(family: str, how: Recompute) -> int:
    """Bytes that the allocator holds after a forward and did not before."""
    module = _built(family, how)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        logits = module(_ids()).logits
    assert logits.requires_grad
    events = profiler.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


def _said(family: str, how: Recompute) -> float:
    """The same by the cost core, of the numbered layers alone."""
    recipe = mw.recipe(
        global_batch=SAMPLES, sequence=LENGTH, precision={"compute": "fp32", "reduce": "fp32", "master": None}
    )
    model, cluster = resolve_model(BUILT[family]().config), mw.cluster("cpu:1")
    plan = mw.uniform_plan(model, cluster, recipe, recompute=how, micro_batches=1)
    placement = Placement(read_inputs(plan, model=model, cluster=cluster, recipe=recipe))
    layers = [layer.name for layer in model.layers if layer.index is not None]
    return sum(layer_activations(placement, placement.block_of[name]).kept for name in layers)


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
@pytest.mark.parametrize("family", BUILT)
def test_a_forward_keeps_what_was_predicted(family: str, words: tuple[str, ...]) -> None:
    """Beyond what full recompute keeps; a number a position may be more or less."""
    found, said = (of(family, _save(words)) - of(family, "full") for of in (_kept, _said))
    assert found == pytest.approx(said, rel=0.01, abs=64)


class _Kernels(TorchDispatchMode):
    """Counts kernels of products and of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        self.ran["product"] += name in ("mm", "addmm", "bmm")
        self.ran["attention"] += name == "_scaled_dot_product_flash_attention_for_cpu"
        return func(*args, **(kwargs or {}))


def _again(family: str, how: Recompute) -> tuple[int, int]:
    """Products, and attentions, of one layer's forward that its backward runs again."""
    module = _built(family, how)
    out = module(_ids()).logits.square().sum()
    with _Kernels() as kernels:
        out.backward()
    of_gradients = 2 * sum(each.dim() == 2 for name, each in module.named_parameters() if _is_matrix(name)) + 2
    return (kernels.ran["product"] - of_gradients) // LAYERS, kernels.ran["attention"] // LAYERS


def _is_matrix(name: str) -> bool:
    return "layers." in name or ".h." in name


@pytest.mark.parametrize(
    ("family", "words", "products", "attentions"),
    [
        ("llama", ("collective",), 6, 1),  # of seven the last: nothing wants what it puts out
        ("llama", ("matmul",), 0, 1),
        ("llama", ("half-matmul",), 3, 1),
        ("llama", ("qkv",), 3, 1),
        ("llama", ("qkv", "attention"), 3, 0),
        ("gpt2", ("collective",), 3, 1),
        ("gpt2", ("half-matmul", "attention"), 1, 0),
        ("gpt2", ("qkv",), 2, 1),
    ],
)
def test_backward_runs_what_was_not_saved_again_and_no_more(
    family: str, words: tuple[str, ...], products: int, attentions: int
) -> None:
    assert _again(family, _save(words)) == (products, attentions)


def test_a_matrix_that_is_no_module_of_a_kind_that_is_known_is_refused() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module: Any = _llama()
    module.model.layers[0].mlp.up_proj = Own(64, 160, bias=False)
    layer = resolve_model(module.config).by_name["decoder.0"]
    with pytest.raises(PlanError, match=r"'model.layers.0.mlp.up_proj' is Own; write 'recompute: full'"):
        recompute_layer(module, layer, _save(("matmul",)))


def test_attention_of_several_kernels_is_refused_where_it_is_to_be_kept() -> None:
    module = _built("llama", _save(("attention",)))
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        pytest.raises(PlanError, match="computes attention in several kernels here, which 'save' cannot keep"),
    ):
        module(_ids())


class _Adds(LlamaMLP):
    """Whose code adds in place to what its last matrix puts out."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)
        return out.add_(1.0)


def test_what_is_kept_and_written_in_place_is_refused() -> None:
    """The tensor at hand is a view of what the product's kernel put out, with a count of writes of its own."""
    module = _built("llama", "none")
    module.model.layers[0].mlp = _Adds(module.config)
    recompute_layer(module, resolve_model(module.config).by_name["decoder.0"], _save(("matmul",)))
    with pytest.raises(PlanError, match="writes in place to what an operator put out, which 'save' keeps"):
        module(_ids())
