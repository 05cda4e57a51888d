"""A trace of every family's small models counts what is read from their configurations."""

import re
from functools import cache

import pytest
import torch

from meshwright.model.operators import Attention, Scan
from meshwright.model.spec import ModelSpec
from meshwright.runtime.owners import parameter_owners
from meshwright.trace import trace
from meshwright.trace.check import counted
from tests.model.samples import SAMPLES
from tests.model.samples.build import BATCH, Sample

EACH = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)

LAYERS_APART = {"clip": -1, "qwen2-vl": -1}
"""Families that cut what is one module, or one gap between blocks, into layers by hand: CLIP's projections and the
product of them all, the norm inside of Qwen2-VL's merger. By the beginning of the sample's name."""


def traced(sample: Sample) -> ModelSpec:
    return _traced(sample.name)


@cache
def _traced(name: str) -> ModelSpec:
    """Of a builder where the model runs without values, else of the module and a batch."""
    sample = next(each for each in SAMPLES if each.name == name)
    if sample.fake:
        return trace(sample.build, name=sample.name)
    return trace(sample.build(), sample.batch(sample.config), name=sample.name)


@EACH
def test_a_trace_counts_what_the_family_counts(sample: Sample) -> None:
    read, spec = sample.spec, traced(sample)
    assert spec.parameters == read.parameters
    assert spec.active_parameters == read.active_parameters
    lengths = {name: sample.length(name) for name in read.streams} | _fixed(spec)
    if any(isinstance(op, Scan) and op.chunk for stack in read.stacks for op in stack.operators):
        lengths = {"tokens": _traced_length(spec)} | _fixed(spec)  # padded to chunks: equal at this length alone
    assert counted(spec, BATCH, lengths) == counted(read, BATCH, lengths | _fixed(read))
    assert "matrix FLOPs" not in spec.source, "what torch counted differs"


@EACH
def test_a_trace_has_the_layers_and_ties_of_the_family(sample: Sample) -> None:
    read, spec = sample.spec, traced(sample)
    apart = next((count for name, count in LAYERS_APART.items() if sample.name.startswith(name)), 0)
    assert len(spec.layers) == len(read.layers) + apart
    assert {frozenset((tie.owner, *tie.copies)) for tie in spec.ties} == {
        frozenset((tie.owner, *tie.copies)) for tie in read.ties
    }
    assert _cores(spec) == _cores(read)


@EACH
def test_a_trace_has_each_parameter_in_the_layer_that_counts_it(sample: Sample) -> None:
    spec = traced(sample)
    with torch.device("meta"):
        module = sample.build()
    owners = parameter_owners(module, spec)
    held: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        held[owners[name]] = held.get(owners[name], 0) + parameter.numel()
    assert held == {layer.name: layer.parameters for layer in spec.layers if layer.parameters}
    for path in spec.shared:
        assert not list(module.get_submodule(path).parameters())


def _fixed(spec: ModelSpec) -> dict[str, int]:
    return {name: stream.length for name, stream in spec.streams.items() if stream.length}


def _traced_length(spec: ModelSpec) -> int:
    found = re.search(r"tokens (\d+)", spec.source)
    assert found is not None
    return int(found.group(1))


def _cores(spec: ModelSpec) -> list[tuple[object, ...]]:
    """Shapes and masks of all attention cores, in order of their layers."""
    return sorted(
        (core.heads, core.kv_heads, core.head_dim, core.value_dim or core.head_dim, core.causal, core.cross is not None)
        for layer in spec.layers
        for core in layer.stack.operators
        if isinstance(core, Attention)
    )
