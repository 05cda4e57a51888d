"""The cases that the runtime's roles are proven with, on four processes."""

from dataclasses import replace

from tests.parity.harness import Case

FLAT, SQUARE = {"all": 4}, {"node": 2, "gpu": 2}


def uniform(**roles: str) -> dict[str, dict[str, str]]:
    """The same roles for every layer."""
    return {"embed": roles, "decoder.0-3": roles, "head": roles}


_TP = {"node": "tp", "gpu": "tp"}
_BOTH = {"node": "dp/zero3", "gpu": "tp"}

ROLES: dict[str, Case] = {
    "dp": Case(uniform(all="dp"), FLAT),
    "zero3": Case(uniform(all="dp/zero3"), FLAT),
    "tp": Case(uniform(all="tp"), FLAT),
    "hybrid shards": Case(uniform(node="dp", gpu="dp/zero3"), SQUARE),
    "dp and tp": Case(uniform(node="dp", gpu="tp"), SQUARE),
    "zero3 and tp": Case(uniform(node="dp/zero3", gpu="tp"), SQUARE),
    "tp outside, zero3 inside": Case(uniform(node="tp", gpu="dp/zero3"), SQUARE),
    "zero3 reduced once": Case(uniform(all="dp/zero3"), FLAT, execution={"sync": "last"}),
    "zero3 and tp, padded": Case(uniform(node="dp/zero3", gpu="tp"), SQUARE, padded=True),
    "small buckets": Case(uniform(all="dp"), FLAT, execution={"bucket_mib": 0.01}),
}
"""One pair of roles for all layers."""

MIXED: dict[str, Case] = {
    "tp 4, then tp 2 with zero3": Case({"embed": _TP, "decoder.0-1": _TP, "decoder.2-3": _BOTH, "head": _TP}, SQUARE),
    "zero3, then tp 4": Case(
        {
            "embed": {"node": "dp/zero3", "gpu": "dp/zero3"},
            "decoder.0-1": {"node": "dp/zero3", "gpu": "dp"},
            "decoder.2-3": _TP,
            "head": {"node": "dp", "gpu": "dp"},
        },
        SQUARE,
    ),
    "axes change places": Case(
        {
            "embed": {"node": "dp", "gpu": "tp"},
            "decoder.0-1": {"node": "tp", "gpu": "dp"},
            "decoder.2-3": _BOTH,
            "head": {"node": "tp", "gpu": "dp/zero3"},
        },
        SQUARE,
    ),
}
"""Neighbours with unlike roles."""

_AROUND = {"node": "dp", "gpu": "tp"}

SPLITS: dict[str, Case] = {
    "states side by side": Case(
        {
            "embed": {"node": "dp/zero1", "gpu": "tp"},
            "decoder.0": {"node": "dp/zero2", "gpu": "dp/zero2"},
            "decoder.1": {"node": "dp", "gpu": "dp/zero1"},
            "decoder.2": {"node": "dp/zero3", "gpu": "dp"},
            "decoder.3": {"node": "dp", "gpu": "tp"},
            "head": {"node": "dp/zero2", "gpu": "tp"},
        },
        SQUARE,
    ),
    "tied zero2 in replicas, reduced once": Case(
        uniform(node="dp", gpu="dp/zero2"), SQUARE, "gpt2", dropout=0.1, tied=True, execution={"sync": "last"}
    ),
    "tied zero1 and tp+sp, an odd vocabulary": Case(
        uniform(node="dp/zero1", gpu="tp+sp"), SQUARE, "gpt2", dropout=0.1, tied=True, vocabulary=63
    ),
    "all splits, recomputed": Case(
        {
            "embed": {"node": "dp", "gpu": "ulysses"},
            "decoder.0": {"node": "cp", "gpu": "tp+sp"},
            "decoder.1": {"node": "ulysses/zero1", "gpu": "dp"},
            "decoder.2": {"node": "tp+sp", "gpu": "cp/zero2"},
            "decoder.3": {"node": "copy/zero3", "gpu": "dp/zero3"},
            "head": {"node": "dp", "gpu": "tp+sp"},
        },
        SQUARE,
        recompute={"decoder.0": "full", "decoder.1": "selective"},
    ),
    "all splits with dropout": Case(
        {
            "embed": {"node": "dp", "gpu": "tp+sp"},
            "decoder.0": {"node": "ulysses", "gpu": "cp/zero2"},
            "decoder.1": {"node": "dp", "gpu": "dp/zero2"},
            "decoder.2": {"node": "dp", "gpu": "cp"},
            "decoder.3": {"node": "copy", "gpu": "tp"},
            "head": {"node": "ulysses/zero3", "gpu": "cp/zero3"},
        },
        SQUARE,
        "gpt2",
        dropout=0.1,
    ),
    "a ring of four": Case(uniform(node="cp", gpu="cp/zero3"), SQUARE, length=16),
    "copies": Case(uniform(node="copy/zero1", gpu="cp/zero1"), SQUARE, "gpt2", dropout=0.1),
    "KV heads copied, attention dropped": Case(uniform(all="tp"), FLAT, kv_heads=2, attention_dropout=0.2),
    "attention dropped, one tenth": Case(uniform(node="dp", gpu="tp"), SQUARE, "gpt2", attention_dropout=0.1),
    "one KV head for all": Case(uniform(node="tp+sp", gpu="ulysses/zero3"), SQUARE, kv_heads=1),
    "attention dropped, samples padded": Case(
        {
            "embed": _AROUND,
            "decoder.0-1": {"node": "ulysses", "gpu": "cp"},
            "decoder.2": {"node": "tp+sp", "gpu": "ulysses/zero2"},
            "decoder.3": {"node": "dp", "gpu": "tp+sp"},
            "head": _AROUND,
        },
        SQUARE,
        "gpt2",
        dropout=0.1,
        attention_dropout=0.2,
        padded=True,
    ),
}
"""What divides positions, heads and states, unlike neighbours first."""

FAMILIES: dict[str, dict[str, object]] = {
    "llama": {"family": "llama"},
    "llama tied": {"family": "llama", "tied": True},
    "gpt2 with dropout": {"family": "gpt2", "dropout": 0.1},
    "gpt2 tied with dropout": {"family": "gpt2", "tied": True, "dropout": 0.1},
}


def every() -> dict[str, Case]:
    """Roles by family; a tied embedding needs equal roles at both ends."""
    found = dict(SPLITS)
    for family, settings in FAMILIES.items():
        for name, case in {**ROLES, **MIXED}.items():
            if settings.get("tied") and case.rows["embed"] != case.rows["head"]:
                continue
            found[f"{family}: {name}"] = replace(case, **settings)  # type: ignore[arg-type]
    return found
