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

FAMILIES: dict[str, dict[str, object]] = {
    "llama": {"family": "llama"},
    "llama tied": {"family": "llama", "tied": True},
    "gpt2 with dropout": {"family": "gpt2", "dropout": 0.1},
    "gpt2 tied with dropout": {"family": "gpt2", "tied": True, "dropout": 0.1},
}


def every() -> dict[str, Case]:
    """Roles by family; a tied embedding needs equal roles at both ends."""
    found = {}
    for family, settings in FAMILIES.items():
        for name, case in {**ROLES, **MIXED}.items():
            if settings.get("tied") and case.rows["embed"] != case.rows["head"]:
                continue
            found[f"{family}: {name}"] = replace(case, **settings)  # type: ignore[arg-type]
    return found
