"""ViT with a classifier (transformers.models.vit)."""

import math

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, block_stacks, dropout
from meshwright.model.families.encoders import Projections, added, attend, plain_mlp, single
from meshwright.model.families.heads import read_heads
from meshwright.model.families.images import labels, pair, patches
from meshwright.model.operators import Add, Convolution, Linear, Loss, Norm, Operator, Parameter
from meshwright.model.spec import ModelSpec, Stream

DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
"""Of transformers' ViTConfig."""
_AT = "vit.layers.{i}."


def vit(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks over the patches of one image and a class token before them, which alone is classified."""
    config = config.completed(DEFAULTS)
    hidden, layers, classes = config.size("hidden_size"), config.layers(), labels(config)
    rows, columns = patches(config)
    return ModelSpec(
        name=name,
        family="vit",
        source=config.source,
        streams={"patches": Stream(length=rows * columns + 1)},
        stacks=(
            single(
                "embed",
                "embedding",
                _embedding(config, hidden, rows * columns),
                modules=("vit.embeddings",),
                output=hidden,
                stream="patches",
            ),
            *block_stacks(
                "encoder", "vit.layers.{i}", _block(config), layers, reads=("embed",), hidden=hidden, stream="patches"
            ),
            single(
                "head",
                "head",
                [
                    Norm(path="vit.layernorm", kind="layer", width=hidden, bias=True),
                    Linear(path="classifier", inputs=hidden, outputs=classes, bias=True, positions=1),
                    Loss(classes=classes, positions=1),
                ],
                modules=("vit.layernorm", "classifier"),
                output=classes,
                reads=(f"encoder.{layers - 1}",),
                stream="patches",
            ),
        ),
    )


def _embedding(config: Config, hidden: int, count: int) -> list[Operator]:
    at, (height, width) = "vit.embeddings", pair(config, "patch_size")
    return [
        Convolution(
            path=f"{at}.patch_embeddings.projection",
            inputs=config.size("num_channels"),
            outputs=hidden,
            kernel=(height, width),
            bias=True,
            positions=count,
            input_positions=math.prod(pair(config, "image_size")),
        ),
        Parameter(path=f"{at}.cls_token", shape=(1, 1, hidden)),
        Parameter(path=f"{at}.position_embeddings", shape=(1, count + 1, hidden)),
        Add(width=hidden),
        *dropout(config.chance("hidden_dropout_prob", 0.0), hidden, "hidden", f"{at}.dropout"),
    ]


def _block(config: Config) -> Block:
    heads, chance = read_heads(config), config.chance("hidden_dropout_prob", 0.0)
    bias = config.flag("qkv_bias", True)
    before, after = (
        Norm(path=f"{_AT}layernorm_{place}", kind="layer", width=heads.hidden, bias=True)
        for place in ("before", "after")
    )
    attention = attend(
        heads,
        f"{_AT}attention",
        Projections(biases=(bias, bias, bias, True)),
        chance=config.chance("attention_probs_dropout_prob", 0.0),
    )
    up, down = f"{_AT}mlp.fc1", f"{_AT}mlp.fc2"
    mlp = plain_mlp(heads.hidden, config.size("intermediate_size"), up, down, config.word("hidden_act", "gelu"))
    return {
        "attention": added(before, attention, chance, f"{_AT}dropout"),
        "mlp": added(after, mlp, chance, f"{_AT}dropout"),
    }
