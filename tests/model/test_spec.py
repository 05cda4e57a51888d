"""What a ModelSpec refuses, and how much work its operators have."""

from typing import Any

import pytest

from meshwright.errors import DocumentError
from meshwright.model.operators import Attention, Convolution, Dropout, Linear, MatMul, Operator, work_of
from meshwright.model.spec import ModelSpec
from meshwright.model.work import Work

LENGTHS = {"tokens": 6.0, "frames": 9.0}


def model(**changes: Any) -> ModelSpec:
    """Two layers, each with one matrix, and what is changed."""
    matrix = {"op": "linear", "path": "one", "inputs": 4, "outputs": 4}
    part = {"name": "mlp", "operators": [matrix]}
    layers = [
        {"span": "embed", "modules": ["one"], "output": 4, "parts": [part]},
        {"span": "head", "modules": ["two"], "reads": ["embed"], "output": 4, "parts": [part]},
    ]
    data = {"meshwright_model": 1, "name": "m", "family": "f", "stacks": layers}
    return ModelSpec.from_data(data | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"ties": [{"name": "t", "owner": "one.weight", "copies": ["tow.weight"]}]},
            "ties.0.copies.0: no layer covers 'tow.weight'; did you mean 'two'?",
        ),
        (
            {"ties": [{"name": "t", "owner": "three.weight", "copies": ["two.weight"]}]},
            "ties.0.owner: no layer covers 'three.weight'",
        ),
        (
            {"stacks": [{"span": "a", "modules": [], "output": 1, "parts": [{"name": "x", "operators": []}] * 2}]},
            "stacks.0.parts.1.name: 'x' stands twice in 'a'",
        ),
        (
            {
                "stacks": [
                    {
                        "span": "a",
                        "modules": [],
                        "output": 1,
                        "parts": [{"name": "x", "operators": [{"op": "add", "width": 1, "stream": "toknes"}]}],
                    }
                ]
            },
            "stacks.0.parts.0.operators.0.stream: 'toknes' is not named in streams",
        ),
    ],
    ids=["a copy of nothing", "an owner of nothing", "two parts of one name", "an unknown stream"],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        model(**changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("operator", "work"),
    [
        (Linear(inputs=1, outputs=1), Work(2, 6, 6)),
        (Linear(inputs=1, outputs=1, stream="frames"), Work(2, 9, 9)),
        (Linear(inputs=1, outputs=1, positions=1), Work(2, 1, 1)),
        (Attention(heads=1, kv_heads=1, head_dim=1, cross="frames"), Work(2, 6, 9)),
        (Attention(heads=1, kv_heads=1, head_dim=1, block=3), Work(2, 6, 3)),
        (Dropout(width=1, probability=0.1, of="attention", cross="frames"), Work(2, 6, 9)),
    ],
)
def test_an_operator_works_on_its_stream(operator: Operator, work: Work) -> None:
    assert work_of(operator, 2, LENGTHS, "tokens") == work


@pytest.mark.parametrize(
    ("operator", "forward", "backward", "masked", "again"),
    [
        (Linear(inputs=3, outputs=5), 360, 720, 0, 0),
        (MatMul(inner=3, outputs=5), 360, 720, 0, 0),
        (Attention(heads=2, kv_heads=1, head_dim=3, value_dim=1), 1152, 2304, 576, 864),
        (Attention(heads=2, kv_heads=1, head_dim=3, value_dim=1, causal=False), 1152, 2304, 0, 864),
        (Attention(heads=2, kv_heads=1, head_dim=3, value_dim=1, window=3), 1152, 2304, 720, 864),
        (Attention(heads=2, kv_heads=1, head_dim=3, value_dim=1, window=3, causal=False), 1152, 2304, 576, 864),
        (Convolution(inputs=4, outputs=6, kernel=(3, 3), groups=2), 2592, 5184, 0, 0),
        (Convolution(inputs=4, outputs=6, kernel=(2,), transposed=True, input_positions=3), 576, 1152, 0, 0),
    ],
)
def test_flops_by_term(operator: Operator, forward: float, backward: float, masked: float, again: float) -> None:
    """By hand, for 2 samples of 6 positions."""
    flops = operator.flops(work_of(operator, 2, LENGTHS, "tokens"))
    assert (flops.forward, flops.backward) == (forward, backward)
    assert flops.masked == pytest.approx(masked)
    assert flops.again == again
