"""The cases that spread experts are proven with, on four processes."""

from typing import Any

from tests.parity.cases import FLAT, SQUARE, uniform
from tests.parity.harness import Case
from tests.parity.pipelines import TP, TWO, ZERO1, ZERO3, on_groups

_LAYERS, _ALL_ZERO3 = "decoder.0-3", {"all": "dp/zero3"}
_EP = {"x": "ep"}


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
        {"embed": _ALL_ZERO3, "decoder.0-1": _ALL_ZERO3, "decoder.2-3": {"all": "dp"}, "head": _ALL_ZERO3},
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
    "1f1b": on_groups("ab", TWO, ZERO1, family="mixtral", experts=dict.fromkeys(("decoder.0-1", "decoder.2-3"), _EP)),
    "interleaved": on_groups(
        "abab",
        TWO,
        ZERO3,
        family="qwen3_moe",
        experts={"decoder.0": _EP, "decoder.2": ZERO3, "decoder.3": _EP},
        schedule="interleaved",
    ),
    "zbv, ranks to which no position comes": on_groups(
        "abba",
        TWO,
        TP,
        family="mixtral",
        experts={f"decoder.{number}": _EP for number in range(4)},
        samples=4,
        length=2,
        schedule="zbv",
    ),
}
"""Experts in a row of their own beside every role of their layers."""
