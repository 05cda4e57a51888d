"""Records a forward pass: each operation with the module that ran, what its tensors were made of, and its FLOPs."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from meshwright.trace.constants import Constants
from meshwright.trace.meanings import FINITE, FUNCTIONS, MULTI_HEAD, module_meaning
from meshwright.trace.tape import VIEWS, Call, Shape, Step, Tape, Value, words

_COMPARES = frozenset({"ge", "le", "gt", "lt"})
_RANDOM = words("rand randn randint rand_like randn_like normal_ uniform_ bernoulli bernoulli_")
_FRESH = words("empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_zeros new_ones new_full")
"""Operations that take nothing but a shape of what they read."""
_NOISE = frozenset({"noise"})
"""The input that random numbers stand for."""
_TRIANGLES = frozenset({"tril", "triu"})


class Recorder:
    """Knows every tensor that it saw, and what it was made of."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.constants = Constants()
        self.modules: list[str] = [""]
        """Paths of the modules that run, outermost first."""
        self.call: Call | None = None
        """The outermost call of known meaning that runs."""
        self._paths: dict[int, str] = {}
        self._meanings: dict[int, str] = {}
        self._values: dict[int, Value] = {}
        self._written: dict[int, Value] = {}
        """The last value written into a storage in place."""
        self._held: list[torch.Tensor] = []
        """Keeps tensors alive, so that no identity stands for two of them."""

    def begin(self, module: nn.Module) -> None:
        """Forget the steps so far (the building of the module), and name its modules, parameters and buffers."""
        self.tape, self._written = Tape(), {}
        for path, child in module.named_modules():
            self._paths[id(child)] = path
            meaning = module_meaning(child)
            if meaning:
                self._meanings[id(child)] = meaning
        for name, parameter in module.named_parameters():
            self._know(parameter, Value(tuple(parameter.shape), None, name, frozenset({name}), learns=True))
        for buffer in module.buffers():
            if id(buffer) not in self._values:
                self._know(buffer, Value(tuple(buffer.shape), causal=_is_triangle(buffer)))

    def name_input(self, name: str, tensor: torch.Tensor) -> None:
        """Say that a tensor is one of the model's inputs."""
        value = Value(tuple(tensor.shape), inputs=frozenset({name}), learns=tensor.requires_grad)
        self._know(tensor, value)

    def value(self, tensor: torch.Tensor) -> Value:
        """What is known of a tensor; a constant where nothing is."""
        known = self._values.get(id(tensor))
        if known is None:
            known = Value(tuple(tensor.shape), causal=_is_triangle(tensor))
            self._know(tensor, known)
        written = self._written.get(_storage(tensor)) if self._written else None
        if written is not None and written is not known and _after(written, known):
            known = _merged(known, written, tuple(tensor.shape))
            self._values[id(tensor)] = known
        return known

    def _know(self, tensor: torch.Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._held.append(tensor)

    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """One operation that has run."""
        op = func.overloadpacket.__name__
        values: list[Value] = []
        arguments = tuple(self._plain(each, values) for each in args)
        for each in kwargs.values():
            self._plain(each, values)
        flops = _flops(func, args, kwargs, out)
        step = Step(len(self.tape.steps), op, arguments, tuple(values), self.modules[-1], self.call, flops)
        made = [out] if isinstance(out, torch.Tensor) else list(out) if isinstance(out, tuple | list) else []
        tensors = [each for each in made if isinstance(each, torch.Tensor)]
        step.outputs = tuple(self._made(each, step) for each in tensors)
        if op.endswith("_") and tensors:
            self._written[_storage(tensors[0])] = step.outputs[0]
        self.tape.steps.append(step)
        self.tape.forward_flops += flops

    def _plain(self, argument: Any, values: list[Value]) -> Any:
        if isinstance(argument, torch.Tensor):
            values.append(self.value(argument))
            return values[-1]
        if isinstance(argument, list | tuple):
            return tuple(self._plain(each, values) for each in argument)
        return argument

    def _made(self, tensor: torch.Tensor, step: Step) -> Value:
        value = derived(step, tuple(tensor.shape), floating=tensor.is_floating_point() or tensor.is_complex())
        self._know(tensor, value)
        return value

    @contextmanager
    def within(self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Iterator[Call | None]:
        """Run a call of known meaning; what runs inside belongs to it. None where it is inside another."""
        if self.call is not None:
            yield None
            return
        plain = tuple(self._argument(each) for each in arguments)
        named = {key: self._argument(each) for key, each in keywords.items()}
        self.call = Call(name, self.modules[-1], plain, named)
        try:
            yield self.call
        finally:
            self.call.serial = len(self.tape.steps)
            self.call = None

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return self.value(argument)
        return argument

    def finish(self, call: Call | None, result: Any) -> None:
        """Say what a call gave."""
        first = result[0] if isinstance(result, tuple) and result else result
        if call is not None and isinstance(first, torch.Tensor):
            call.output = self.value(first)
            self.tape.calls.append(call)

    @contextmanager
    def recording(self, constants: Constants | None) -> Iterator[None]:
        """Record what runs; without values, but for those of `constants`."""
        with ExitStack() as stack:
            stack.enter_context(_Dispatch(self.record, constants))
            stack.enter_context(_Functions(self))
            yield

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow which module runs."""
        open_calls: list[tuple[nn.Module, ExitStack, Call | None]] = []

        def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self.modules.append(self._paths.get(id(module), self.modules[-1]))
            meaning = self._meanings.get(id(module))
            if meaning:
                stack = ExitStack()
                open_calls.append((module, stack, stack.enter_context(self.within(meaning, inputs, {}))))

        def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            path = self._paths.get(id(module))
            while path is not None and len(self.modules) > 1 and self.modules[-1] != path:
                self.modules.pop()  # of modules that raised, and whose error somebody caught
            if open_calls and open_calls[-1][0] is module:
                _, stack, call = open_calls.pop()
                stack.close()
                self.finish(call, output)
            if len(self.modules) > 1:
                self.modules.pop()

        before, after = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of every operation of torch."""

    def __init__(
        self,
        tell: Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], None],
        constants: Constants | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tell, self.constants = tell, constants

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # most of what is dispatched asks for a device
            asked = func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor)
            return args[0].fake_device if asked else func(*args, **kwargs)
        out = self._run(func, args, kwargs)
        self.tell(func, args, kwargs, out)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.overloadpacket is torch.ops.aten._grouped_mm:
            return _grouped_product(args)
        return func(*args, **kwargs) if self.constants is None else self.constants.run(func, args, kwargs)


class _Functions(TorchFunctionMode):
    """Tells of the functions whose meaning is known."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == MULTI_HEAD:
            return self._multi_head(func, args, kwargs)
        if name not in FUNCTIONS:
            result = func(*args, **kwargs)
            if name in FINITE:
                self.recorder.constants.assume(result, FINITE[name])
            return result
        with self.recorder.within(name, args, kwargs) as call:
            result = func(*args, **kwargs)
        self.recorder.finish(call, result)
        return result

    def _multi_head(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What runs inside of it is not told apart here (a mode is off while it answers), but for the dropout."""
        given = dict(zip(inspect.signature(func).parameters, args, strict=False)) | kwargs
        first = len(self.recorder.tape.steps)
        result = func(*args, **kwargs)
        if given.get("training", True) and given["dropout_p"]:
            self.recorder.tape.dropping.append((first, len(self.recorder.tape.steps), float(given["dropout_p"])))
        return result


class FlopSum:
    """Sums the matrix FLOPs of what runs (a backward pass)."""

    def __init__(self) -> None:
        self.total = 0

    def _add(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.total += _flops(func, args, kwargs, out)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what runs."""
        with _Dispatch(self._add):
            yield


def derived(step: Step, shape: Shape, *, floating: bool) -> Value:
    """What a step made, by what it was made of."""
    value, read = Value(shape, step), step.values
    if not read or step.op in _FRESH:
        value.counted = step.op == "arange"
        value.inputs = _NOISE if step.op in _RANDOM else frozenset()
        return value
    value.inputs = frozenset().union(*(each.inputs for each in read), _NOISE if step.op in _RANDOM else ())
    value.learns = floating and step.op != "detach" and any(each.learns for each in read)
    if not value.inputs and floating and all(each.weights or not each.learns for each in read):
        value.weights = frozenset().union(*(each.weights for each in read))
    value.parameter = read[0].parameter if step.op in VIEWS else None
    value.counted = not value.inputs and any(each.counted for each in read)
    compared = step.op in _COMPARES and len(read) == 2 and all(each.counted for each in read)
    if not value.learns:
        value.causal = compared or step.op in _TRIANGLES or any(each.causal for each in read)
        value.window = (_shift(read) if compared else None) or next((each.window for each in read if each.window), None)
    return value


def _shift(read: tuple[Value, ...]) -> int | None:
    """The distance in `key > query - distance`."""
    for value in read:
        made = value.step
        if made is not None and made.op in ("sub", "add", "rsub"):
            numbers = [each for each in made.arguments if isinstance(each, int) and not isinstance(each, bool)]
            return next((abs(number) for number in numbers if abs(number) > 1), None)
    return None


def _merged(known: Value, written: Value, shape: Shape) -> Value:
    """A tensor into whose storage something was written after it was made."""
    return Value(
        shape,
        written.step,
        inputs=known.inputs | written.inputs,
        learns=known.learns or written.learns,
        causal=known.causal or written.causal,
        window=known.window or written.window,
    )


def _after(one: Value, other: Value) -> bool:
    return one.step is not None and (other.step is None or one.step.serial > other.step.serial)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_triangle(tensor: torch.Tensor) -> bool:
    """Whether a table that has values hides what comes later (a causal mask)."""
    real = type(tensor) is torch.Tensor and tensor.device.type != "meta"
    if not real or tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or not 4 <= tensor.numel() <= 2**24:
        return False
    shown = tensor.flatten(0, -3)[0] if tensor.dim() > 2 else tensor
    low = shown.bool() if not shown.is_floating_point() else shown > -1
    return bool(torch.equal(low, torch.ones_like(low).tril())) or bool(torch.equal(~low, torch.ones_like(low).triu(1)))


def _grouped_product(args: tuple[Any, ...]) -> torch.Tensor:
    """The shape of a grouped product, which torch's own fake version gives for bfloat16 alone (torch 2.13)."""
    left, right = args[0], args[1]
    if right.dim() == 3:
        return torch.empty((*left.shape[:-1], right.shape[-1]), dtype=left.dtype, device=left.device)
    return torch.empty((args[2].shape[0], left.shape[0], right.shape[-1]), dtype=left.dtype, device=left.device)


def _flops(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """By torch's own formulas, and for grouped products, which it has none for, by ours."""
    packet = func.overloadpacket
    if packet is torch.ops.aten.convolution_backward:
        return _convolution_backward_flops(args)
    count = flop_registry.get(packet)
    if count is not None:
        return int(count(*args, **kwargs, out_val=out))
    return _grouped_flops(args) if packet.__name__ in ("_grouped_mm", "grouped_mm_fallback") else 0


def _convolution_backward_flops(args: tuple[Any, ...]) -> int:
    """As many for each gradient as forward. torch's own count is the same but for convolutions by groups, whose
    weight's gradient it takes to be that of an undivided one (torch 2.13).
    """
    gradient, read, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    rows = (read if transposed else gradient).shape
    positions = int(rows[0]) * math.prod(rows[2:])
    return int(sum(wanted[:2]) * 2 * positions * weight.numel())


def _grouped_flops(args: tuple[Any, ...]) -> int:
    """2 · rows · inner · outputs: each row meets one matrix; with two 2-d operands, each row of the sum one group."""
    left, right = args[0], args[1]
    return 2 * int(left.shape[0]) * int(left.shape[1]) * int(right.shape[-1])
