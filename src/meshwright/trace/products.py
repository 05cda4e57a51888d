"""Matrix products: by parameters, as convolutions, of experts, in attention cores, or plain ones."""

import math
from collections.abc import Callable

from meshwright.trace.items import Item, Names
from meshwright.trace.meanings import ATTENTION
from meshwright.trace.tape import ELEMENTWISE, SOFTMAX, VIEWS, Call, Step, Tape, Value, sources

_CHOOSING = VIEWS | {"index", "index_select"}
_SCORES = ELEMENTWISE | SOFTMAX | {"cat"}
_TURNS = ELEMENTWISE | {"cat", "stack"}
_COPIES = frozenset({"expand", "repeat", "repeat_interleave", "index_select", "index"})
_THREE = 3


def product_items(tape: Tape, names: Names, batch: int) -> list[Item]:
    """Every product of the tape that counts as matrix FLOPs, in order."""
    found: list[Item] = []
    by_output: dict[Value, Item] = {}
    for step in tape.steps:
        if not step.flops or (step.call is not None and step.call.name == ATTENTION):
            continue
        item = _READERS[step.op](step, names)
        core = _core(step, by_output, batch) if item.op == "matmul" else None
        if core is not None:
            first = core.traits["first"]
            found.remove(first)
            item = core
            item.traits["dropped"] = next((p for low, high, p in tape.dropping if low <= step.serial < high), 0.0)
        found.append(item)
        by_output[step.output] = item
    cores = [attention_item(call, tape, batch) for call in tape.calls if call.name == ATTENTION]
    return sorted([*found, *cores], key=lambda item: item.serial)


def _item(step: Step, op: str, rows: int, **fields: object) -> Item:
    return Item(op, dict(fields), rows, step.serial, step.module, step.output, flops=step.flops, steps=(step.serial,))


# ---- two matrices


def _mm(step: Step, names: Names) -> Item:
    return _two(step, step.arguments[0], step.arguments[1], names)


def _addmm(step: Step, names: Names) -> Item:
    bias, left, right = step.arguments[:3]
    item = _two(step, left, right, names)
    if item.op == "linear" and bias.parameter is not None and bias.numel == item.fields["outputs"]:
        add_bias(item, bias)
    return item


def add_bias(item: Item, bias: Value) -> None:
    """Give a Linear its bias."""
    item.fields["bias"] = True
    item.others = (*item.others, str(bias.parameter))
    item.traits["bias"] = bias.numel


def _two(step: Step, left: Value, right: Value, names: Names) -> Item:
    (n, k), m = left.shape, right.shape[1]
    weight = _weight(left, right, names)
    if weight is right:
        return _linear(step, right, names, (n, k, m))
    if weight is left:
        return _linear(step, left, names, (m, k, n))
    return _matmul(step, (1, n, k, m), left, right)


def _weight(left: Value, right: Value, names: Names) -> Value | None:
    """Which operand is the matrix of parameters; the second one where both could be."""
    whole = [each for each in (right, left) if each.parameter and each.numel == names.numel(each.parameter)]
    parts = [each for each in (right, left) if each.is_weight]
    return next(iter([*whole, *parts]), None)


def _linear(step: Step, weight: Value, names: Names, sizes: tuple[int, int, int]) -> Item:
    rows, inputs, outputs = sizes
    item = _item(step, "linear", rows, inputs=inputs, outputs=outputs)
    item.weight, item.portion = names.made_of(weight, inputs * outputs), inputs * outputs
    item.traits["fed"] = any(value.learns for value in step.values[-2:] if value is not weight)
    return item


def _matmul(step: Step, sizes: tuple[int, int, int, int], left: Value, right: Value) -> Item:
    batches, n, k, m = sizes
    item = _item(step, "matmul", batches * n, inner=k, outputs=m)
    item.learns = left.learns + right.learns
    item.traits |= {"sizes": sizes, "operands": (left, right)}
    return item


# ---- batches of matrices


def _bmm(step: Step, names: Names) -> Item:
    return _batched(step, step.arguments[0], step.arguments[1], names)


def _baddbmm(step: Step, names: Names) -> Item:
    return _batched(step, step.arguments[1], step.arguments[2], names)


def _batched(step: Step, left: Value, right: Value, names: Names) -> Item:
    (batches, n, k), m = left.shape, right.shape[2]
    for weight, rows, outputs in ((right, batches * n, m), (left, batches * m, n)):
        table = _chosen(weight)
        if table is not None:
            return _expert(step, str(table.parameter), names, (rows, k, outputs))
        if weight.is_weight:
            item = _linear(step, weight, names, (rows, k, outputs))
            item.portion = weight.numel
            item.traits["batched"] = True
            return item
    return _matmul(step, (batches, n, k, m), left, right)


def _chosen(value: Value) -> Value | None:
    """The table of matrices, a parameter, from which a value was chosen by indices."""
    for source in sources(value, _CHOOSING, limit=12):
        made = source.step
        if made is not None and made.op in ("index", "index_select"):
            table = made.values[0]
            if table.parameter is not None and len(table.shape) == _THREE:
                return table
    return None


def _grouped(step: Step, names: Names) -> Item:
    left, right = step.arguments[0], step.arguments[1]
    if right.parameter is None or len(right.shape) != _THREE:
        return _matmul(step, (1, left.shape[0], left.shape[1], right.shape[-1]), left, right)
    return _expert(step, right.parameter, names, (left.shape[0], left.shape[1], right.shape[-1]))


def _expert(step: Step, table: str, names: Names, sizes: tuple[int, int, int]) -> Item:
    rows, inputs, outputs = sizes
    item = _item(step, "expert", rows, inputs=inputs, outputs=outputs)
    item.weight, item.portion = table, names.numel(table)
    item.traits["count"] = names.shapes[table][0]
    return item


# ---- convolutions


def _convolution(step: Step, names: Names) -> Item:
    read, weight = step.arguments[0], step.arguments[1]
    bias = step.arguments[2] if isinstance(step.arguments[2], Value) else None
    transposed, groups = bool(step.arguments[6]), int(step.arguments[8])
    out, kernel = step.output, weight.shape[2:]
    rows, input_rows = (each.shape[0] * math.prod(each.shape[2:]) for each in (out, read))
    inputs, outputs = read.shape[1], out.shape[1]
    table = names.made_of(weight, weight.numel) if weight.is_weight else None
    if table is None or names.numel(table) != weight.numel:
        taps = inputs // groups * math.prod(kernel)
        item = _item(step, "matmul", input_rows if transposed else rows, inner=taps, outputs=outputs)
        item.learns = read.learns + weight.learns
        return item
    item = _item(step, "convolution", rows, inputs=inputs, outputs=outputs, kernel=kernel, groups=groups)
    item.input_rows, item.weight, item.portion = input_rows, table, weight.numel
    item.fields["transposed"], item.traits["fed"] = transposed, read.learns
    if bias is not None and bias.parameter is not None:
        add_bias(item, bias)
    return item


_READERS: dict[str, Callable[[Step, Names], Item]] = {
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "convolution": _convolution,
    "_convolution": _convolution,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
}
"""The operations of torch that count as matrix FLOPs, outside of fused attention."""


# ---- attention


def _core(step: Step, products: dict[Value, Item], batch: int) -> Item | None:
    """The attention core that a product of weights and values ends: softmax of an earlier product is one operand."""
    operands = step.values[-2:]
    for weights, values in (operands, operands[::-1]):
        chain = list(sources(weights, _SCORES))
        if not any(value.step is not None and value.step.op in SOFTMAX for value in chain):
            continue
        first = next((products[value] for value in chain if value in products), None)
        if first is not None and first.op == "matmul" and "sizes" in first.traits:
            return _eager(step, first, chain, (weights, values), batch)
    return None


def _eager(step: Step, first: Item, chain: list[Value], pair: tuple[Value, Value], batch: int) -> Item:
    batches, n, k, m = first.traits["sizes"]
    queries, keys = first.traits["operands"]
    heads = _heads(queries, batches, batch)
    value_dim = step.flops // (2 * batches * n * m)
    between = [value.step for value in chain if value.step is not None and value.step.serial > first.serial]
    masks = [read for made in between for read in made.values if not read.learns]
    item = _item(step, "attention", batches * n // heads, heads=heads, head_dim=k)
    item.flops += first.flops
    item.context = m
    item.fields |= {"kv_heads": _kv_heads(keys, heads, batches), "value_dim": value_dim if value_dim != k else None}
    item.fields |= _mask([*masks, *(value for value in chain if not value.learns)])
    item.traits |= {"first": first, "between": {made.serial for made in between}}
    added = [value for made in between if made.op in ("add", "add_") for value in made.values]
    item.fields["relative"] = any(value.learns and _is_biased(value) for value in added)
    item.fields["capped"] = any(made.op == "tanh" for made in between)
    sinks = [value for made in between if made.op == "cat" for value in made.values if value.parameter]
    if sinks:
        item.fields["sinks"], item.others = True, tuple(str(value.parameter) for value in sinks)
    return item


def _is_biased(value: Value) -> bool:
    """Whether an addend was looked up in a table of parameters."""
    return value.is_weight or any(
        source.step is not None and source.step.op in ("embedding", "index") and source.step.values[0].is_weight
        for source in sources(value, VIEWS | {"embedding"}, limit=12)
    )


def attention_item(call: Call, tape: Tape, batch: int) -> Item:
    """The core that a call of torch's scaled_dot_product_attention is."""
    query, key, value = (call.argument(place, name) for place, name in enumerate(("query", "key", "value")))
    heads = query.shape[-3] if len(query.shape) > _THREE else 1
    mask = call.argument(3, "attn_mask")
    dropped = float(call.argument(4, "dropout_p", 0.0))
    causal = bool(call.argument(5, "is_causal", False))
    fields = {"heads": heads, "head_dim": query.shape[-1], "kv_heads": _kv_heads(key, heads, 0)}
    fields["value_dim"] = value.shape[-1] if value.shape[-1] != query.shape[-1] else None
    fields |= {"causal": True} if causal else _mask([mask] if isinstance(mask, Value) else [])
    inside = [step for step in tape.steps if step.call is call]
    item = Item("attention", fields, query.numel // (heads * query.shape[-1]), call.serial, call.module, call.output)
    item.context, item.flops = key.shape[-2], sum(step.flops for step in inside)
    item.steps = tuple(step.serial for step in inside)
    item.traits["dropped"] = dropped
    return item


def _copies(step: Step, keys: Value) -> bool:
    """Whether a step made all the numbers of keys out of fewer."""
    read = step.values[0]
    return read.learns and step.output.numel == keys.numel and 0 < read.numel < keys.numel


def _mask(values: list[Value]) -> dict[str, object]:
    """What a mask says: causal where it was made by comparing positions."""
    causal = any(value.causal for value in values)
    return {"causal": causal, "window": next((each.window for each in values if each.window), None) if causal else None}


def _heads(queries: Value, batches: int, batch: int) -> int:
    """Of a product of `batches` matrices those that are heads: as the tensor before it was flattened says."""
    for source in sources(queries, VIEWS, limit=6):
        shape = source.shape
        if len(shape) > _THREE and math.prod(shape[:-2]) == batches:
            outside = math.prod(shape[:-3])
            if outside % batch == 0 or outside == 1:
                return shape[-3]
    return batches // batch if batches % batch == 0 else 1


def _kv_heads(keys: Value, heads: int, batches: int) -> int:
    """Heads of keys before they were copied for groups of queries, be it before they were turned."""
    held = keys.shape[-3] if len(keys.shape) > _THREE and not batches else heads
    spread = [
        keys.numel // step.values[0].numel
        for value in sources(keys, _TURNS, limit=40)
        if (step := value.step) is not None and step.op in _COPIES and _copies(step, keys)
    ]
    copies = max(spread, default=1)
    return held // copies if held % copies == 0 else held
