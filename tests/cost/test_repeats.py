"""Which operators recompute runs again."""

from typing import Any

import pytest

from meshwright.cost.repeats import is_core, is_repeated
from meshwright.cost.shares import Share
from meshwright.model.operators import (
    Activation,
    Attention,
    Convolution,
    Dropout,
    Experts,
    Linear,
    Loss,
    Norm,
    Operator,
    Router,
)
from meshwright.model.work import Work
from meshwright.plan.spec import Save

OPERATORS: dict[str, Operator] = {
    "norm": Norm(kind="rms", width=8),
    "matrix": Linear(inputs=8, outputs=8),
    "attention": Attention(heads=2, kv_heads=2, head_dim=4),
    "dropped weights": Dropout(width=2, probability=0.1, of="attention"),
    "dropped stream": Dropout(width=8, probability=0.1),
    "activation": Activation(width=8),
    "router": Router(hidden=8, experts=4, top_k=2),
    "experts": Experts(count=4, top_k=2, hidden=8, ffn=8),
    "convolution": Convolution(inputs=8, outputs=8, kernel=(4,)),
    "loss": Loss(classes=8),
}
CORE = {"attention", "dropped weights"}
MATRICES = {"matrix", "router", "experts", "convolution"}
ALL = set(OPERATORS) - {"loss"}


def share(name: str) -> Share:
    """An operator on four positions."""
    return Share(OPERATORS[name], Work(1, 4, 4), learns=True, passes=True)


@pytest.mark.parametrize(
    ("recompute", "again"),
    [
        ("none", set()),
        ("full", ALL),
        ("selective", CORE),
        (Save(save=("matmul",)), ALL - MATRICES),
        (Save(save=("attention",)), ALL - CORE),
        (Save(save=("matmul", "attention")), ALL - MATRICES - CORE),
        (Save(save=("collective",)), ALL),
    ],
    ids=["none", "full", "selective", "matmuls kept", "cores kept", "both kept", "collectives kept"],
)
def test_recompute_runs_again_what_it_says_but_never_the_loss(recompute: Any, again: set[str]) -> None:
    assert {name for name in OPERATORS if is_repeated(share(name), recompute)} == again


def test_the_core_is_attention_with_the_dropout_of_its_weights() -> None:
    """Korthikanti 2022, section 5."""
    assert {name for name in OPERATORS if is_core(share(name))} == CORE
