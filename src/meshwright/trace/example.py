"""What a model is fed while it is traced: example inputs of the user's, or what the forward's signature asks for."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from meshwright.trace.errors import TraceError
from meshwright.trace.fake import fake_inputs
from meshwright.trace.sizes import dimensions, unusual

_LONGEST = 31
"""Positions of a default input, where the model reaches as far."""


@dataclass(frozen=True)
class Example:
    """Inputs, and what their sizes mean."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    batch: int
    lengths: dict[str, int] = field(default_factory=dict)
    """Positions of a sample whose number a recipe may choose, by the name of the stream."""

    def tensors(self, forward: Callable[..., Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """Every input tensor by the name of its parameter."""
        names = [name for name in inspect.signature(forward).parameters if name != "self"]
        for place, value in enumerate(self.arguments):
            yield from _named(names[min(place, len(names) - 1)] if names else "input", value)
        for name, value in self.keywords.items():
            yield from _named(name, value)


def _named(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named(name, inner)


def examples(module: nn.Module, inputs: Any, mode: FakeTensorMode) -> list[Example]:
    """What to feed the model, best first: the next one serves where the model does not take the one before.

    Example inputs are first tried with sizes that tell samples and positions apart, at last as they are. Raises
    TraceError where inputs are needed and none are given.
    """
    if inputs is None:
        inputs = getattr(module, "example_input_array", None)  # as Lightning modules have it
    if inputs is not None:
        return _resized(module, inputs, mode)
    with mode:
        return [_default(module)]


# ---- what the user gives


def _resized(module: nn.Module, inputs: Any, mode: FakeTensorMode) -> list[Example]:
    arguments, keywords = _arguments(inputs)
    given = Example(arguments, keywords, 1)
    tensors = list(given.tensors(module.forward))
    batches = {tensor.shape[0] for _, tensor in tensors if tensor.dim()}
    if len(batches) != 1:  # no common first dimension: the whole is one sample
        return [_as_given(given, mode, 1, {})]
    old = batches.pop()
    taken = dimensions(module) | {size for _, tensor in tensors for size in tensor.shape[2:]}
    batch = unusual(taken, largest=False) or old
    found = []
    for wanted in dict.fromkeys((_lengths(tensors, floats=True), _lengths(tensors, floats=False), ())):
        new = _new_lengths(wanted, taken | {batch})
        found.append(_with_sizes(given, (old, batch), {length: new[length] for _, length in wanted}, wanted, mode))
    return [*found, _as_given(given, mode, old, {})]


def example_with_values(module: nn.Module, inputs: Any) -> Example:
    """Example inputs as they are, with their values; lengths of token ids are taken to be a recipe's to choose."""
    arguments, keywords = tree_map(_copied, _arguments(inputs))
    given = Example(arguments, keywords, 1)
    tensors = list(given.tensors(module.forward))
    batches = {tensor.shape[0] for name, tensor in tensors if tensor.dim() and _is_ids(tensor)}
    batches = batches or {tensor.shape[0] for _, tensor in tensors if tensor.dim()}
    wanted = _lengths([pair for pair in tensors if "ids" in pair[0]], floats=False)
    names = _stream_names([name for name, _ in wanted])
    batch = batches.pop() if len(batches) == 1 else 1
    return Example(arguments, keywords, batch, {names[name]: length for name, length in wanted})


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_ids(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_floating_point()


def _as_given(given: Example, mode: FakeTensorMode, batch: int, lengths: dict[str, int]) -> Example:
    arguments, keywords = fake_inputs((given.arguments, given.keywords), mode)
    return Example(arguments, keywords, batch, lengths)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


_Lengths = tuple[tuple[str, int], ...]
"""(input, length) for each length that may be chosen."""


def _lengths(tensors: Sequence[tuple[str, torch.Tensor]], *, floats: bool) -> _Lengths:
    """The second dimension of token ids, and of vectors (`floats`): each length once, by the first that has it."""
    found: dict[int, str] = {}
    for name, tensor in tensors:
        vectors = floats and tensor.dim() == 3 and tensor.is_floating_point()
        if (_is_ids(tensor) or vectors) and tensor.shape[1] > 1:
            found.setdefault(tensor.shape[1], name)
    return tuple((name, length) for length, name in found.items())


def _new_lengths(wanted: _Lengths, taken: set[int]) -> dict[int, int]:
    """For each length a telling one that is no longer, so that no table of positions ends before."""
    new: dict[int, int] = {}
    for _, length in wanted:
        new[length] = unusual(taken | set(new.values()), most=max(length, 7)) or length
    return new


def _with_sizes(
    given: Example, batch: tuple[int, int], lengths: dict[int, int], wanted: _Lengths, mode: FakeTensorMode
) -> Example:
    old, new = batch

    def sized(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim():
            shape = (new if value.shape[0] == old else value.shape[0], *(lengths.get(n, n) for n in value.shape[1:]))
            with mode:
                return torch.empty(shape, dtype=value.dtype)
        if isinstance(value, Mapping):
            return {key: sized(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(sized(inner) for inner in value)
        return value

    arguments, keywords = sized(given.arguments), sized(given.keywords)
    names = _stream_names([name for name, _ in wanted])
    return Example(
        arguments, keywords, new, {names[name]: lengths[length] for name, length in wanted if length in lengths}
    )


def _stream_names(inputs: Sequence[str]) -> dict[str, str]:
    """One sequence is `tokens`; of two the first is the `source`, and the one that is decoded the `target`."""
    if len(inputs) < 2:
        return dict.fromkeys(inputs, "tokens")
    decoded = [name for name in inputs if name.startswith(("decoder", "labels", "tgt", "target"))][:1] or [inputs[1]]
    others = [name for name in inputs if name not in decoded]
    names = {others[0]: "source", decoded[0]: "target"}
    return names | {name: f"tokens_{place}" for place, name in enumerate(others[1:], start=2)}


# ---- what the signature asks for


class _Asked:
    """A forward's signature, and the model's configuration."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.config = module, getattr(module, "config", None)
        self.parameters = inspect.signature(module.forward).parameters
        self.kind = type(module).__name__
        taken = dimensions(module)
        self.batch = unusual(taken, largest=False) or 2
        most = min(_LONGEST, self.number("max_position_embeddings", "n_positions", "max_seq_len", default=_LONGEST))
        self.length = unusual(taken | {self.batch}, most=most) or most
        decoded = min(most, self.number("max_target_positions", default=most))
        self.decoded = unusual(taken | {self.batch, self.length}, most=decoded) or decoded

    def asks(self, name: str) -> bool:
        return name in self.parameters

    def number(self, *names: str, default: int) -> int:
        """The first of the configuration's fields that is a number, of its text or vision part too."""
        parts = (self.config, *(getattr(self.config, f"{part}_config", None) for part in ("text", "vision", "audio")))
        values = (getattr(part, name, None) for part in parts for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), default)


def _default(module: nn.Module) -> Example:
    asked = _Asked(module)
    keywords: dict[str, Any] = {}
    for name, make in _MAKERS.items():
        if asked.asks(name):
            made = make(asked)
            if made is not None:
                keywords[name] = made
    missing = [name for name, each in asked.parameters.items() if _is_needed(each) and name not in keywords]
    if missing or not keywords:
        raise _nothing_to_feed(asked, missing)
    lengths = _default_lengths(asked, keywords)
    return Example((), keywords, asked.batch, lengths)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    )


def _nothing_to_feed(asked: _Asked, missing: Sequence[str]) -> TraceError:
    names = list(missing) or [name for name, each in asked.parameters.items() if each.kind != each.VAR_KEYWORD]
    shown = ", ".join(f'"{name}": torch.randn(...)' for name in names) or '"x": torch.randn(...)'
    listed = ", ".join(f"'{name}'" for name in names) or "inputs"
    return TraceError(
        f"{asked.kind}.forward needs {listed}, and nothing says what they look like: give examples, "
        f"trace(module, inputs={{{shown}}}); a function that is named on the command line may return the module and "
        "its inputs as a pair"
    )


def _ids(asked: _Asked) -> torch.Tensor:
    return torch.randint(1, asked.number("vocab_size", default=2) or 2, (asked.batch, asked.length))


def _decoder_ids(asked: _Asked) -> torch.Tensor:
    return torch.randint(1, asked.number("vocab_size", default=2), (asked.batch, asked.decoded))


def _labels(asked: _Asked) -> torch.Tensor | None:
    if asked.kind.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForTokenClassification", "ForPreTraining")):
        return _ids(asked) if asked.asks("input_ids") else None
    if asked.kind.endswith("ForConditionalGeneration"):
        return _decoder_ids(asked) if asked.asks("decoder_input_ids") else _ids(asked)
    if asked.kind.endswith(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")):
        return torch.randint(0, max(2, asked.number("num_labels", default=2)), (asked.batch,))
    return None


def _pixels(asked: _Asked) -> torch.Tensor:
    size = getattr(asked.config, "image_size", None) or asked.number("image_size", default=224)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.rand(asked.batch, asked.number("num_channels", default=3), height, width)


def _features(asked: _Asked) -> torch.Tensor:
    """Mel frames; Whisper's two convolutions halve them."""
    frames = 2 * asked.number("max_source_positions", default=1500)
    return torch.rand(asked.batch, asked.number("num_mel_bins", "feature_size", default=80), frames)


def _waves(asked: _Asked) -> torch.Tensor:
    """Two seconds of sound."""
    return torch.rand(asked.batch, 32000)


_MAKERS: dict[str, Callable[[_Asked], torch.Tensor | None]] = {
    "input_ids": _ids,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _waves,
    "decoder_input_ids": _decoder_ids,
    "labels": _labels,
}
"""Inputs of transformers' models by name."""


def _default_lengths(asked: _Asked, keywords: Mapping[str, torch.Tensor]) -> dict[str, int]:
    both = {"input_ids": asked.length, "decoder_input_ids": asked.decoded}
    wanted = [name for name in both if name in keywords]
    names = _stream_names(wanted)
    return {names[name]: both[name] for name in wanted}
