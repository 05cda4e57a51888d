"""Items that belong together: routers and experts, biases that were added apart, the turns of a loop over time."""

import itertools
from collections.abc import Iterable, Iterator

from meshwright.trace.items import Item, Names
from meshwright.trace.products import add_bias
from meshwright.trace.tape import ELEMENTWISE, SOFTMAX, VIEWS, Step, Tape, Value, sources

_ROUTED = ELEMENTWISE | SOFTMAX | {"softplus", "scatter", "gather", "sum", "topk", "amax", "index"}
_CHOOSES = frozenset({"topk", "max", "argmax"})
_FEW = 4
"""Equal products of one module up to this many are told apart; more are turns of a loop."""


def attention_dropout(items: list[Item], tape: Tape) -> list[Item]:
    """Sums inside of an attention core are its own; dropout there is that of its weights."""
    owner = {serial: item for item in items for serial in item.traits.get("between", ())}
    kept: list[Item] = []
    for item in items:
        core = owner.get(item.serial - 1) or owner.get(item.serial)
        if core is not None and item.op == "dropout":
            kept.append(_of_weights(core, item.fields["probability"], item.serial))
        elif core is None or item.op not in ("add", "activation"):
            kept.append(item)
        if item.op == "attention" and item.traits.get("dropped"):
            kept.append(_of_weights(item, item.traits["dropped"], item.serial))
    after = {id(item): place for place, item in enumerate(kept)}
    return sorted(kept, key=lambda item: (_end(item), after[id(item)]))


def _end(item: Item) -> int:
    """Dropout on weights is written after its core."""
    core = item.traits.get("core")
    return core.serial if core is not None else item.serial


def _of_weights(core: Item, probability: float, serial: int) -> Item:
    fields = {"width": core.fields["heads"], "probability": probability, "of": "attention"}
    item = Item("dropout", fields, core.rows, serial, core.module, core.output, context=core.context)
    item.traits["core"] = core
    return item


def late_biases(items: Iterable[Item], tape: Tape) -> None:
    """Biases that are added after the product."""
    by_output = {item.output: item for item in items if item.op in ("linear", "convolution")}
    for step in tape.steps:
        if step.op not in ("add", "add_") or len(step.values) != 2:
            continue
        for bias, product in (step.values, step.values[::-1]):
            if bias.parameter is None or product.is_weight:
                continue
            item = next((by_output[each] for each in sources(product, VIEWS, limit=5) if each in by_output), None)
            if item is not None and not item.fields.get("bias") and bias.numel == item.fields["outputs"]:
                add_bias(item, bias)


def folded_experts(items: list[Item], tape: Tape, names: Names) -> list[Item]:
    """The products of one module's experts as one operator, and the matrix that chooses among them as a router."""
    kept: list[Item] = []
    waiting: list[Item] = []
    for item in [*items, None]:
        if item is not None and item.op == "expert" and (not waiting or waiting[-1].module == item.module):
            waiting.append(item)
            continue
        if waiting and (item is None or item.op not in ("activation", "add", "dropout")):
            kept += _experts(waiting, kept, tape, names)
            waiting = []
        if item is not None:
            if item.op == "expert":
                waiting = [item]
            elif not waiting:
                kept.append(item)
    return kept


def _experts(products: list[Item], before: list[Item], tape: Tape, names: Names) -> list[Item]:
    """One operator of them, if they are matrices to a width inside and back, and something chooses among them."""
    count = products[0].traits["count"]
    first, last = products[0].fields, products[-1].fields
    hidden, ffn = first["inputs"], last["inputs"]
    widths = [item.fields["outputs"] for item in products[:-1]]
    plain = sum(widths) in (ffn, 2 * ffn) and last["outputs"] == hidden and len(products) > 1
    choices = _choices(products[0], tape) if plain else ()
    router = next((found for step in choices if (found := _router(before, step, count)) is not None), None)
    if router is None or products[0].rows % router.rows:
        return [_spread(item) for item in products]
    top_k = products[0].rows // router.rows
    fields = {"count": count, "top_k": top_k, "hidden": hidden, "ffn": ffn, "gated": sum(widths) == 2 * ffn}
    tables = [str(item.weight) for item in products]
    biases = [name for name in names.of(tables[0].rpartition(".")[0]) if name not in tables]
    wanted = count * (sum(widths) + hidden)
    fields["bias"] = bool(biases) and sum(map(names.numel, biases)) == wanted
    made = products[-1]
    item = Item("experts", fields, router.rows, made.serial, made.module, made.output)
    item.others = (*tables, *(biases if fields["bias"] else ()))
    item.flops, item.steps = sum(each.flops for each in products), made.steps
    router.fields |= {"top_k": top_k}
    return [item]


def _spread(item: Item) -> Item:
    """Products that are no experts as we know them: as matrices whose parameters are counted apart."""
    item.op = "linear"
    item.traits["batched"] = True
    return item


def _choices(item: Item, tape: Tape) -> Iterator[Step]:
    """The last steps before that choose the largest."""
    earlier = reversed(tape.steps[: item.steps[0]])
    return itertools.islice((step for step in earlier if step.op in _CHOOSES), _FEW)


def _router(items: list[Item], chosen: Step, count: int) -> Item | None:
    """Of the matrices before, the one whose outputs the experts are chosen by; made a router."""
    known = {item.output: item for item in items if item.op == "linear" and item.fields["outputs"] == count}
    scores = chosen.values[0]
    item = next((known[value] for value in sources(scores, _ROUTED, limit=80) if value in known), None)
    if item is not None:
        item.op = "router"
        item.fields = {
            "hidden": item.fields["inputs"],
            "experts": count,
            "bias": item.fields.get("bias", False),
            "function": "sigmoid" if _is_sigmoid(scores) else "softmax",
        }
    return item


def _is_sigmoid(scores: Value) -> bool:
    made = [value.step.op for value in sources(scores, _ROUTED, limit=80) if value.step is not None]
    return "sigmoid" in made and not SOFTMAX & set(made)


def folded_turns(items: list[Item], batch: int) -> list[Item]:
    """Turns of a loop: products with one matrix at a position at a time, and many equal products of one module; calls
    of one convolution; cores that each see some of the samples. Their positions add up.
    """
    kept: list[Item] = []
    first: dict[tuple[object, ...], Item] = {}
    many = _many(items)
    for item in items:
        key = _key(item)
        turns = item.op == "convolution" or (item.op == "linear" and item.rows <= batch) or key in many
        turns = turns or (item.op == "attention" and item.rows % (batch * item.context) != 0)
        if key is None or not turns or key not in first:
            kept.append(item)
            if key is not None:
                first[key] = item
            continue
        known = first[key]
        known.rows, known.flops = known.rows + item.rows, known.flops + item.flops
        known.input_rows += item.input_rows
    return kept


def joined_rotary(items: list[Item]) -> list[Item]:
    """Queries and keys that are turned one after the other, as one operator."""
    kept: list[Item] = []
    for item in items:
        last = kept[-1] if kept else item
        if item.op == last.op == "rotary" and last is not item and (item.module, item.rows) == (last.module, last.rows):
            last.fields["width"] += item.fields["width"]
        else:
            kept.append(item)
    return kept


def _many(items: list[Item]) -> set[tuple[object, ...]]:
    counts: dict[tuple[object, ...], int] = {}
    for item in items:
        key = _key(item)
        if key is not None and item.op not in ("linear", "convolution", "attention"):
            counts[key] = counts.get(key, 0) + 1
    return {key for key, count in counts.items() if count > _FEW}


def _key(item: Item) -> tuple[object, ...] | None:
    if item.op in ("linear", "convolution"):
        fed = item.op == "linear" or item.traits.get("fed", True)
        return (item.op, item.weight, item.portion, item.module, fed) if item.weight else None
    fields = tuple(sorted((name, str(value)) for name, value in item.fields.items()))
    return (item.op, item.module, fields, item.weight, item.others, item.learns, item.context)


def position_limit(items: Iterable[Item], length: int, batch: int) -> int | None:
    """Rows of the table that positions are looked up in, one for each position."""
    tables = [item for item in items if item.op == "embedding" and item.traits.get("positions")]
    rows = [item.fields["rows"] for item in tables if item.rows in (length, batch * length)]
    return min((each for each in rows if each >= length), default=None)
