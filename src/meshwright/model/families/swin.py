"""Swin with a classifier (transformers.models.swin)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.explain import shown
from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block, block_stacks, dropout
from meshwright.model.families.encoders import Looking, Projections, added, attend, plain_mlp, single
from meshwright.model.families.heads import Heads
from meshwright.model.families.images import labels, mlp_width, pair, patches
from meshwright.model.operators import Activation, Add, Convolution, Linear, Loss, Norm, Operator, Parameter, Pool
from meshwright.model.spans import MAX_LAYERS
from meshwright.model.spec import LayerStack, ModelSpec, Stream

DEFAULTS = {
    "image_size": 224,
    "patch_size": 4,
    "num_channels": 3,
    "embed_dim": 96,
    "depths": [2, 2, 6, 2],
    "num_heads": [3, 6, 12, 24],
    "window_size": 7,
    "mlp_ratio": 4.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.1,
    "hidden_act": "gelu",
}
"""Of transformers' SwinConfig."""
MAX_STAGES = 16


@dataclass(frozen=True)
class _Stage:
    """One stage: blocks over a grid of its own, each cut into square windows."""

    number: int
    depth: int
    heads: Heads
    rows: int
    columns: int
    window: int
    """Side of a window."""

    @property
    def stream(self) -> str:
        """Its blocks' stream, and the first part of their names."""
        return f"stage{self.number}"

    @property
    def length(self) -> int:
        """Positions of its grid."""
        return self.rows * self.columns

    @property
    def padded(self) -> int | None:
        """Positions with those that fill up the last windows; none where all windows are full."""
        rows, columns = (-(-side // self.window) * self.window for side in (self.rows, self.columns))
        return None if rows * columns == self.length else rows * columns


def swin(config: Config, name: str) -> ModelSpec:
    """Pre-norm blocks in stages: each has a quarter of the positions of the one before, and twice their width.
    Attention stays within windows, which every other block shifts; scores get a learned bias.
    """
    config = config.completed(DEFAULTS)
    stages, classes = list(_stages(config)), labels(config)
    before = [("embed",), *(_reads(stage) for stage in stages[:-1])]
    last = stages[-1]
    return ModelSpec(
        name=name,
        family="swin",
        source=config.source,
        streams={stage.stream: Stream(length=stage.length) for stage in stages},
        stacks=(
            _embed(config, stages[0]),
            *(
                stack
                for stage, reads in zip(stages, before, strict=True)
                for stack in _stage(config, stage, reads, first=stage is stages[0], merges=stage is not last)
            ),
            _head(last, classes),
        ),
    )


def _stages(config: Config) -> Iterator[_Stage]:
    depths, counts = _sizes(config, "depths"), _sizes(config, "num_heads")
    if len(depths) != len(counts):
        raise config.error("num_heads", f"has {len(counts)} stages, but depths has {len(depths)}")
    width, window, (rows, columns) = config.size("embed_dim"), config.size("window_size"), patches(config, padded=True)
    for number, (depth, count) in enumerate(zip(depths, counts, strict=True), start=1):
        if width % count:
            raise config.error("num_heads", f"{count} heads do not divide the {width} of stage {number}")
        if window > min(rows, columns):
            raise config.error("window_size", f"{window} is more than the {rows} x {columns} patches of stage {number}")
        yield _Stage(number, depth, Heads(width, count, count, width // count), rows, columns, window)
        width, rows, columns = 2 * width, -(-rows // 2), -(-columns // 2)


def _sizes(config: Config, name: str) -> list[int]:
    """A list of sizes, one a stage."""
    value = config.fields.get(name)
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_STAGES:
        raise config.error(name, f"must be a list of 1 to {MAX_STAGES} whole numbers (got {shown(value)})")
    return [Config({name: size}, config.source).size(name, limit=MAX_LAYERS) for size in value]


def _reads(stage: _Stage) -> tuple[str, ...]:
    """The layer that the next stage reads."""
    return (f"merge{stage.number}",)


def _embed(config: Config, stage: _Stage) -> LayerStack:
    at, width, (tall, wide) = "swin.embeddings", stage.heads.hidden, pair(config, "patch_size")
    absolute = config.flag("use_absolute_embeddings", False)
    if absolute and patches(config) != (stage.rows, stage.columns):
        raise config.error("use_absolute_embeddings", "needs images that patches divide")
    positions = Parameter(path=f"{at}.position_embeddings", shape=(1, stage.length, width))
    return single(
        "embed",
        "embedding",
        [
            Convolution(
                path=f"{at}.patch_embeddings.projection",
                inputs=config.size("num_channels"),
                outputs=width,
                kernel=(tall, wide),
                bias=True,
                input_positions=stage.length * tall * wide,
            ),
            Norm(path=f"{at}.norm", kind="layer", width=width, bias=True),
            *((positions, Add(width=width)) if absolute else ()),
            *dropout(config.chance("hidden_dropout_prob", 0.0), width, "hidden", f"{at}.dropout"),
        ],
        modules=(at,),
        output=width,
        stream=stage.stream,
    )


def _stage(config: Config, stage: _Stage, reads: tuple[str, ...], *, first: bool, merges: bool) -> Iterator[LayerStack]:
    """A stage's blocks, and what merges its positions for the next one."""
    path, width = f"swin.encoder.layers.{stage.number - 1}", stage.heads.hidden
    yield from block_stacks(
        stage.stream,
        f"{path}.blocks.{{i}}",
        _blocks(config, stage, f"{path}.blocks.{{i}}.", first=first),
        stage.depth,
        reads=reads,
        hidden=width,
        stream=stage.stream,
    )
    if merges:
        at, next_one = f"{path}.downsample", f"stage{stage.number + 1}"
        yield single(
            f"merge{stage.number}",
            "merge",
            [
                Norm(path=f"{at}.norm", kind="layer", width=4 * width, bias=True),
                Linear(path=f"{at}.reduction", inputs=4 * width, outputs=2 * width),
            ],
            modules=(at,),
            output=2 * width,
            reads=(f"{stage.stream}.{stage.depth - 1}",),
            stream=next_one,
        )


def _blocks(config: Config, stage: _Stage, at: str, *, first: bool) -> Sequence[Block]:
    """All alike, but that the model's first never drops its paths."""
    paths = config.chance("drop_path_rate", 0.1)
    dropping, keeping = (_block(config, stage, at, drops=drops) for drops in (paths > 0, False))
    return [keeping if first else dropping, *[dropping] * (stage.depth - 1)]


def _block(config: Config, stage: _Stage, at: str, *, drops: bool) -> Block:
    heads, chance = stage.heads, config.chance("hidden_dropout_prob", 0.0)
    before, after = (
        Norm(path=f"{at}layernorm_{place}", kind="layer", width=heads.hidden, bias=True)
        for place in ("before", "after")
    )
    mlp = plain_mlp(
        heads.hidden, mlp_width(config, heads.hidden), f"{at}mlp.fc1", f"{at}mlp.fc2", config.word("hidden_act", "gelu")
    )
    dropped = dropout(chance, heads.hidden, "hidden", f"{at}dropout")
    attention = [
        *_attend(config, stage, f"{at}attention"),
        *(drop.model_copy(update={"positions": stage.padded}) for drop in dropped),
        *([Activation(function="drop_path", width=heads.hidden)] if drops else []),
    ]
    return {"attention": added(before, attention), "mlp": added(after, mlp, chance, f"{at}dropout")}


def _attend(config: Config, stage: _Stage, path: str) -> list[Operator]:
    bias = config.flag("qkv_bias", True)
    table = Parameter(
        path=f"{path}.relative_position_bias.relative_position_bias_table",
        shape=((2 * stage.window - 1) ** 2, stage.heads.count),
    )
    looking = Looking(block=stage.window**2, positions=stage.padded, relative=(table,), biased=True)
    return attend(
        stage.heads,
        path,
        Projections(biases=(bias, bias, bias, True)),
        looking,
        chance=config.chance("attention_probs_dropout_prob", 0.0),
    )


def _head(stage: _Stage, classes: int) -> LayerStack:
    width = stage.heads.hidden
    return single(
        "head",
        "head",
        [
            Norm(path="swin.layernorm", kind="layer", width=width, bias=True),
            Pool(path="swin.pooler", width=width, positions=1),
            Linear(path="classifier", inputs=width, outputs=classes, bias=True, positions=1),
            Loss(classes=classes, positions=1),
        ],
        modules=("swin.layernorm", "swin.pooler", "classifier"),
        output=classes,
        reads=(f"{stage.stream}.{stage.depth - 1}",),
        stream=stage.stream,
    )
