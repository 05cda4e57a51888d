"""How many kernels a layer launches, against what torch dispatches for transformers' modules."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from meshwright.cost.calibration import IDEAL  # noqa: E402
from meshwright.cost.compute import layer_load, loads_of  # noqa: E402
from meshwright.cost.kernels import KERNEL_SETS  # noqa: E402
from meshwright.cost.launches import BACKWARD, EXCHANGE, LAUNCHES, Launches, launched  # noqa: E402
from meshwright.cost.layer_times import time_layer  # noqa: E402
from meshwright.cost.placement import Placement  # noqa: E402
from meshwright.cost.shares import Extent, Learning, Share, layer_shares  # noqa: E402
from meshwright.cost.uses import Storage  # noqa: E402
from meshwright.cost.ways import Ways  # noqa: E402
from meshwright.cost.wires import Wires  # noqa: E402
from meshwright.model.operators import (  # noqa: E402
    Activation,
    Attention,
    Dropout,
    Linear,
    Loss,
    Norm,
    Operator,
    Router,
)
from meshwright.model.spec import LayerStack  # noqa: E402
from meshwright.model.work import Work  # noqa: E402
from tests.cost.build import inputs, llama  # noqa: E402
from tests.model.samples import SAMPLES  # noqa: E402
from tests.model.samples.build import BATCH, Sample  # noqa: E402

WITHIN = 0.15
UNDROPPED = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), 0.0)
"""Dropout is three operations on a CPU, one kernel on GPUs; under it SDPA on a CPU is plain arithmetic."""
NO_KERNEL = {"_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "new_empty"}
"""Operations that are no views by their schema, and yet launch nothing."""
COUNTED = {sample.name: sample for sample in SAMPLES if sample.name in ("llama", "llama-biases", "qwen3", "mixtral")}
COUNTED["gpt2"] = replace(gpt2 := next(one for one in SAMPLES if one.name == "gpt2"), config=gpt2.config | UNDROPPED)


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Counts what torch dispatches while each module runs; outside of all under an empty name."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self.found = [""], Counter[str]()

    def enters(self, name: str) -> Callable[..., None]:
        """A hook for before a module."""
        return lambda *_: self.running.append(name)

    def leaves(self, *_: Any) -> None:
        """A hook for after it."""
        self.running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.overloadpacket.__name__ not in NO_KERNEL:
            self.found[self.running[-1]] += 1
        return func(*args, **(kwargs or {}))


def dispatched(sample: Sample, attention: str) -> Counter[str]:
    """Of one forward in bf16, by layer."""
    module, counts = sample.build(attention).to(torch.bfloat16).train(), Dispatched()
    module.config.use_cache = False
    for layer in sample.spec.layers:
        for path in layer.modules:
            module.get_submodule(path).register_forward_pre_hook(counts.enters(layer.name))
            module.get_submodule(path).register_forward_hook(counts.leaves)
    with counts:
        module(**sample.batch(sample.config))
    return counts.found


def shares(sample: Sample, stack: LayerStack) -> list[Share]:
    """The operators of a layer that nothing divides."""
    lengths = {stream: sample.length(stream) for stream in sample.spec.streams}
    parts = [(part, Ways()) for part in stack.parts]
    return [share for part in layer_shares(parts, Extent(BATCH, lengths, stack.stream), Learning()) for share in part]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("sample", COUNTED.values(), ids=list(COUNTED))
def test_a_layer_launches_what_torch_dispatches(sample: Sample, attention: str) -> None:
    """The embedding aside: GPT-2 adds its two outside of their modules."""
    found = dispatched(sample, attention)
    for layer in sample.spec.layers[1:]:
        said = [share for share in shares(sample, layer.stack) if not isinstance(share.operator, Loss)]
        total = sum(launched(f"hf-{attention}", share) for share in said)
        assert total == pytest.approx(found[layer.name], rel=WITHIN), layer.name


def test_a_loss_launches_what_torch_dispatches() -> None:
    """Labels padded and shifted, logits widened, their log-probabilities, and those of the labels."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits, labels = torch.ones(2, 8, 48, dtype=torch.bfloat16), torch.ones(2, 8, dtype=torch.int64)
    with Dispatched() as counts:
        ForCausalLMLoss(logits, labels, 48)
    assert launched("hf-eager", alone(Loss(classes=48))) == counts.found.total()


KINDS = get_args(get_args(Operator)[0])


def alone(operator: Operator, *, learns: bool = True, passes: bool = True) -> Share:
    """One operator on sixteen positions."""
    return Share(operator, Work(1, 16, 16), learns=learns, passes=passes)


def test_every_kernel_set_counts_every_operator() -> None:
    assert set(LAUNCHES) == set(KERNEL_SETS)
    assert all(set(counts) == set(KINDS) for counts in LAUNCHES.values())


@pytest.mark.parametrize(
    "operator",
    [
        Norm(kind="rms", width=8),
        Attention(heads=4, kv_heads=2, head_dim=8),
        Activation(function="gelu_new", width=8),
        Activation(width=8, gated=True),
        Dropout(width=8, probability=0.1),
        Router(hidden=8, experts=4, top_k=2),
        Loss(classes=16),
    ],
    ids=lambda operator: operator.op,
)
def test_what_is_fused_launches_no_more(operator: Operator) -> None:
    compiled, sdpa, eager = (launched(name, alone(operator)) for name in ("torch-compile", "hf-sdpa", "hf-eager"))
    assert compiled <= sdpa <= eager
    flash, fused = (launched(name, alone(operator)) for name in ("megatron-flash", "megatron-fused"))
    assert flash <= fused


def of_layer(shares: list[Share], recompute: Any) -> Launches:
    return layer_load(shares, loads_of(shares, KERNEL_SETS["hf-eager"], Storage()), recompute).launches


MATRIX, CORE = Linear(inputs=8, outputs=8), Attention(heads=1, kv_heads=1, head_dim=8)


@pytest.mark.parametrize(
    ("learns", "recompute", "backward"),
    [
        (True, "none", 11 * BACKWARD),
        (True, "selective", 11 * BACKWARD + 10),
        (True, "full", 11 * BACKWARD + 11),
        (False, "full", 0),
    ],
    ids=["kept", "the core again", "all again", "no backward"],
)
def test_backward_launches_for_gradients_and_for_recompute(learns: bool, recompute: Any, backward: float) -> None:
    """A matrix, one kernel, and an eager attention core, ten."""
    layer = [alone(operator, learns=learns, passes=learns) for operator in (MATRIX, CORE)]
    assert of_layer(layer, recompute) == Launches(11, pytest.approx(backward))


def test_a_loss_is_not_launched_again() -> None:
    assert of_layer([alone(Loss(classes=16))], "full") == Launches(5, pytest.approx(5 * BACKWARD))


def test_each_exchange_takes_the_calls_of_a_collective() -> None:
    """Of a layer under tp: an all-reduce after each part forward, and one before each backward."""
    one, cut = (launches_of({"all": role}) for role in ("copy", "tp"))
    assert (cut[0] - one[0], cut[1] - one[1]) == (2 * EXCHANGE, pytest.approx(2 * EXCHANGE))


def launches_of(roles: dict[str, str]) -> tuple[float, float]:
    """Of a decoder layer, forward and backward."""
    placement = Placement(inputs(llama(), "2xh100", {"all": 2}, roles), IDEAL)
    timed = time_layer(placement, Wires(placement), placement.block_of["decoder.1"])
    return timed.forward.launches, timed.backward.launches
