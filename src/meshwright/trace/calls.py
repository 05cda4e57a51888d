"""Operators that are no matrix products: look-ups, norms, activations, dropout, sums, pools, losses."""

from collections.abc import Callable

from meshwright.trace.items import Item, Names, spread
from meshwright.trace.meanings import ACTIVATION, ACTIVATIONS, DROPOUTS, LOSSES, NORM, NORMS, POOLS
from meshwright.trace.tape import ELEMENTWISE, VIEWS, Call, Step, Tape, Value, sources, words

_ADDS = frozenset({"add", "add_"})
_GAINS = {"layer_norm": 2, "rms_norm": 2, "batch_norm": 3, "group_norm": 2, "instance_norm": 3}
"""Where the gain stands among a function's arguments; the bias follows."""
_OF_CHANNELS = frozenset({"batch", "group"})


def other_items(tape: Tape, names: Names) -> list[Item]:
    """All of them, in order."""
    users = tape.users()
    found = [item for call in tape.calls if (item := _call_item(call, names, users)) is not None]
    for step in tape.steps:
        if step.call is None:
            read = _STEPS.get(step.op)
            item = read(step, names) if read is not None else None
            if item is not None:
                found.append(item)
    return sorted(found, key=lambda item: item.serial)


def _call_item(call: Call, names: Names, users: dict[Value, list[Step]]) -> Item | None:
    if call.output is None:
        return None
    if call.name.startswith(NORM):
        return _module_norm(call, names)
    if call.name in NORMS:
        return _norm(call, names)
    if call.name in ACTIVATIONS or call.name.startswith(ACTIVATION):
        return _activation(call, call.output, users)
    return next((read(call, call.output) for known, read in _CALLS.items() if call.name in known), None)


def _pool(call: Call, output: Value) -> Item:
    rows, width = spread(output, channels=True)
    return _made(call, "pool", rows, width=width)


def _loss(call: Call, output: Value) -> Item:
    logits = call.argument(0, "input")
    classes = logits.shape[1] if len(logits.shape) > 1 else logits.shape[0]
    return _made(call, "loss", logits.numel // classes, classes=classes)


def _made(call: Call, op: str, rows: int, **fields: object) -> Item:
    return Item(op, dict(fields), rows, call.serial, call.module, call.output)


# ---- norms


def _norm(call: Call, names: Names) -> Item:
    kind, read = NORMS[call.name], call.argument(0, "input")
    place = _GAINS[call.name]
    gain, bias = call.argument(place, "weight"), call.argument(place + 1, "bias") if kind != "rms" else None
    gains = [each for each in (gain, bias) if isinstance(each, Value) and each.parameter]
    if kind in _OF_CHANNELS:
        width = read.shape[1]
    else:
        shape = call.argument(1, "normalized_shape")
        width = 1
        for size in shape if isinstance(shape, list | tuple) else (shape,):
            width *= int(size)
    return _normed(call, (kind, read.numel // width, width), [str(each.parameter) for each in gains], names)


def _module_norm(call: Call, names: Names) -> Item | None:
    if not call.values:
        return None
    read, own = call.values[0], names.of(call.module)
    kind = call.name.removeprefix(NORM)
    width = max((names.numel(name) for name in own), default=read.shape[1] if kind in _OF_CHANNELS else read.shape[-1])
    return _normed(call, (kind, max(1, read.numel // width), width), own, names)


def _normed(call: Call, what: tuple[str, int, int], own: list[str], names: Names) -> Item:
    """A norm (`what`: kind, rows, width) counts a gain, and after it a bias, of its width each; other parameters are
    counted apart.
    """
    kind, rows, width = what
    fitting = [name for name in own if names.numel(name) == width][:2]
    item = _made(call, "norm", rows, kind=kind, width=width, affine=bool(fitting), bias=len(fitting) > 1)
    item.others = tuple(fitting)
    return item


# ---- element-wise


def _activation(call: Call, output: Value, users: dict[Value, list[Step]]) -> Item | None:
    if not output.learns:
        return None
    rows, width = spread(output, channels=_is_channelled(output))
    name = call.name.removeprefix(ACTIVATION).removesuffix("_")
    return _made(call, "activation", rows, function=name, width=width, gated=name == "glu" or _is_gated(output, users))


def _is_gated(output: Value, users: dict[Value, list[Step]]) -> bool:
    """Whether the output is a factor of a product with another activation."""
    for step in users.get(output, ()):
        others = [value for value in step.values if value is not output]
        if step.op in ("mul", "mul_") and others and others[0].learns and others[0].shape == output.shape:
            return not others[0].is_weight
    return False


def _dropout(call: Call, output: Value) -> Item | None:
    probability, training = float(call.argument(1, "p", 0.5)), bool(call.argument(2, "training", True))
    if not training or not 0 < probability < 1:
        return None
    rows, width = spread(output, channels=_is_channelled(output))
    return _made(call, "dropout", rows, width=width, probability=probability)


_CALLS: dict[frozenset[str], Callable[[Call, Value], Item | None]] = {DROPOUTS: _dropout, POOLS: _pool, LOSSES: _loss}


def _add(step: Step, names: Names) -> Item | None:
    """The sum of two activations of one shape; of queries or keys and their turned halves, the rotary embedding."""
    read = [value for value in step.values if value.learns]
    whole = [value for value in read if value.shape == step.output.shape and not value.is_weight]
    small = [value for value in read if value.numel <= step.output.shape[-1]] if step.output.shape else read
    if len(read) != 2 or not whole or small:
        return None
    if any(_is_turned(value) for value in read):
        shape = step.output.shape
        width = shape[1] * shape[-1] if len(shape) > 3 else shape[-1]
        return _step_item(step, "rotary", step.output.numel // width, width)
    rows, width = spread(step.output, channels=_is_channelled(step.output))
    return _step_item(step, "add", rows, width)


def _is_turned(value: Value) -> bool:
    """Whether a factor of the addend was put together from halves of which one is negated (Su 2021)."""
    made = value.step
    for factor in made.values if made is not None and made.op == "mul" else ():
        for source in sources(factor, VIEWS, limit=6):
            if source.step is not None and source.step.op in ("cat", "stack"):
                return any(_is_negated(half) for half in source.step.values)
    return False


def _is_negated(value: Value) -> bool:
    return any(source.step is not None and source.step.op == "neg" for source in sources(value, VIEWS, limit=4))


def _complex_turn(step: Step, names: Names) -> Item | None:
    width = step.output.shape[-1] * step.output.shape[-2] if len(step.output.shape) > 1 else 1
    return _step_item(step, "rotary", step.output.numel // width, width) if step.output.learns else None


def _step_item(step: Step, op: str, rows: int, width: int) -> Item:
    return Item(op, {"width": width}, rows, step.serial, step.module, step.output, steps=(step.serial,))


def _is_channelled(value: Value) -> bool:
    """Whether a tensor has its channels second: it comes from a convolution, with nothing but such layers between."""
    if len(value.shape) < 3:
        return False
    through = ELEMENTWISE - {"transpose", "permute", "movedim"} | _IMAGE_STEPS
    return any(
        source.step is not None and source.step.op in ("convolution", "_convolution")
        for source in sources(value, through, limit=12)
    )


_IMAGE_STEPS = words(
    "native_batch_norm _native_batch_norm_legit native_group_norm relu relu_ silu gelu leaky_relu hardswish "
    "max_pool2d_with_indices avg_pool2d cat"
)


# ---- tables


def _embedding(step: Step, names: Names) -> Item | None:
    table, indices = step.values[0], step.values[1]
    if table.parameter is None:
        return None
    rows, width = table.shape
    item = Item("embedding", {"rows": rows, "width": width}, indices.numel, step.serial, step.module, step.output)
    item.weight, item.portion, item.steps = table.parameter, rows * width, (step.serial,)
    item.traits["positions"] = (not indices.inputs and indices.step is not None) or indices.counted
    return item


_STEPS: dict[str, Callable[[Step, Names], Item | None]] = {
    "embedding": _embedding,
    "_embedding_bag": _embedding,
    "add": _add,
    "add_": _add,
    "view_as_real": _complex_turn,
}
