"""Every family as read from a configuration, against transformers' own model: parameters, places, matrix FLOPs."""

import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from meshwright.model.operators import Linear, work_of
from meshwright.model.spec import ModelSpec
from meshwright.model.work import Flops
from meshwright.runtime.owners import parameter_owners
from tests.model.samples import SAMPLES
from tests.model.samples.build import BATCH, Sample

EACH = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def _convolution_backward(*shapes: Any, **_: Any) -> int:
    """FLOPs of the gradients of a convolution, by the arguments of `aten.convolution_backward`. As torch counts them,
    but for convolutions by groups: there torch takes the weight's gradient to be that of an undivided one.
    """
    gradient, read, weight, *_others, transposed, _padding, _groups, wanted = shapes
    positions = math.prod((read if transposed else gradient)[2:])
    return sum(wanted[:2]) * 2 * gradient[0] * positions * math.prod(weight)


MENDED = {torch.ops.aten.convolution_backward: _convolution_backward}


@EACH
def test_every_parameter_belongs_to_the_layer_that_counts_it(sample: Sample) -> None:
    with torch.device("meta"):
        module = sample.build()
    spec = sample.spec
    owners = parameter_owners(module, spec)
    counted: dict[str, int] = {}
    first = {copy: tie.owner for tie in spec.ties for copy in tie.copies}  # a module may name a copy before its owner
    for name, parameter in module.named_parameters():
        owner = owners[name] if name not in first else str(spec.layer_of(first[name]))
        counted[owner] = counted.get(owner, 0) + parameter.numel()
    assert counted == {layer.name: layer.parameters for layer in spec.layers if layer.parameters}
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())


@EACH
def test_every_operator_with_parameters_is_where_the_model_has_it(sample: Sample) -> None:
    with torch.device("meta"):
        module = sample.build()
    shapes = {name: tensor.shape for name, tensor in module.named_parameters(remove_duplicate=False)}
    spec, seen = sample.spec, dict[str, int]()
    for layer in spec.layers:
        for path in layer.modules:
            module.get_submodule(path)
        for operator in layer.stack.operators:
            path = layer.module_path(operator.path)
            if operator.parameters():
                assert path in shapes or any(name.startswith(f"{path}.") for name in shapes), path
                seen[path] = seen.get(path, 0) + operator.parameters()
            if isinstance(operator, Linear) and f"{path}.weight" in shapes:
                assert {*shapes[f"{path}.weight"]} == {operator.inputs, operator.outputs}, path
    for path, count in seen.items():
        found = [name for name in shapes if name == path or name.startswith(f"{path}.")]
        assert count <= sum(shapes[name].numel() for name in found), path
    for path in spec.shared:
        assert not list(module.get_submodule(path).parameters())


@EACH
def test_matrix_flops_are_those_that_torch_counts(sample: Sample) -> None:
    """Eager attention; forward and backward apart. On real numbers: so small a model computes faster than fake tensors
    find the shapes.
    """
    module = sample.build("eager", experts="batched_mm").train()
    batch = sample.batch(sample.config)
    with FlopCounterMode(display=False) as forward:
        loss = module(**batch).loss
    with FlopCounterMode(display=False, custom_mapping=MENDED) as backward:
        loss.backward()
    expected = counted_flops(sample.spec, {stream: sample.length(stream) for stream in sample.spec.streams})
    assert forward.get_total_flops() == expected.forward
    assert backward.get_total_flops() == expected.backward


def counted_flops(spec: ModelSpec, lengths: dict[str, int]) -> Flops:
    """The FLOPs of a model with BATCH samples, where what the first operators read wants no gradient."""
    forward = by_input = by_weight = 0.0
    flows: dict[str, bool] = {}
    for layer in spec.layers:
        fed, wanted = any(flows[read] for read in layer.reads), layer.name not in spec.unused
        for operator in layer.stack.operators:
            flops = operator.flops(work_of(operator, BATCH, lengths, layer.stack.stream))
            forward += flops.forward
            by_input += flops.by_input * fed * wanted
            by_weight += flops.by_weight * wanted
            fed = fed or bool(operator.parameters() or getattr(operator, "tied", False))
        flows[layer.name] = fed
    return Flops(forward, by_input, by_weight)
