"""Whisper (transformers.models.whisper): an encoder of `audio`, a decoder of text that looks at it."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, block_stacks, dropout
from meshwright.model.families.encoders import ENCODER, Looking, Projections, added, attend, plain_mlp, single
from meshwright.model.families.heads import Heads, read_heads
from meshwright.model.operators import Activation, Add, Convolution, Embedding, Linear, Loss, Norm, Operator
from meshwright.model.spec import LayerStack, ModelSpec, Stream, Tie

DEFAULTS = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "d_model": 384,
    "activation_function": "gelu",
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "tie_word_embeddings": True,
}
"""Of transformers' WhisperConfig."""
_ALIASES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}
_PROJECTIONS = Projections(("q_proj", "k_proj", "v_proj", "out_proj"), (True, False, True, True))
_STRIDE = 2
"""Of the second convolution: frames to positions."""
_KERNEL = 3


def whisper(config: Config, name: str) -> ModelSpec:
    """Two convolutions over the frames of audio, then pre-norm blocks whose keys have no bias. The encoder's positions
    are a table that transformers does not train; it counts as parameters here, as in every published total.
    """
    config = config.completed(DEFAULTS, _ALIASES)
    for layerdrop in ("encoder_layerdrop", "decoder_layerdrop"):
        config.only(layerdrop, 0, default=0)
    hidden, vocabulary = config.size("d_model"), config.size("vocab_size")
    layers, after = config.layers("encoder_layers"), config.layers("decoder_layers")
    tied = config.flag("tie_word_embeddings", True)
    owner = "model.decoder.embed_tokens.weight"
    return ModelSpec(
        name=name,
        family="whisper",
        source=config.source,
        streams={
            "audio": Stream(length=config.size("max_source_positions")),
            "tokens": Stream(limit=config.size("max_target_positions")),
        },
        stacks=(
            *_encoder(config, hidden, layers),
            *_decoder(config, hidden, after),
            single(
                "head",
                "head",
                [
                    _norm("model.decoder.layer_norm", hidden),
                    Linear(path="proj_out", inputs=hidden, outputs=vocabulary, split="column", tied=tied),
                    Loss(classes=vocabulary),
                ],
                modules=("model.decoder.layer_norm", "proj_out"),
                output=vocabulary,
                reads=(f"decoder.{after - 1}",),
            ),
        ),
        ties=(Tie(name="embedding", owner=owner, copies=("proj_out.weight",)),) if tied else (),
    )


def _encoder(config: Config, hidden: int, layers: int) -> tuple[LayerStack, ...]:
    at = "model.encoder"
    return (
        single(
            "encoder_embed",
            "embedding",
            _stem(config, hidden),
            modules=tuple(f"{at}.{module}" for module in ("conv1", "conv2", "embed_positions")),
            output=hidden,
            stream="audio",
        ),
        *block_stacks(
            "encoder",
            f"{at}.layers.{{i}}",
            _block(config, "encoder"),
            layers,
            reads=("encoder_embed",),
            hidden=hidden,
            stream="audio",
        ),
        single(
            "encoder_norm",
            "norm",
            [_norm(f"{at}.layer_norm", hidden)],
            modules=(f"{at}.layer_norm",),
            output=hidden,
            reads=(f"encoder.{layers - 1}",),
            stream="audio",
        ),
    )


def _stem(config: Config, hidden: int) -> list[Operator]:
    at, rows = "model.encoder", config.size("max_source_positions")
    frames, conv = _STRIDE * rows, {"outputs": hidden, "kernel": (_KERNEL,), "bias": True}
    return [
        Convolution.model_validate(
            conv | {"path": f"{at}.conv1", "inputs": config.size("num_mel_bins"), "positions": frames}
        ),
        Activation(function="gelu", width=hidden, positions=frames),
        Convolution.model_validate(conv | {"path": f"{at}.conv2", "inputs": hidden, "input_positions": frames}),
        Activation(function="gelu", width=hidden),
        Embedding(path=f"{at}.embed_positions", rows=rows, width=hidden),
        Add(width=hidden),
        *dropout(config.chance("dropout", 0.0), hidden, "hidden", at),
    ]


def _decoder(config: Config, hidden: int, layers: int) -> tuple[LayerStack, ...]:
    at = "model.decoder"
    return (
        single(
            "decoder_embed",
            "embedding",
            [
                Embedding(path=f"{at}.embed_tokens", rows=config.size("vocab_size"), width=hidden, split="vocabulary"),
                Embedding(path=f"{at}.embed_positions", rows=config.size("max_target_positions"), width=hidden),
                Add(width=hidden),
                *dropout(config.chance("dropout", 0.0), hidden, "hidden", at),
            ],
            modules=(f"{at}.embed_tokens", f"{at}.embed_positions"),
            output=hidden,
        ),
        *block_stacks(
            "decoder",
            f"{at}.layers.{{i}}",
            _block(config, "decoder"),
            layers,
            reads=("decoder_embed",),
            side=("encoder_norm",),
            hidden=hidden,
        ),
    )


def _block(config: Config, side: str) -> Block:
    at, heads = f"model.{side}.layers.{{i}}", read_heads(config, hidden="d_model", heads=f"{side}_attention_heads")
    looking = Looking(causal=True) if side == "decoder" else ENCODER
    parts = {"attention": _attention(config, heads, at, "self_attn", looking)}
    if side == "decoder":
        parts["cross_attention"] = _attention(config, heads, at, "encoder_attn", Looking(cross="audio"))
    chance, ffn = config.chance("activation_dropout", 0.0), config.size(f"{side}_ffn_dim")
    mlp = plain_mlp(
        heads.hidden,
        ffn,
        f"{at}.fc1",
        f"{at}.fc2",
        config.word("activation_function", "gelu"),
        dropped=dropout(chance, ffn, "hidden", at),
    )
    norm = _norm(f"{at}.final_layer_norm", heads.hidden)
    return parts | {"mlp": added(norm, mlp, config.chance("dropout", 0.0), at)}


def _attention(config: Config, heads: Heads, at: str, module: str, looking: Looking) -> list[Operator]:
    path = f"{at}.{module}"
    body = attend(heads, path, _PROJECTIONS, looking, chance=config.chance("attention_dropout", 0.0))
    return added(_norm(f"{path}_layer_norm", heads.hidden), body, config.chance("dropout", 0.0), at)


def _norm(path: str, hidden: int) -> Norm:
    return Norm(path=path, kind="layer", width=hidden, bias=True)
