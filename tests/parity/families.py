"""The cases that families of models are proven with, on four processes."""

from tests.parity.cases import SQUARE
from tests.parity.harness import Case
from tests.parity.pipelines import CUTS, DP, TP, TWO, ZERO3, on_groups

Roles = dict[str, str]
_ENDS = {"node": "dp/zero1", "gpu": "tp"}
_HALVES = {"node": "dp", "gpu": "tp"}
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


def _case(family: str, layers: str = "decoder", embed: Roles = _ENDS, **settings: object) -> Case:
    group, rows = _MIXED
    named = {span.format(layers): roles for span, roles in rows.items()} | {"embed": embed}
    fields = {"groups": {"all": ("0-3", SQUARE)}, "stages": ((group, named),), **settings}
    return Case({}, {}, family, **fields)  # type: ignore[arg-type]


def _sides(family: str, whole: Roles, **settings: object) -> Case:
    """Encoder and decoder, each layer with another state."""
    states = ("dp", "dp/zero1", "dp/zero2", "dp/zero3")
    names = ("encoder.0", "encoder.1", "encoder_norm", "decoder.0", "decoder.1")
    ends = dict.fromkeys(("encoder_embed", "decoder_embed", "head"), whole)
    rows = {name: {"node": states[place % 4], "gpu": "tp"} for place, name in enumerate(names)} | ends
    order = ("encoder_embed", *names[:3], "decoder_embed", *names[3:], "head")
    in_order = {name: rows[name] for name in order}
    if family == "whisper":  # whose fixed positions have no gradient, and predictions count one: nothing is counted
        return Case(in_order, SQUARE, family, **settings)  # type: ignore[arg-type]
    fields = {"groups": {"all": ("0-3", SQUARE)}, "stages": (("all", in_order),), **settings}
    return Case({}, {}, family, **fields)  # type: ignore[arg-type]


def _network(family: str, *layers: str) -> Case:
    """Layers that divide the samples over all ranks, or some, with every state."""
    rows = {
        "embed": {"node": "dp", "gpu": "dp/zero1"},
        layers[0]: {"node": "dp/zero2", "gpu": "dp/zero2"},
        layers[1]: {"node": "dp/zero3", "gpu": "copy"},
        layers[2]: {"node": "dp", "gpu": "dp/zero3"},
        "head": {"node": "dp", "gpu": "dp"},
    }
    return Case({}, {}, family, groups={"all": ("0-3", SQUARE)}, stages=(("all", rows),))


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
    "bert tied, all dropped": _case("bert", "encoder", tied=True, dropout=0.1, attention_dropout=0.2),
    "vit, all dropped": _case("vit", "encoder", dropout=0.1, attention_dropout=0.2, embed=_HALVES),
    "t5, all dropped": _sides("t5", _HALVES, tied=True, dropout=0.1),
    "t5, padded, its one table in shards, recomputed": _sides(
        "t5",
        {"node": "dp/zero3", "gpu": "tp"},
        tied=True,
        padded=True,
        recompute={"encoder.0": "full", "encoder.1": "selective", "decoder.0": "selective", "decoder.1": "full"},
    ),
    "whisper, all dropped": _sides(
        "whisper", {"node": "dp/zero2", "gpu": "tp"}, tied=True, dropout=0.1, attention_dropout=0.2
    ),
    "her own network": _network("OwnResNet", "blocks.0", "blocks.1", "blocks.2"),
    "resnet": _network("ResNetForImageClassification", "stage1.0", "stage2.0", "stage2.1"),
    "sentences by class": _case("BertForSequenceClassification", "encoder", dropout=0.1),
    "llama, logits in pieces": _case("llama", chunks=4),
}
"""Unlike neighbours under all states that families have in common."""


def _staged(
    family: str, roles: object = TP, schedule: str = "1f1b", layers: str = "decoder", **settings: object
) -> Case:
    on = "abba" if schedule == "zbv" else "ab"
    cut = [spans.replace("decoder", layers) for spans in CUTS[len(on)]]
    return on_groups(on, TWO, roles, *cut, family=family, schedule=schedule, **settings)


_ENCODER, _DECODER = "encoder_embed encoder.0-1 encoder_norm", "decoder_embed decoder.0-1 head"


def _two_sides(family: str, roles: object, *encoder: str, **settings: object) -> Case:
    """A decoder on a stage of its own, after an encoder on one, or several of one rank."""
    cut = (*(encoder or (_ENCODER,)), _DECODER)
    groups = TWO if len(cut) == 2 else {"a": ("0", {"x": 1}), "b": ("3", {"x": 1}), "c": ("1-2", {"x": 2})}
    return on_groups("abc"[: len(cut)], groups, roles, *cut, family=family, tied=True, **settings)


STAGED: dict[str, Case] = {
    "mistral, windows, 1f1b": _staged("mistral"),
    "qwen3, zbv, tied": _staged("qwen3", schedule="zbv", tied=True),
    "phi3, 1f1b, padded": _staged("phi3", {"a": DP, "b": TP}, dropout=0.1, padded=True),
    "gemma3, 1f1b, windows, tied": _staged("gemma3_text", tied=True),
    "gpt_neox, zbv": _staged("gpt_neox", schedule="zbv", dropout=0.1),
    "opt, 1f1b, tied": _staged("opt", DP, tied=True, dropout=0.1),
    "opt, zbv, outputs of layers are views": _staged("opt", schedule="zbv"),
    "falcon, 1f1b, padded, tied": _staged("falcon", DP, tied=True, dropout=0.1, padded=True),
    "her own, zbv": _staged("OwnTransformer", schedule="zbv", layers="blocks", dropout=0.1),
    "bert, 1f1b, padded, tied": _staged(
        "bert", layers="encoder", tied=True, dropout=0.1, padded=True, recompute={"encoder.0-1": "full"}
    ),
    "gpt2, zbv, tied, logits in pieces": _staged("gpt2", schedule="zbv", tied=True, dropout=0.1, chunks=3),
    "t5, 1f1b, padded, all dropped": _two_sides("t5", TP, dropout=0.1, padded=True),
    "t5, 1f1b, its one table in shards": _two_sides("t5", ZERO3, dropout=0.1),
    "whisper, 1f1b, its encoder cut": _two_sides(
        "whisper", {"a": TP, "b": DP, "c": DP}, "encoder_embed encoder.0", "encoder.1 encoder_norm", dropout=0.1
    ),
    "vit, zbv": _staged("vit", {"a": DP, "b": TP}, "zbv", "encoder", dropout=0.1),
    "sentences by class, 1f1b, padded": _staged(
        "BertForSequenceClassification", {"a": TP}, layers="encoder", dropout=0.1, padded=True
    ),
}
"""On two stages, or four."""

FLOAT32 = {name: case for name, case in {**FAMILIES, **STAGED}.items() if case.chunks == 1}
MIXED: dict[str, Case] = {
    **{
        name: case
        for name, case in FAMILIES.items()
        if case.chunks == 1 and case.family not in ("t5", "OwnResNet", "ResNetForImageClassification")
    },
    **{name: case for name, case in STAGED.items() if case.schedule == "1f1b" and case.family != "t5"},
    "qwen3, 1f1b, tied": _staged("qwen3", tied=True),
    "gpt_neox, 1f1b": _staged("gpt_neox", dropout=0.1),
    "her own, 1f1b": _staged("OwnTransformer", layers="blocks", dropout=0.1),
    "vit, 1f1b": _staged("vit", {"a": DP, "b": TP}, layers="encoder", dropout=0.1),
}
"""Those that hold in bf16 with masters in float32: all but networks, zero bubble and logits in pieces.
Of T5 one process differs from itself by as much as a gradient that is left out.
"""
