"""The cases that pipelines and recompute are proven with, on four processes."""

from typing import Any

from meshwright.plan.spec import Save, Saved
from tests.parity.cases import SQUARE, uniform
from tests.parity.harness import Case

Rows = dict[str, dict[str, str]]
Groups = dict[str, tuple[str, dict[str, int]]]
DP, TP, SP, CP, ULYSSES, COPY, ZERO1, ZERO2, ZERO3 = (
    {"x": role} for role in ("dp", "tp", "tp+sp", "cp", "ulysses", "copy", "dp/zero1", "dp/zero2", "dp/zero3")
)

ONE = {"a": ("0-3", SQUARE)}
TWO = {"a": ("0-1", {"x": 2}), "b": ("2-3", {"x": 2})}
FOUR = {"a": ("2", {"x": 1}), "b": ("0", {"x": 1}), "c": ("3", {"x": 1}), "d": ("1", {"x": 1})}
ONE_AND_THREE = {"a": ("2", {"x": 1}), "b": ("3,0,1", {"x": 3})}
UNEQUAL = {"a": ("1", {"x": 1}), "b": ("3,0", {"x": 2}), "c": ("2", {"x": 1})}
CUTS = {
    2: ("embed decoder.0-1", "decoder.2-3 head"),
    4: ("embed decoder.0", "decoder.1", "decoder.2", "decoder.3 head"),
}
"""Number of stages → the layers of each, where they are even."""


def save(*words: Saved) -> Save:
    """Recompute all but what these put out."""
    return Save(save=words)


def staged(on: str, roles: Any, *cut: str) -> tuple[tuple[str, Rows], ...]:
    """Stages on groups of one letter each. `roles` are those of all layers, or of each group's, dp where they are not
    given; `cut` the spans of each stage, even where they are not given.
    """
    of_all = roles if "x" in roles else None
    return tuple(
        (group, dict.fromkeys(spans.split(), of_all or roles.get(group, DP)))
        for group, spans in zip(on, cut or CUTS[len(on)], strict=True)
    )


GPT2 = {"family": "gpt2", "dropout": 0.1}
TIED = {**GPT2, "tied": True}
BOTH = uniform(node="dp/zero3", gpu="tp")


def on_groups(on: str, groups: Groups, roles: Any, *cut: str, **settings: Any) -> Case:
    """A case of stages as `staged` has them, in four micro-batches where not said otherwise."""
    return Case({}, {}, **{"groups": groups, "stages": staged(on, roles, *cut), "micro_batches": 4, **settings})


def _rows(*stages: tuple[str, Rows], **settings: Any) -> Case:
    return Case({}, {}, **{"groups": TWO, "stages": stages, "micro_batches": 4, **settings})


PIPELINES: dict[str, Case] = {
    "1f1b, tied": on_groups("ab", TWO, DP, "embed decoder.0-2", "decoder.3 head", **TIED),
    "1f1b, ends apart on ranks in any order": on_groups(
        "abcd", FOUR, DP, "embed", "decoder.0-2", "decoder.3", "head", micro_batches=8, padded=True
    ),
    "1f1b, few micro-batches": on_groups("abcd", FOUR, DP, micro_batches=2, changing=True),
    "1f1b, zero3 tied": on_groups("ab", TWO, ZERO3, **TIED),
    "1f1b, zero2 tied": on_groups("ab", TWO, ZERO2, **TIED, micro_batches=2),
    "1f1b, tp tied": on_groups("ab", TWO, TP, tied=True, micro_batches=2),
    "1f1b, one, two and one rank": on_groups(
        "abc", UNEQUAL, {"b": TP}, "embed decoder.0", "decoder.1-2", "decoder.3 head", padded=True
    ),
    "1f1b, one rank, then a ring of three": on_groups(
        "ab", ONE_AND_THREE, {"b": CP}, "embed decoder.0-2", "decoder.3 head", micro_batches=2
    ),
    "1f1b, every split and state": _rows(
        ("a", {"embed": ZERO1, "decoder.0": CP, "decoder.1": {"x": "ulysses/zero2"}}),
        ("b", {"decoder.2": SP, "decoder.3": {"x": "copy/zero1"}, "head": DP}),
        **GPT2,
        attention_dropout=0.2,
        padded=True,
        micro_batches=2,
        recompute={"decoder.0": "full", "decoder.2": "selective"},
    ),
    "1f1b, unlike rows in a stage": _rows(
        ("a", {"embed": DP, "decoder.0": TP, "decoder.1": DP}),
        ("b", {"decoder.2": TP, "decoder.3": ZERO3, "head": TP}),
    ),
    "gpipe, the embedding alone": on_groups("ab", TWO, DP, "embed", "decoder.0-3 head", **GPT2, schedule="gpipe"),
    "gpipe, zero3 reduced once": on_groups("ab", TWO, ZERO3, schedule="gpipe", execution={"sync": "last"}),
    "gpipe, a ring's zero1 and copies' zero2, reduced once": on_groups(
        "ab", TWO, {"a": {"x": "cp/zero1"}, "b": {"x": "copy/zero2"}}, schedule="gpipe", execution={"sync": "last"}
    ),
    "interleaved, zero1 tied": on_groups("abab", TWO, ZERO1, **TIED, schedule="interleaved", changing=True),
    "interleaved, zero3": on_groups("abab", TWO, ZERO3, schedule="interleaved"),
    "interleaved, tp+sp and zero2 under ulysses": on_groups(
        "abab", TWO, {"a": SP, "b": {"x": "ulysses/zero2"}}, **GPT2, schedule="interleaved", changing=True
    ),
    "zb-h1, tp then dp": on_groups("ab", TWO, {"a": TP, "b": DP}, **GPT2, schedule="zb-h1"),
    "zb-h1, cp then tp+sp": on_groups("ab", TWO, {"a": CP, "b": SP}, micro_batches=2, schedule="zb-h1"),
    "zbv, tied": on_groups("abba", TWO, DP, **TIED, schedule="zbv"),
    "zbv, a move between stages of a group": _rows(
        ("a", {"embed": TP, "decoder.0": TP}),
        ("b", {"decoder.1": TP}),
        ("b", {"decoder.2": DP}),
        ("a", {"decoder.3": DP, "head": DP}),
        schedule="zbv",
    ),
    "zbv, every split": _rows(
        ("a", {"embed": SP, "decoder.0": SP}),
        ("b", {"decoder.1": CP}),
        ("b", {"decoder.2": ULYSSES}),
        ("a", {"decoder.3": COPY, "head": SP}),
        **GPT2,
        schedule="zbv",
    ),
    "dualpipev, tp tied": on_groups("abba", TWO, TP, tied=True, schedule="dualpipev"),
    "dualpipev, ulysses tied": on_groups("abba", TWO, {"a": ULYSSES, "b": CP}, tied=True, schedule="dualpipev"),
    "one stage, gpipe, ranks in any order": _rows(("a", BOTH), groups={"a": ("0,2,1,3", SQUARE)}, schedule="gpipe"),
}
"""Stages on groups; unlike cuts, meshes, states and schedules."""

SAVES: dict[str, Case] = {
    "save matrices, tp": on_groups("ab", TWO, TP, **GPT2, recompute={"decoder.0-1": save("matmul")}),
    "save half, attention and sums, tp+sp": _rows(
        ("a", uniform(node="dp/zero3", gpu="tp+sp")),
        groups=ONE,
        **GPT2,
        recompute={"decoder.0-3": save("half-matmul", "attention", "collective")},
    ),
    "save sums, both kinds of tensor ranks": _rows(
        ("a", uniform(node="tp", gpu="tp+sp")), groups=ONE, **GPT2, recompute={"decoder.0-3": save("collective")}
    ),
    "save queries, keys and values, zero3": _rows(
        ("a", uniform(node="dp/zero3", gpu="dp/zero3")),
        groups=ONE,
        micro_batches=2,
        recompute={"decoder.0-3": save("qkv")},
    ),
    "save all, interleaved, tp tied": on_groups(
        "abab",
        TWO,
        TP,
        **TIED,
        schedule="interleaved",
        recompute=dict.fromkeys(("decoder.0", "decoder.1"), save("matmul", "attention", "collective")),
    ),
    "save a ring's attention, dropped, 1f1b": on_groups(
        "ab",
        TWO,
        {"a": CP, "b": ULYSSES},
        **GPT2,
        attention_dropout=0.2,
        padded=True,
        micro_batches=2,
        recompute={"decoder.0-1": save("qkv", "attention"), "decoder.2-3": save("matmul", "attention")},
    ),
    "save unlike things beside a ring and ulysses": on_groups(
        "ab",
        TWO,
        {"a": CP, "b": ULYSSES},
        recompute={"decoder.0-1": save("half-matmul"), "decoder.2-3": save("half-matmul", "attention")},
    ),
}
"""What forward keeps by name."""

RECOMPUTE: dict[str, Case] = {
    **SAVES,
    "full, zero3 and tp": _rows(("a", BOTH), groups=ONE, **GPT2, recompute={"decoder.0-3": "full"}),
    "selective, dp and tp": _rows(
        ("a", uniform(node="dp", gpu="tp")), groups=ONE, recompute={"decoder.0-3": "selective"}, padded=True
    ),
    "full and selective, 1f1b": on_groups(
        "ab", TWO, {"a": ZERO3, "b": TP}, **GPT2, recompute={"decoder.0-1": "full", "decoder.2-3": "selective"}
    ),
    "selective, zbv": on_groups(
        "abba", TWO, TP, recompute=dict.fromkeys(("decoder.1", "decoder.2"), "selective"), schedule="zbv"
    ),
}
"""What forward does not keep."""
