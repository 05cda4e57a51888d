"""What encoders, and decoders that look at an encoder, have in common: plain attention and MLPs, with a norm before or
after each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.model.families.decoder import dropout
from meshwright.model.families.heads import Heads
from meshwright.model.operators import Activation, Add, Attention, Dropout, Linear, Norm, Operator
from meshwright.model.spec import LayerStack, Part


@dataclass(frozen=True)
class Looking:
    """How an attention looks at positions; the defaults are an encoder's, which looks at all of its own stream."""

    causal: bool = False
    cross: str | None = None
    """The stream that keys and values come from, where it is another one."""
    block: int | None = None
    positions: int | None = None
    """Positions of a sample where padding makes them more than the stream's."""
    relative: Sequence[Operator] = ()
    """What makes the learned bias of the scores, where this block makes it."""
    biased: bool = False
    """True where the scores get a learned bias."""


ENCODER = Looking()


@dataclass(frozen=True)
class Projections:
    """Names of the matrices within an attention's module, and which have a bias."""

    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Of queries, keys, values, and the output."""
    biases: tuple[bool, bool, bool, bool] = (True, True, True, True)


def attend(
    heads: Heads,
    at: str,
    projections: Projections,
    looking: Looking = ENCODER,
    *,
    chance: float = 0.0,
    core: str = "",
    dropout_path: str = "",
) -> list[Operator]:
    """Projections, core and output matrix of the attention at the path `at`; `chance` is that of dropout on its
    weights, `core` and `dropout_path` the modules of the two where they are others.
    """
    core, positions = core or at, looking.positions
    names, biases = projections.names, projections.biases
    streams = (None, looking.cross, looking.cross)
    return [
        *(
            Linear(
                path=f"{at}.{name}",
                inputs=heads.hidden,
                outputs=heads.queries,
                bias=bias,
                split="column",
                stream=stream,
                positions=positions,
            )
            for name, bias, stream in zip(names, biases, streams, strict=False)
        ),
        *looking.relative,
        Attention(
            path=core,
            heads=heads.count,
            kv_heads=heads.kv,
            head_dim=heads.dim,
            causal=looking.causal,
            cross=looking.cross,
            block=looking.block,
            positions=positions,
            relative=looking.biased,
        ),
        *_on_weights(heads, looking, chance, dropout_path or core),
        Linear(
            path=f"{at}.{names[3]}",
            inputs=heads.queries,
            outputs=heads.hidden,
            bias=biases[3],
            split="row",
            positions=positions,
        ),
    ]


def _on_weights(heads: Heads, looking: Looking, chance: float, path: str) -> list[Dropout]:
    if not chance:
        return []
    return [
        Dropout(
            path=path,
            width=heads.count,
            probability=chance,
            of="attention",
            cross=looking.cross,
            block=looking.block,
            positions=looking.positions,
        )
    ]


def plain_mlp(
    hidden: int, ffn: int, up: str, down: str, activation: str, *, bias: bool = True, dropped: Sequence[Dropout] = ()
) -> list[Operator]:
    """down(act(up(x))), with the module paths of the two matrices; `dropped` comes between."""
    return [
        Linear(path=up, inputs=hidden, outputs=ffn, bias=bias, split="column"),
        Activation(function=activation, width=ffn),
        *dropped,
        Linear(path=down, inputs=ffn, outputs=hidden, bias=bias, split="row"),
    ]


def added(
    norm: Norm,
    body: Sequence[Operator],
    chance: float = 0.0,
    dropout_path: str = "",
    *,
    place: Literal["before", "after"] = "before",
) -> list[Operator]:
    """A body with its norm, dropout and the addition to what it read; the norm comes before the body, or after the
    addition.
    """
    inside = [*body, *dropout(chance, norm.width, "hidden", dropout_path), Add(width=norm.width)]
    return [norm, *inside] if place == "before" else [*inside, norm]


def single(
    span: str,
    part: str,
    operators: Sequence[Operator],
    *,
    modules: tuple[str, ...],
    output: int,
    reads: tuple[str, ...] = (),
    side: tuple[str, ...] = (),
    stream: str = "tokens",
) -> LayerStack:
    """One layer with one part."""
    return LayerStack(
        span=span,
        modules=modules,
        reads=reads,
        side=side,
        stream=stream,
        output=output,
        parts=(Part(name=part, operators=tuple(operators)),),
    )
