"""Models that no family covers: a trace counts what torch counts, folds what repeats, and can be planned with."""

from functools import cache

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import meshwright as mw
from meshwright.model.operators import Attention, Convolution, Linear, MatMul, Norm
from meshwright.model.spec import ModelSpec
from meshwright.trace import trace
from meshwright.trace.check import counted
from meshwright.trace.module import told_apart
from meshwright.trace.recorder import FlopSum
from tests.trace.modules import MODULES

EACH = pytest.mark.parametrize("name", MODULES)


@cache
def traced(name: str) -> ModelSpec:
    case = MODULES[name]
    return trace(case.build(), case.inputs(), name=name)


@EACH
def test_a_trace_counts_what_torch_counts(name: str) -> None:
    """At the example's own sizes, which are not those that the trace ran at."""
    case, spec = MODULES[name], traced(name)
    module = case.build()
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True), told_apart():
        module, inputs = case.build().train(), case.inputs()
        backward = FlopSum()  # torch's formulas, but for convolutions by groups
        with FlopCounterMode(display=False) as forward:
            output = module(**inputs) if isinstance(inputs, dict) else module(*_arguments(inputs))
        with backward.counting():
            (output.loss if hasattr(output, "loss") else output.sum()).backward()
    lengths = {key: stream.length or case.length for key, stream in spec.streams.items()}
    batch = next(iter(inputs.values() if isinstance(inputs, dict) else _arguments(inputs))).shape[0]
    found = counted(spec, batch, lengths)
    assert found.forward == forward.get_total_flops()
    assert found.backward == backward.total + batch * case.surplus


def _arguments(inputs: object) -> tuple[torch.Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)  # type: ignore[return-value]


@EACH
def test_layers_are_folded(name: str) -> None:
    assert tuple(stack.span for stack in traced(name).stacks) == MODULES[name].spans


@EACH
def test_every_parameter_has_one_layer(name: str) -> None:
    spec, held = traced(name), dict[str, int]()
    for path, parameter in MODULES[name].build().named_parameters():
        layer = spec.layer_of(path)
        assert layer is not None, path
        held[layer] = held.get(layer, 0) + parameter.numel()
    assert held == {layer.name: layer.parameters for layer in spec.layers if layer.parameters}


@EACH
def test_a_trace_survives_yaml(name: str) -> None:
    assert ModelSpec.parse(traced(name).to_yaml()) == traced(name)


@EACH
def test_a_trace_can_be_planned_with(name: str) -> None:
    recipe = mw.recipe(global_batch=32, sequence=64, micro_batches=8)
    plan = mw.uniform_plan(traced(name), "4xa100-80gb", recipe, zero=1)
    estimate = mw.estimate(plan, model=traced(name), recipe=recipe)
    assert estimate.step_time_s > 0


def test_what_is_skipped_over_is_read() -> None:
    spec = traced("u-net")
    assert spec.by_name["widen.0"].reads == ("downs.1", "downs.0")
    assert spec.by_name["widen.1"].reads == ("ups.0", "embed")
    up = next(op for op in spec.by_name["widen.0"].stack.operators if isinstance(op, Convolution))
    assert up.transposed


def test_towers_do_not_read_each_other() -> None:
    spec = traced("two-tower")
    assert spec.by_name["user_tower"].reads == ("users",)
    assert "users" not in spec.by_name["item_tower"].reads


def test_a_condition_is_read_by_every_block() -> None:
    assert [layer.reads for layer in traced("diffusion-transformer").layers[2:5]] == [
        ("embed", "t_embedder"),
        ("blocks.0", "t_embedder"),
        ("blocks.1", "t_embedder"),
    ]


def test_an_adjacency_wants_no_gradient() -> None:
    block = traced("graph-transformer").by_name["layers.0"].stack
    products = {(op.inner, op.outputs, op.gradients) for op in block.operators if isinstance(op, MatMul)}
    assert all(gradients == 1 for _, _, gradients in products)
    core = next(op for op in block.operators if isinstance(op, Attention))
    assert (core.heads, core.head_dim, core.causal) == (3, 8, False)


def test_statistics_over_the_batch_are_seen() -> None:
    assert traced("resnet-50").batch_statistics
    assert not traced("mlp-mixer").batch_statistics


def test_fused_queries_keys_and_values_are_told_apart() -> None:
    block = traced("tabular-transformer").by_name["layers.0"].stack
    fused = next(op for op in block.operators if isinstance(op, Linear))
    assert (fused.split, fused.segments) == ("column", (16, 16, 16))
    assert [part.name for part in block.parts] == ["attention", "mlp"]


def test_a_norm_of_ones_own_is_known_by_its_class_or_by_name() -> None:
    class MyRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gain * x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()

    spec = trace(nn.Sequential(nn.Linear(8, 8), MyRMSNorm()), torch.rand(3, 5, 8))
    norms = [op for stack in spec.stacks for op in stack.operators if isinstance(op, Norm)]
    assert [(norm.kind, norm.width, norm.path) for norm in norms] == [("rms", 8, "1")]
