"""T5, T5 1.1 and Flan-T5 (transformers.models.t5): an encoder of `source`, a decoder of `target` that looks at it."""

from collections.abc import Sequence

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, block_stacks, dropout
from meshwright.model.families.encoders import Looking, Projections, added, attend, plain_mlp, single
from meshwright.model.families.heads import Heads
from meshwright.model.operators import Activation, Dropout, Embedding, Linear, Loss, Norm, Operator
from meshwright.model.spec import LayerStack, ModelSpec, Stream, Tie

DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "dropout_rate": 0.1,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
}
"""Of transformers' T5Config."""
_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_PROJECTIONS = Projections(("q", "k", "v", "o"), (False, False, False, False))


def t5(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks without biases, whose first one has the table of the relative positions of all; one embedding for
    both sides, and for the head where the configuration ties it.

    T5 1.1 is not tied, though transformers, from the configuration alone, builds it tied: it unties the head when a
    checkpoint that has one of its own is loaded, as every published one of T5 1.1 does.
    """
    config = config.completed(DEFAULTS, _ALIASES)
    config.only("is_decoder", False, default=False)
    config.only("is_encoder_decoder", True, default=True)
    layers = config.layers("num_layers")
    after = layers if config.fields.get("num_decoder_layers") is None else config.layers("num_decoder_layers")
    # transformers 5 writes the first as true always, and the second as what the first was
    tied = config.flag("tie_word_embeddings", True) and config.flag("scale_decoder_outputs", True)
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *(["lm_head.weight"] if tied else [])]
    return ModelSpec(
        name=name,
        family="t5",
        source=config.source,
        streams={"source": Stream(), "target": Stream()},
        stacks=(*_encoder(config, layers), *_decoder(config, after), _head(config, after, tied=tied)),
        ties=(Tie(name="embedding", owner="shared.weight", copies=tuple(copies)),),
    )


def _encoder(config: Config, layers: int) -> tuple[LayerStack, ...]:
    hidden = config.size("d_model")
    return (
        _embed(config, "encoder", ("shared", "encoder.embed_tokens", "encoder.dropout"), "source"),
        *block_stacks(
            "encoder",
            "encoder.block.{i}",
            _blocks(config, "encoder", layers),
            layers,
            reads=("encoder_embed",),
            hidden=hidden,
            stream="source",
        ),
        single(
            "encoder_norm",
            "norm",
            _last_norm(config, "encoder"),
            modules=("encoder.final_layer_norm",),
            output=hidden,
            reads=(f"encoder.{layers - 1}",),
            stream="source",
        ),
    )


def _decoder(config: Config, layers: int) -> tuple[LayerStack, ...]:
    return (
        _embed(config, "decoder", ("decoder.embed_tokens", "decoder.dropout"), "target"),
        *block_stacks(
            "decoder",
            "decoder.block.{i}",
            _blocks(config, "decoder", layers),
            layers,
            reads=("decoder_embed",),
            side=("encoder_norm",),
            hidden=config.size("d_model"),
            stream="target",
        ),
    )


def _embed(config: Config, side: str, modules: tuple[str, ...], stream: str) -> LayerStack:
    hidden, first = config.size("d_model"), modules[0]
    tied = first != "shared"
    return single(
        f"{side}_embed",
        "embedding",
        [
            Embedding(path=first, rows=config.size("vocab_size"), width=hidden, split="vocabulary", tied=tied),
            *_dropout(config, hidden, f"{side}.dropout"),
        ],
        modules=modules,
        output=hidden,
        stream=stream,
    )


def _head(config: Config, layers: int, *, tied: bool) -> LayerStack:
    hidden, vocabulary = config.size("d_model"), config.size("vocab_size")
    return single(
        "head",
        "head",
        [
            *_last_norm(config, "decoder"),
            *([Activation(function="scale", width=hidden)] if tied else []),
            Linear(path="lm_head", inputs=hidden, outputs=vocabulary, split="column", tied=tied),
            Loss(classes=vocabulary),
        ],
        modules=("decoder.final_layer_norm", "lm_head"),
        output=vocabulary,
        reads=(f"decoder.{layers - 1}",),
        stream="target",
    )


def _last_norm(config: Config, side: str) -> list[Operator]:
    hidden = config.size("d_model")
    norm = Norm(path=f"{side}.final_layer_norm", kind="rms", width=hidden)
    return [norm, *_dropout(config, hidden, f"{side}.dropout")]


def _blocks(config: Config, side: str, layers: int) -> Sequence[Block]:
    first, other = (_block(config, side, first=first) for first in (True, False))
    return [first, *[other] * (layers - 1)]


def _block(config: Config, side: str, *, first: bool) -> Block:
    """`first`: with the table of relative positions, which all blocks of its side use."""
    at, decodes = f"{side}.block.{{i}}.layer.", side == "decoder"
    path, count = f"{at}0.SelfAttention", config.size("num_heads")
    table = Embedding(
        path=f"{path}.relative_attention_bias", rows=config.size("relative_attention_num_buckets"), width=count
    )
    looking = Looking(causal=decodes, biased=True, relative=(table,) if first else ())
    parts = {"attention": _added(config, f"{at}0", _attend(config, path, looking))}
    if decodes:
        looking = Looking(cross="source")
        parts["cross_attention"] = _added(config, f"{at}1", _attend(config, f"{at}1.EncDecAttention", looking))
    at = f"{at}{len(parts)}"
    return parts | {"mlp": _added(config, at, _mlp(config, f"{at}.DenseReluDense"))}


def _added(config: Config, at: str, body: list[Operator]) -> list[Operator]:
    norm = Norm(path=f"{at}.layer_norm", kind="rms", width=config.size("d_model"))
    return added(norm, body, config.chance("dropout_rate", 0.1), f"{at}.dropout")


def _attend(config: Config, path: str, looking: Looking) -> list[Operator]:
    count = config.size("num_heads")
    heads = Heads(config.size("d_model"), count, count, config.size("d_kv"))
    return attend(heads, path, _PROJECTIONS, looking, chance=config.chance("dropout_rate", 0.1))


def _mlp(config: Config, at: str) -> list[Operator]:
    hidden, ffn = config.size("d_model"), config.size("d_ff")
    gated, function = _activation(config)
    inner = _dropout(config, ffn, f"{at}.dropout")
    if not gated:
        return plain_mlp(hidden, ffn, f"{at}.wi", f"{at}.wo", function, bias=False, dropped=inner)
    return [
        *(Linear(path=f"{at}.{wi}", inputs=hidden, outputs=ffn, split="column") for wi in ("wi_0", "wi_1")),
        Activation(function=function, width=ffn, gated=True),
        *inner,
        Linear(path=f"{at}.wo", inputs=ffn, outputs=hidden, split="row"),
    ]


def _activation(config: Config) -> tuple[bool, str]:
    """Whether the MLP is gated, and its function: `gated-gelu` stands for the tanh form."""
    said = config.word("feed_forward_proj", "relu")
    gate, _, function = said.rpartition("-")
    if gate not in ("", "gated") or not function:
        raise config.error("feed_forward_proj", f"must be a function or 'gated-' and a function (got '{said[:40]}')")
    return bool(gate), "gelu_new" if said == "gated-gelu" else function


def _dropout(config: Config, width: int, path: str) -> tuple[Dropout, ...]:
    return dropout(config.chance("dropout_rate", 0.1), width, "hidden", path)
