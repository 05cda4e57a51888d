"""The cases that families of models are proven with, on four processes."""

from tests.parity.cases import SQUARE
from tests.parity.harness import Case
from tests.parity.pipelines import CUTS, DP, TP, TWO, staged

_ENDS = {"node": "dp/zero1", "gpu": "tp"}
_MIXED = (
    "all",
    {
        "embed": _ENDS,
        "{0}.0": {"node": "dp/zero3", "gpu": "tp"},
        "{0}.1": {"node": "tp", "gpu": "tp"},
        "{0}.2": {"node": "dp/zero3", "gpu": "dp/zero3"},
        "{0}.3": {"node": "dp", "gpu": "dp/zero2"},
        "head": _ENDS,
    },
)


def _case(family: str, layers: str = "decoder", **settings: object) -> Case:
    group, rows = _MIXED
    named = {span.format(layers): roles for span, roles in rows.items()}
    fields = {"groups": {"all": ("0-3", SQUARE)}, "stages": ((group, named),), **settings}
    return Case({}, {}, family, **fields)  # type: ignore[arg-type]


FAMILIES: dict[str, Case] = {
    "mistral, windows": _case("mistral"),
    "qwen3, tied": _case("qwen3", tied=True),
    "phi3 with dropout": _case("phi3", dropout=0.1),
    "gemma3, windows, tied": _case("gemma3_text", tied=True, kv_heads=2),
    "gpt_neox with dropout": _case("gpt_neox", dropout=0.1),
    "opt tied with dropout": _case("opt", tied=True, dropout=0.1),
    "falcon tied with dropout": _case("falcon", tied=True, dropout=0.1),
    "falcon, one KV head": Case(
        {},
        {},
        "falcon",
        kv_heads=1,
        groups={"all": ("0-3", SQUARE)},
        stages=(("all", {span: {"node": "dp", "gpu": "dp/zero3"} for span in ("embed", "decoder.0-3", "head")}),),
    ),
    "her own, traced, with dropout": _case("OwnTransformer", "blocks", dropout=0.1),
    "bert tied with dropout": _case("bert", "encoder", tied=True, dropout=0.1),
    "vit with dropout": _case("vit", "encoder", dropout=0.1),
}
"""Unlike neighbours under all states that families have in common."""


def _staged(
    family: str, roles: object = TP, schedule: str = "1f1b", layers: str = "decoder", **settings: object
) -> Case:
    fields = {"groups": TWO, "micro_batches": 4, "schedule": schedule, **settings}
    on = "abba" if schedule == "zbv" else "ab"
    cut = [spans.replace("decoder", layers) for spans in CUTS[len(on)]]
    return Case({}, {}, family, stages=staged(on, roles, *cut), **fields)  # type: ignore[arg-type]


STAGED: dict[str, Case] = {
    "mistral, windows, 1f1b": _staged("mistral"),
    "qwen3, zbv, tied": _staged("qwen3", schedule="zbv", tied=True),
    "phi3, 1f1b, padded": _staged("phi3", {"a": DP, "b": TP}, dropout=0.1, padded=True),
    "gemma3, 1f1b, windows, tied": _staged("gemma3_text", tied=True),
    "gpt_neox, zbv": _staged("gpt_neox", schedule="zbv", dropout=0.1),
    "opt, 1f1b, tied": _staged("opt", DP, tied=True, dropout=0.1),
    "opt, zbv, outputs of layers are views": _staged("opt", schedule="zbv"),
}
"""On two stages, or four."""
