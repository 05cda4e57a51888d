"""The cases that spread experts are proven with, on four processes."""

from typing import Any

from tests.parity.cases import FLAT, SQUARE, uniform
from tests.parity.harness import Case
from tests.parity.pipelines import TP, TWO, staged

_LAYERS, _ZERO3 = "decoder.0-3", {"all": "dp/zero3"}


def _one(dense: dict[str, dict[str, str]], mesh: dict[str, int], experts: Any, **settings: Any) -> Case:
    rows = {_LAYERS: experts} if isinstance(next(iter(experts.values())), str) else experts
    fields: dict[str, Any] = {"family": "mixtral", "groups": {"all": ("0-3", mesh)}, "experts": rows, **settings}
    return Case({}, {}, stages=(("all", dense),), **fields)


EXPERTS: dict[str, Case] = {
    "ep of four": _one(uniform(all="dp"), FLAT, {"all": "ep"}),
    "ep and dp, attention dropped": _one(
        uniform(node="dp", gpu="dp"), SQUARE, {"node": "dp", "gpu": "ep"}, attention_dropout=0.2
    ),
    "ep outside, zero3 inside, dense zero1": _one(
        uniform(node="dp/zero1", gpu="dp/zero1"), SQUARE, {"node": "ep", "gpu": "dp/zero3"}, padded=True
    ),
    "zero2 of both, full recompute": _one(
        uniform(node="dp/zero2", gpu="dp/zero2"),
        SQUARE,
        {"node": "dp/zero2", "gpu": "ep"},
        recompute={_LAYERS: "full"},
    ),
    "dense zero3, experts in replicas": _one(
        uniform(node="dp/zero3", gpu="dp/zero3"), SQUARE, {"node": "dp", "gpu": "ep"}
    ),
    "tp beside ep": _one(uniform(node="dp/zero3", gpu="tp"), SQUARE, {"node": "dp/zero3", "gpu": "ep"}),
    "tp outside ep": _one(uniform(node="tp", gpu="dp/zero1"), SQUARE, {"node": "ep", "gpu": "ep"}),
    "positions and heads divided": _one(
        {
            "embed": {"node": "dp", "gpu": "tp+sp"},
            "decoder.0": {"node": "cp", "gpu": "tp+sp"},
            "decoder.1": {"node": "ulysses/zero2", "gpu": "dp"},
            "decoder.2": {"node": "dp", "gpu": "copy"},
            "decoder.3": {"node": "dp/zero1", "gpu": "tp"},
            "head": {"node": "dp", "gpu": "tp+sp"},
        },
        SQUARE,
        {
            "decoder.0": {"node": "ep", "gpu": "ep"},
            "decoder.1": {"node": "dp/zero2", "gpu": "ep"},
            "decoder.2": {"node": "ep", "gpu": "dp"},
            "decoder.3": {"node": "ep", "gpu": "dp/zero1"},
        },
    ),
    "qwen3: experts with a row and without": _one(
        {"embed": _ZERO3, "decoder.0-1": _ZERO3, "decoder.2-3": {"all": "dp"}, "head": _ZERO3},
        FLAT,
        {"decoder.2-3": {"all": "ep"}},
        family="qwen3_moe",
    ),
    "ranks to which no position comes": _one(
        uniform(node="tp", gpu="dp/zero3"),
        SQUARE,
        {"node": "ep", "gpu": "dp/zero3"},
        length=2,
        micro_batches=4,
    ),
    "1f1b": Case(
        {},
        {},
        "mixtral",
        groups=TWO,
        stages=staged("ab", {"x": "dp/zero1"}),
        experts={
            "decoder.0-1": {"x": "ep"},
            "decoder.2-3": {"x": "ep"},
        },
        micro_batches=4,
    ),
    "interleaved": Case(
        {},
        {},
        "qwen3_moe",
        groups=TWO,
        stages=staged("abab", {"x": "dp/zero3"}),
        experts={
            "decoder.0": {"x": "ep"},
            "decoder.2": {"x": "dp/zero3"},
            "decoder.3": {"x": "ep"},
        },
        micro_batches=4,
        schedule="interleaved",
    ),
    "zbv, ranks to which no position comes": Case(
        {},
        {},
        "mixtral",
        groups=TWO,
        stages=staged("abba", TP),
        experts={f"decoder.{number}": {"x": "ep"} for number in range(4)},
        samples=4,
        length=2,
        micro_batches=4,
        schedule="zbv",
    ),
}
"""Experts in a row of their own beside every role of their layers."""
