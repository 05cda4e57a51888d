"""Mamba 1 and 2, and Falcon Mamba (transformers.models.mamba, mamba2, falcon_mamba)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from meshwright.model.families.config import Config
from meshwright.model.families.decoder import decoder_model, language_head
from meshwright.model.operators import Activation, Add, Convolution, Embedding, Linear, Norm, Operator, Parameter, Scan
from meshwright.model.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "expand": 2,
    "conv_kernel": 4,
    "tie_word_embeddings": True,
}
"""Of transformers' MambaConfig, and of FalconMambaConfig."""
DEFAULTS_2 = {
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "expand": 2,
    "conv_kernel": 4,
    "num_heads": 128,
    "head_dim": 64,
    "n_groups": 8,
    "chunk_size": 256,
    "tie_word_embeddings": False,
}
"""Of transformers' Mamba2Config."""
_AT = "backbone.layers.{i}."


Norms: TypeAlias = Literal["none", "plain", "weighted"]
"""Those inside of a mixer: none at all, or with weights or without."""


@dataclass(frozen=True)
class Mixer:
    """Sizes of a selective state-space mixer of the first kind, and what a kin does otherwise."""

    hidden: int
    channels: int
    state: int
    rank: int
    """Of the steps of time, before they are spread over the channels."""
    kernel: int
    bias: bool
    kernel_bias: bool
    activation: str
    norms: Norms = "none"
    """Of steps, and of what goes into states and out of them."""


def mamba(config: Config, name: str) -> ModelSpec:
    """A norm and a mixer in every layer, and nothing else; no positions are told apart but by their order."""
    config = config.completed(DEFAULTS)
    return _model(config, name, "mamba", mixer(read_mixer(config), _AT + "mixer"))


def falcon_mamba(config: Config, name: str) -> ModelSpec:
    """Mamba with norms without weights inside of the mixer."""
    config = config.completed(DEFAULTS)
    return _model(config, name, "falcon_mamba", mixer(read_mixer(config, norms="plain"), _AT + "mixer"))


def mamba2(config: Config, name: str) -> ModelSpec:
    """Channels in heads that decay alike; one matrix makes all that a mixer needs, and the scan works in chunks."""
    config = config.completed(DEFAULTS_2)
    return _model(config, name, "mamba2", _mixer_2(config, _AT + "mixer"))


def _model(config: Config, name: str, family: str, body: list[Operator]) -> ModelSpec:
    hidden, vocabulary = config.size("hidden_size"), config.size("vocab_size")
    tied = config.flag("tie_word_embeddings", True)
    before, last = (Norm(path=path, kind="rms", width=hidden) for path in (f"{_AT}norm", "backbone.norm_f"))
    return decoder_model(
        config,
        name,
        [Embedding(path="backbone.embeddings", rows=vocabulary, width=hidden, split="vocabulary")],
        {"mixer": [before, *body, Add(width=hidden)]},
        language_head(last, hidden, vocabulary, tied=tied),
        layers=config.layers(),
        hidden=hidden,
        vocabulary=vocabulary,
        modules=(("backbone.embeddings",), "backbone.layers.{i}", ("backbone.norm_f", "lm_head")),
        family=family,
        tied=tied,
    )


_FIELDS = {
    "": ("expand", "state_size", "time_step_rank", "conv_kernel", "use_bias", "use_conv_bias"),
    "mamba_": tuple(f"mamba_{field}" for field in ("expand", "d_state", "dt_rank", "d_conv", "proj_bias", "conv_bias")),
}
"""The same fields in Mamba and, with a prefix, in Jamba."""


def read_mixer(config: Config, prefix: Literal["", "mamba_"] = "", norms: Norms = "none") -> Mixer:
    """The sizes of a mixer, by the names that their fields have with a prefix or without. Raises DocumentError."""
    expand, state, rank, kernel, bias, kernel_bias = _FIELDS[prefix]
    hidden = config.size("hidden_size")
    usual = config.fields.get(rank) in (None, "auto")
    return Mixer(
        hidden=hidden,
        channels=config.size(expand) * hidden,
        state=config.size(state),
        rank=-(-hidden // 16) if usual else config.size(rank),
        kernel=config.size(kernel),
        bias=config.flag(bias, False),
        kernel_bias=config.flag(kernel_bias, True),
        activation=config.word("hidden_act", "silu"),
        norms=norms,
    )


def mixer(sizes: Mixer, at: str) -> list[Operator]:
    """A mixer of the first kind, without the norm before it and the addition after it. Steps, and what goes into states
    and out of them, depend on the position (Gu and Dao 2023, section 3.2).
    """
    channels, state, rank = sizes.channels, sizes.state, sizes.rank
    return [
        Linear(
            path=f"{at}.in_proj",
            inputs=sizes.hidden,
            outputs=2 * channels,
            bias=sizes.bias,
            split="column",
            segments=(channels, channels),
        ),
        _convolution(at, channels, sizes.kernel, bias=sizes.kernel_bias),
        Activation(function=sizes.activation, width=channels),
        Linear(path=f"{at}.x_proj", inputs=channels, outputs=rank + 2 * state, split="row"),
        *_inner_norms(sizes, at),
        Linear(path=f"{at}.dt_proj", inputs=rank, outputs=channels, bias=True, split="column"),
        Activation(function="softplus", width=channels),
        Parameter(path=f"{at}.A_log", shape=(channels, state)),
        Scan(path=at, width=channels, state=state),
        Parameter(path=f"{at}.D", shape=(channels,)),
        Activation(function="silu", width=channels, gated=True),
        Linear(path=f"{at}.out_proj", inputs=channels, outputs=sizes.hidden, bias=sizes.bias, split="row"),
    ]


def _inner_norms(sizes: Mixer, at: str) -> list[Norm]:
    widths = {"dt_layernorm": sizes.rank, "b_layernorm": sizes.state, "c_layernorm": sizes.state}
    weighted = sizes.norms == "weighted"
    return [
        Norm(path=f"{at}.{name}", kind="rms", width=width, affine=weighted)
        for name, width in widths.items()
        if sizes.norms != "none"
    ]


def _convolution(at: str, channels: int, kernel: int, *, bias: bool) -> Convolution:
    """Of each channel by itself, over the positions before; padded at both ends, and cut."""
    return Convolution(
        path=f"{at}.conv1d",
        inputs=channels,
        outputs=channels,
        kernel=(kernel,),
        surplus=kernel - 1,
        groups=channels,
        bias=bias,
    )


def _mixer_2(config: Config, at: str) -> list[Operator]:
    hidden, channels = config.size("hidden_size"), config.size("expand") * config.size("hidden_size")
    heads, width, groups = (config.size(name) for name in ("num_heads", "head_dim", "n_groups"))
    state, bias = config.size("state_size"), config.flag("use_bias", False)
    if heads * width != channels:
        raise config.error("num_heads", f"{heads} heads of {width} are not the {channels} channels of expand")
    if heads % groups:
        raise config.error("n_groups", f"{groups} groups do not divide the {heads} heads")
    pieces = (channels, groups * state, groups * state)
    return [
        Linear(
            path=f"{at}.in_proj",
            inputs=hidden,
            outputs=channels + sum(pieces) + heads,
            bias=bias,
            split="column",
            segments=(channels, *pieces, heads),
        ),
        _convolution(at, sum(pieces), config.size("conv_kernel"), bias=config.flag("use_conv_bias", True)),
        Activation(function=config.word("hidden_act", "silu"), width=sum(pieces)),
        Parameter(path=f"{at}.dt_bias", shape=(heads,)),
        Activation(function="softplus", width=heads),
        Parameter(path=f"{at}.A_log", shape=(heads,)),
        Scan(path=at, width=width, heads=heads, state=state, chunk=config.size("chunk_size")),
        Parameter(path=f"{at}.D", shape=(heads,)),
        Activation(function="silu", width=channels, gated=True),
        Norm(path=f"{at}.norm", kind="rms", width=channels),
        Linear(path=f"{at}.out_proj", inputs=channels, outputs=hidden, bias=bias, split="row"),
    ]
