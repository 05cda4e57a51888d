"""The tensors of operators are those of transformers' modules, shape for shape."""

import math
from collections import Counter
from collections.abc import Iterable

import pytest
import torch

from meshwright.model.operators import Convolution, Experts, Linear, Loss, Parameter, Router
from meshwright.model.spec import ModelSpec
from meshwright.model.tensors import Tensor, has_matrices, read_by_loss, tensors
from tests.model.samples import SAMPLES
from tests.model.samples.build import Sample

Shapes = Counter[tuple[int, ...]]
"""Batch, and both sizes of a matrix, the shorter first; a single size for all vectors together."""

OTHERWISE = {
    "clip": "the kernel of its patches is described unfolded",
    "llava": "the kernel of its patches is described unfolded",
    "qwen2_vl": "the kernel of its patches is described unfolded",
    "gpt_oss": "biases of experts are vectors here, and stored as a matrix",
}
"""Families whose modules have one or two tensors of another shape."""


def ours(model: ModelSpec) -> Shapes:
    every = [each for layer in model.layers for operator in layer.stack.operators for each in tensors(operator)]
    return _shapes((each.batch, each.rows, each.columns) for each in every if each.kind != "vector") + Counter(
        {(): sum(each.numbers for each in every if each.kind == "vector")}
    )


def theirs(module: torch.nn.Module) -> Shapes:
    every = [tuple(parameter.shape) for parameter in module.parameters()]
    matrices = ((math.prod(shape[:-2]), *shape[-2:]) for shape in every if len(shape) > 1)
    return _shapes(matrices) + Counter({(): sum(math.prod(shape) for shape in every if len(shape) < 2)})


def _shapes(every: Iterable[tuple[int, int, int]]) -> Shapes:
    return Counter((batch, *sorted(sizes)) for batch, *sizes in every)


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if sample.config["model_type"] not in OTHERWISE], ids=lambda each: each.name
)
def test_every_family_has_the_tensors_of_its_module(sample: Sample) -> None:
    with torch.device("meta"):
        module = sample.build()
    assert ours(sample.spec) == theirs(module)


@pytest.mark.parametrize("family", OTHERWISE)
def test_what_is_described_otherwise_is_a_tensor_or_two_of_each_layer(family: str) -> None:
    sample = next(sample for sample in SAMPLES if sample.config["model_type"] == family)
    with torch.device("meta"):
        module = sample.build()
    here, there = ours(sample.spec), theirs(module)
    assert len(there - here - Counter({(): there[()]})) <= 2
    assert here != there


def test_a_head_is_no_hidden_matrix_and_what_stands_before_it_is_one() -> None:
    """BERT's: a dense layer, and the matrix to the vocabulary."""
    before, head = Linear(path="transform", inputs=4, outputs=4), Linear(path="decoder", inputs=4, outputs=9)
    heads = read_by_loss([before, head, Loss(classes=9)])
    assert [tensors(each, read_by_loss=each.path in heads)[0].kind for each in (before, head)] == ["matrix", "table"]
    assert has_matrices([before, head, Loss(classes=9)])
    assert not has_matrices([head, Loss(classes=9)])


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (Linear(inputs=4, outputs=6, tied=True), ()),
        (Linear(inputs=4, outputs=6, tied=True, bias=True), (Tensor("vector", 6),)),
        (Router(hidden=4, experts=8, top_k=2), (Tensor("matrix", 8, 4),)),
        (
            Experts(count=3, top_k=1, hidden=4, ffn=5, gated=False),
            (Tensor("matrix", 5, 4, 3), Tensor("matrix", 4, 5, 3)),
        ),
        (Convolution(inputs=6, outputs=8, kernel=(3,), groups=2), (Tensor("table", 3, 3, 8),)),
        (Convolution(inputs=6, outputs=8, kernel=(3, 5), transposed=True), (Tensor("table", 3, 5, 48),)),
        (Parameter(shape=(7,)), (Tensor("vector", 7),)),
        (Parameter(shape=(1, 2, 7)), (Tensor("table", 2, 7),)),
    ],
    ids=["tied", "tied with a bias", "router", "experts", "groups", "transposed", "vector", "table"],
)
def test_each_kind_of_operator_has_its_tensors(operator: Linear, expected: tuple[Tensor, ...]) -> None:
    assert tensors(operator) == expected
    assert sum(each.numbers for each in expected) == operator.parameters()
