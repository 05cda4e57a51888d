"""CLIP (transformers.models.clip): a tower of images and one of text, and the vision towers that other models take over
from it and from SigLIP (siglip).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, block_stacks
from meshwright.model.families.encoders import ENCODER, Looking, Projections, added, attend, plain_mlp, single
from meshwright.model.families.heads import read_heads
from meshwright.model.families.images import pair, patches
from meshwright.model.operators import Add, Contrast, Convolution, Embedding, Linear, Norm, Operator, Parameter
from meshwright.model.spec import LayerStack, ModelSpec, Stream

VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
}
"""Of transformers' CLIPVisionConfig."""
SIGLIP_VISION = VISION | {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh"}
"""Of transformers' SiglipVisionConfig."""
TEXT = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
}
"""Of transformers' CLIPTextConfig."""
_PROJECTIONS = Projections(("q_proj", "k_proj", "v_proj", "out_proj"))


@dataclass(frozen=True)
class VisionTower:
    """A kind of vision tower."""

    defaults: Mapping[str, object]
    class_token: bool
    """True where a learned position comes before the patches, and a norm before the blocks."""


TOWERS = {
    "clip_vision_model": VisionTower(VISION, class_token=True),
    "siglip_vision_model": VisionTower(SIGLIP_VISION, class_token=False),
}
"""`model_type` → kind."""


def clip(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks over the patches of one image and a class token, and over the tokens of one text; one position of
    each goes through a matrix, and what belongs together shall be alike.
    """
    config = config.completed({"projection_dim": 512})
    for old in ("text_config_dict", "vision_config_dict"):
        config.only(old, None)
    text, vision = config.inner("text_config").completed(TEXT), config.inner("vision_config").completed(VISION)
    width = config.size("projection_dim")
    tower = TOWERS["clip_vision_model"]
    return ModelSpec(
        name=name,
        family="clip",
        source=config.source,
        streams={
            "patches": Stream(length=tower_positions(vision, tower)),
            "tokens": Stream(limit=text.size("max_position_embeddings")),
        },
        stacks=(
            *vision_stacks(vision, tower, "vision_model", positions=_count(vision)),
            _projected(vision, "vision", ("vision_model.post_layernorm", "visual_projection"), width),
            *_text_stacks(text),
            _projected(text, "text", ("text_model.final_layer_norm", "text_projection"), width),
            single(
                "contrast",
                "contrast",
                [Parameter(path="logit_scale", shape=()), Contrast(width=width, positions=1)],
                modules=("",),
                output=1,
                reads=("vision_head", "text_head"),
            ),
        ),
    )


def tower_positions(config: Config, tower: VisionTower) -> int:
    """Positions of one image in a vision tower."""
    return _count(config) + tower.class_token


def _count(config: Config) -> int:
    rows, columns = patches(config)
    return rows * columns


def vision_stacks(
    config: Config, tower: VisionTower, at: str, *, positions: int | None = None, seen: str | None = None
) -> tuple[LayerStack, ...]:
    """`vision_embed` and `vision.0-n` on the stream `patches`, at the module path `at`. Patches are `positions` a
    sample, or where a sample may have several images, the positions of the stream `seen`; images see themselves alone.
    """
    block = tower_positions(config, tower) if positions is None else None
    return (
        single(
            "vision_embed",
            "embedding",
            _vision_embedding(config, tower, at, positions, seen),
            modules=(f"{at}.embeddings", *((f"{at}.pre_layrnorm",) if tower.class_token else ())),
            output=config.size("hidden_size"),
            stream="patches",
        ),
        *block_stacks(
            "vision",
            f"{at}.encoder.layers.{{i}}",
            _block(config, f"{at}.encoder.layers.{{i}}.", Looking(block=block)),
            config.layers(),
            reads=("vision_embed",),
            hidden=config.size("hidden_size"),
            stream="patches",
        ),
    )


def _vision_embedding(
    config: Config, tower: VisionTower, at: str, positions: int | None, seen: str | None
) -> list[Operator]:
    hidden, (tall, wide) = config.size("hidden_size"), pair(config, "patch_size")
    table = f"{at}.embeddings.position_embedding"
    first: list[Operator] = [Parameter(path=f"{at}.embeddings.class_embedding", shape=(hidden,))]
    norm = Norm(path=f"{at}.pre_layrnorm", kind="layer", width=hidden, bias=True)
    return [
        Convolution(  # its windows do not overlap: a matrix of each patch's pixels
            path=f"{at}.embeddings.patch_embedding",
            inputs=config.size("num_channels") * tall * wide,
            outputs=hidden,
            kernel=(1, 1),
            bias=not tower.class_token,
            positions=positions,
            stream=seen,
        ),
        *(first if tower.class_token else ()),
        Embedding(path=table, rows=tower_positions(config, tower), width=hidden),
        Add(width=hidden),
        *([norm] if tower.class_token else ()),
    ]


def _text_stacks(config: Config) -> tuple[LayerStack, ...]:
    at, hidden = "text_model", config.size("hidden_size")
    tables = {
        "token_embedding": config.size("vocab_size"),
        "position_embedding": config.size("max_position_embeddings"),
    }
    return (
        single(
            "text_embed",
            "embedding",
            [
                *(
                    Embedding(path=f"{at}.embeddings.{table}", rows=rows, width=hidden)
                    for table, rows in tables.items()
                ),
                Add(width=hidden),
            ],
            modules=(f"{at}.embeddings",),
            output=hidden,
        ),
        *block_stacks(
            "text",
            f"{at}.encoder.layers.{{i}}",
            _block(config, f"{at}.encoder.layers.{{i}}.", Looking(causal=True)),
            config.layers(),
            reads=("text_embed",),
            hidden=hidden,
        ),
    )


def _block(config: Config, at: str, looking: Looking = ENCODER) -> Block:
    heads, ffn = read_heads(config), config.size("intermediate_size")
    first, second = (
        Norm(path=f"{at}{norm}", kind="layer", width=heads.hidden, bias=True) for norm in ("layer_norm1", "layer_norm2")
    )
    chance = config.chance("attention_dropout", 0.0)
    mlp = plain_mlp(heads.hidden, ffn, f"{at}mlp.fc1", f"{at}mlp.fc2", config.word("hidden_act", "quick_gelu"))
    return {
        "attention": added(first, attend(heads, f"{at}self_attn", _PROJECTIONS, looking, chance=chance)),
        "mlp": added(second, mlp),
    }


def _projected(config: Config, tower: str, modules: tuple[str, str], width: int) -> LayerStack:
    """A tower's norm, of its one pooled position or of all, and the matrix to the common width."""
    hidden, (norm, matrix), vision = config.size("hidden_size"), modules, tower == "vision"
    return single(
        f"{tower}_head",
        "head",
        [
            Norm(path=norm, kind="layer", width=hidden, bias=True, positions=1 if vision else None),
            Linear(path=matrix, inputs=hidden, outputs=width, positions=1),
        ],
        modules=modules,
        output=width,
        reads=(f"{tower}.{config.layers() - 1}",),
        stream="patches" if vision else "tokens",
    )
