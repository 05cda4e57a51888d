"""Feed-forward layers of routed experts, which many families share: a router, experts, and experts that all use."""

from dataclasses import dataclass
from typing import Literal

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import Block
from meshwright.model.families.llama import AT, Style, added, attention, block_norm, gated_matrices
from meshwright.model.operators import Activation, Add, Experts, Linear, Operator, Router


@dataclass(frozen=True)
class Mixture:
    """What the experts of a layer are, and how positions find them."""

    experts: int
    top_k: int
    ffn: int
    """Width of one expert."""
    groups: int = 1
    """Runs of experts, of which a position uses `used_groups`."""
    used_groups: int = 1
    router: str = "gate"
    """The router's name beside the experts."""
    bias: bool = False
    """Of the router and of the experts."""
    activation: str = "silu"
    scores: Literal["softmax", "sigmoid"] = "softmax"
    wide: bool = False
    """The router works in float32 whatever the compute dtype."""
    jitter: bool = False
    """What positions bring is multiplied by noise in training."""
    shared: int = 0
    """Width of the expert that all positions use; 0: there is none."""
    shared_name: str = "shared_experts"
    shared_gate: str | None = None
    """The matrix, where there is one, that gives the shared expert its weight for each position."""


def read_mixture(config: Config, experts: str, ffn: str, top_k: str = "num_experts_per_tok") -> Mixture:
    """The experts by the names that a family gives their fields. Raises DocumentError."""
    count, used = config.size(experts), config.size(top_k)
    if used > count:
        raise config.error(top_k, f"{used} is more than the {count} experts that {experts} gives")
    return Mixture(count, used, config.size(ffn))


def mixture_block(config: Config, style: Style, mixture: Mixture, window: int | None = None) -> Block:
    """Attention, and a feed-forward layer of experts instead of an MLP."""
    return {"attention": attention(config, style, window), **mixture_parts(config, style, mixture)}


def mixture_parts(config: Config, style: Style, mixture: Mixture) -> Block:
    """A feed-forward layer of experts in two parts, so that a plan may give the experts roles of their own: `experts`
    has these alone, and `mlp` all that works on positions where they are, the additions of what experts give back too.
    """
    hidden, at = config.size("hidden_size"), AT + style.mlp
    router = Router(
        path=f"{at}.{mixture.router}",
        hidden=hidden,
        experts=mixture.experts,
        top_k=mixture.top_k,
        bias=mixture.bias,
        function=mixture.scores,
        wide=mixture.wide,
    )
    experts = Experts(
        path=f"{at}.experts",
        count=mixture.experts,
        top_k=mixture.top_k,
        hidden=hidden,
        ffn=mixture.ffn,
        bias=mixture.bias,
        function=mixture.activation,
        groups=mixture.groups,
        used_groups=mixture.used_groups,
    )
    return {
        "mlp": [
            *block_norm(style.norms[2], hidden, style),
            *([Activation(function="jitter", width=hidden)] if mixture.jitter else ()),
            router,
            *(_shared(hidden, style, mixture, at) if mixture.shared else ()),
            *added(hidden, style),
        ],
        "experts": [experts],
    }


def _shared(hidden: int, style: Style, mixture: Mixture, at: str) -> list[Operator]:
    """The expert that all positions use, its weight, and the addition to the others."""
    weight: list[Operator] = []
    weighed: list[Operator] = []
    if mixture.shared_gate:  # it reads what the expert reads
        weight = [Linear(path=f"{at}.{mixture.shared_gate}", inputs=hidden, outputs=1)]
        weighed = [Activation(function="sigmoid", width=1), Activation(function="weigh", width=hidden)]
    expert = gated_matrices(hidden, mixture.shared, style, f"{at}.{mixture.shared_name}")
    return [*weight, *expert, *weighed, Add(width=hidden)]
