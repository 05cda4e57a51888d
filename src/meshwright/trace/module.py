"""Any torch module as a ModelSpec: run once without values, and written down."""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from meshwright.model.spec import ModelSpec
from meshwright.trace.assemble import assemble
from meshwright.trace.check import LOUD, check_parameters, differences
from meshwright.trace.errors import TraceError, ValuesNeededError, failure
from meshwright.trace.example import Example, example_with_values, examples
from meshwright.trace.fake import ModuleLike, copied_with_values, fake_mode, fake_module, has_values
from meshwright.trace.recorder import FlopSum, Recorder
from meshwright.trace.tape import Tape


def trace(module: ModuleLike | Callable[[], Any], inputs: Any = None, *, name: str = "") -> ModelSpec:
    """A module, or a function or class that builds one → ModelSpec.

    The forward and backward pass run under fake tensors: nothing is allocated or computed, so that a model of any size
    is traced on a laptop if a function builds it. A module that exists is copied without its values, and left as it
    is. A builder may also return a pair of the module and its example inputs.

    A module that exists, and whose way depends on values of tensors (a loop over the experts that were hit), is run as
    it is, with the inputs that are given; the result is that of these values.

    `inputs` are what the module is called with: a tensor, a tuple, or a dictionary by parameter; their first dimension
    is the batch. A module with a configuration of transformers needs none. Where it takes them, the module is run at
    other sizes than the examples', to see what belongs to samples and to positions; lengths that it does not take are
    the model's own, as given.

    Raises TraceError where inputs are missing, the forward pass fails, or values are needed that are not there. The
    result's `source` says where it counts other FLOPs than torch's own counter; a warning does where that is over 1 %.
    """
    with _quiet(), _uncollected():
        built, tape, example = _recorded(module, inputs)
        name = name or _name(module, built)
        spec = assemble(built, tape, example, name=name, source=_source(built, example))
        check_parameters(spec, sum(parameter.numel() for parameter in built.parameters()))
    lengths = {key: stream.length or example.lengths[key] for key, stream in spec.streams.items()}
    notes = differences(spec, tape, example.batch, lengths)
    said = "; ".join(note.sentence for note in notes)
    if any(note.share > LOUD for note in notes):
        warnings.warn(f"the trace of '{name}' {said}", stacklevel=2)
    return spec.model_copy(update={"source": f"{spec.source}; {said}"}) if notes else spec


def _recorded(module: Any, inputs: Any) -> tuple[nn.Module, Tape, Example]:
    """What was run, its tape, and what it was run with: without values where it goes."""
    mode, recorder = fake_mode(), Recorder()
    with recorder.recording(recorder.constants):
        built, inputs = _built(module, inputs, mode)
    try:
        example = _run(built, inputs, mode, recorder)
    except ValuesNeededError:
        if inputs is None or not has_values(module):
            raise
        built = copied_with_values(module)
        example = example_with_values(built, inputs)
        recorder.begin(built)
        with torch.random.fork_rng(devices=[]):
            _record(built, example, None, recorder)
    return built, recorder.tape, example


def _source(built: nn.Module, example: Example) -> str:
    sizes = f"batch {example.batch}" + "".join(f", {key} {length}" for key, length in example.lengths.items())
    return f"traced from {type(built).__module__}.{type(built).__qualname__} ({sizes}; torch {torch.__version__})"


def _built(module: Any, inputs: Any, mode: FakeTensorMode) -> tuple[nn.Module, Any]:
    """The module without values, and inputs where the builder gives some."""
    given: list[Any] = []
    builder = module

    def build() -> Any:
        found = builder()
        if isinstance(found, tuple) and len(found) == 2:
            given.append(found[1])
            return found[0]
        return found

    if callable(module) and not isinstance(module, nn.Module):
        build.__name__ = getattr(module, "__name__", type(module).__name__)
        module = build
    built = fake_module(module, mode)
    return built, inputs if inputs is not None else next(iter(given), None)


def _name(module: Any, built: nn.Module) -> str:
    known = getattr(getattr(built, "config", None), "_name_or_path", "")
    return str(known or getattr(module, "__name__", "") or type(built).__name__)


def _run(built: nn.Module, inputs: Any, mode: FakeTensorMode, recorder: Recorder) -> Example:
    """Record the first example that the module takes. Raises TraceError for the last one, if it takes none."""
    waiting = examples(built, inputs, mode)
    while True:
        example = waiting.pop(0)
        recorder.begin(built)
        try:
            _record(built, example, mode, recorder)
        except TraceError:
            if not waiting:
                raise
            continue
        return example


def _record(built: nn.Module, example: Example, mode: FakeTensorMode | None, recorder: Recorder) -> None:
    """`mode` is none where the module runs with its values."""
    constants = recorder.constants if mode is not None else None
    for name, tensor in example.tensors(built.forward):
        recorder.name_input(name, tensor)
    with mode or nullcontext(), torch.enable_grad(), told_apart():
        with recorder.following(), recorder.recording(constants):
            output = _forward(built, example, recorder)
        results = [each for each in _results(output) if each.requires_grad]
        recorder.tape.outputs = tuple(recorder.value(each) for each in results)
        recorder.tape.backward_flops = _backward(output, results)


@contextmanager
def told_apart() -> Iterator[None]:
    """Kernels that are made of products, each of which torch counts: no fused attention, no fused LSTM."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
        yield


def _forward(built: nn.Module, example: Example, recorder: Recorder) -> Any:
    try:
        return built(*example.arguments, **example.keywords)
    except Exception as error:
        running = recorder.modules[-1]
        kind = type(dict(built.named_modules()).get(running, built)).__name__
        recorder.modules[1:] = []
        raise failure(error, running, kind) from error


def _results(output: Any) -> list[torch.Tensor]:
    if isinstance(output, Mapping):
        output = list(output.values())  # of transformers, too
    return [each for each in tree_leaves(output) if isinstance(each, torch.Tensor) and each.is_floating_point()]


def _backward(output: Any, results: list[torch.Tensor]) -> int | None:
    """Matrix FLOPs of the backward pass from the loss, or from the sum of what the model returns."""
    loss = getattr(output, "loss", None)
    total = loss if isinstance(loss, torch.Tensor) else sum(each.sum() for each in results)
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return 0
    count = FlopSum()
    try:
        with count.counting():
            total.backward()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - kernels of others without a fake backward; the caller says so
        return None
    return count.total


@contextmanager
def _uncollected() -> Iterator[None]:
    """Many small objects that all stay: looking for garbage among them took a quarter of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _quiet() -> Iterator[None]:
    """What a model, or torch's fake kernels, say of a run without values is of no use to anyone."""
    loud = logging.getLogger("torch._subclasses.fake_tensor")
    level = loud.level
    loud.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        loud.setLevel(level)
