"""Qwen2-VL (transformers.models.qwen2_vl): a vision tower for images of any size, a merger, Qwen2's language model."""

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, block_stacks
from meshwright.model.families.encoders import added, plain_mlp, single
from meshwright.model.families.heads import Heads
from meshwright.model.families.images import mlp_width, pair
from meshwright.model.families.nested import nested
from meshwright.model.families.qwen import qwen2
from meshwright.model.operators import Activation, Attention, Convolution, Linear, Norm, Operator, Rotary
from meshwright.model.spec import LayerStack, ModelSpec, Stream

VISION = {
    "depth": 32,
    "embed_dim": 1280,
    "hidden_size": 3584,
    "hidden_act": "quick_gelu",
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
"""Of transformers' Qwen2VLVisionConfig."""
TEXT = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "sliding_window": 4096,
    "max_window_layers": 80,
}
"""Of transformers' Qwen2VLTextConfig."""
_AT = "model.visual"


def qwen2_vl(config: Config, name: str) -> ModelSpec:
    """Patches of images or of pairs of frames, pre-norm blocks with rotary positions in two dimensions, and a merger
    that makes one position of each square of patches, in the place of an image token. The recipe says how many
    `patches`, `merged` positions (a quarter of them) and `tokens`, the merged ones among them, a sample has.
    """
    vision, text = config.inner("vision_config").completed(VISION), _text(config)
    language = qwen2(text, name)
    stacks, shared, ties = nested(language, "model.language_model", "merger")
    if vision.size("hidden_size") != stacks[0].output:
        raise vision.error(
            "hidden_size", f"{vision.size('hidden_size')} is not the language model's, which is {stacks[0].output}"
        )
    return ModelSpec(
        name=name,
        family="qwen2_vl",
        source=config.source,
        streams={"patches": Stream(), "merged": Stream(), "tokens": Stream()},
        stacks=(*_tower(vision), _merger(vision), *stacks),
        shared=(f"{_AT}.rotary_pos_emb", *shared),
        ties=ties,
    )


def _text(config: Config) -> Config:
    """The language model's fields: their own mapping, or as older files have it, the whole configuration."""
    inner = config.inner("text_config")
    fields = inner.fields or {name: value for name, value in config.fields.items() if name != "vision_config"}
    tied = config.flag("tie_word_embeddings", False) or inner.flag("tie_word_embeddings", False)
    return Config(fields | {"tie_word_embeddings": tied}, inner.source if inner.fields else config.source).completed(
        TEXT
    )


def _tower(config: Config) -> tuple[LayerStack, ...]:
    width, (tall, wide) = config.size("embed_dim"), pair(config, "patch_size")
    pixels = config.size("in_channels") * config.size("temporal_patch_size") * tall * wide
    at, depth = f"{_AT}.blocks.{{i}}", config.layers("depth")
    conv = Convolution(path=f"{_AT}.patch_embed.proj", inputs=pixels, outputs=width, kernel=(1, 1, 1))
    return (
        single(
            "vision_embed",
            "embedding",
            [conv],  # its windows do not overlap: a matrix of each patch's pixels
            modules=(f"{_AT}.patch_embed",),
            output=width,
            stream="patches",
        ),
        *block_stacks("vision", at, _block(config, at), depth, reads=("vision_embed",), hidden=width, stream="patches"),
        single(
            "vision_norm",
            "norm",
            [_norm(f"{_AT}.merger.ln_q", width)],
            modules=(f"{_AT}.merger.ln_q",),
            output=width,
            reads=(f"vision.{depth - 1}",),
            stream="patches",
        ),
    )


def _block(config: Config, at: str) -> Block:
    width, count = config.size("embed_dim"), config.size("num_heads")
    if width % count:
        raise config.error("num_heads", f"{count} heads do not divide embed_dim, which is {width}")
    heads = Heads(width, count, count, width // count)
    attention: list[Operator] = [
        heads.fused(f"{at}.attn.qkv", bias=True),
        Rotary(width=2 * width),
        Attention(path=f"{at}.attn", heads=count, kv_heads=count, head_dim=heads.dim, causal=False),
        Linear(path=f"{at}.attn.proj", inputs=width, outputs=width, bias=True, split="row"),
    ]
    function = config.word("hidden_act", "quick_gelu")
    mlp = plain_mlp(width, mlp_width(config, width), f"{at}.mlp.fc1", f"{at}.mlp.fc2", function)
    return {
        "attention": added(_norm(f"{at}.norm1", width), attention),
        "mlp": added(_norm(f"{at}.norm2", width), mlp),
    }


def _merger(config: Config) -> LayerStack:
    at, output = f"{_AT}.merger.mlp", config.size("hidden_size")
    merged = config.size("embed_dim") * config.size("spatial_merge_size") ** 2
    return single(
        "merger",
        "mlp",
        [
            Linear(path=f"{at}.0", inputs=merged, outputs=merged, bias=True, split="column"),
            Activation(path=f"{at}.1", function="gelu", width=merged),
            Linear(path=f"{at}.2", inputs=merged, outputs=output, bias=True, split="row"),
        ],
        modules=(at,),
        output=output,
        reads=("vision_norm",),
        stream="merged",
    )


def _norm(path: str, width: int) -> Norm:
    return Norm(path=path, kind="layer", width=width, bias=True)
