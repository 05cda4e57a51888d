"""Items as the operators of a ModelSpec."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshwright.model import operators as ops
from meshwright.model.operators import Operator
from meshwright.trace.items import Item, Names
from meshwright.trace.streams import Spot, Streams


class Site(NamedTuple):
    """The layer that an operator is written for."""

    streams: Streams
    stream: str
    near: tuple[str, ...]
    """Streams of the layers that it reads."""
    names: Names


def written(item: Item, site: Site) -> Operator:
    """One item as an operator of its layer."""
    spot = item.traits["spot"]
    operator: Operator = _WRITERS[item.op](item, spot, site)
    return operator


def _path(item: Item, site: Site) -> str:
    """Where its parameters live; the module that ran, where it has none."""
    name = item.weight or next(iter(item.others), None)
    return site.names.near(name, item.module).rpartition(".")[0] if name else item.module


def _linear(item: Item, spot: Spot, site: Site) -> Operator:
    """One that works on pairs of positions is a product of each position with all others: its parameters are counted
    apart.
    """
    cross, times = site.streams.crossed(spot.times)
    if cross is not None:
        fields = {"inner": item.fields["inputs"], "outputs": item.fields["outputs"] * times, "cross": cross}
        gradients = 1 + bool(item.traits.get("fed", True))
        return ops.MatMul(**fields, path=item.module, gradients=gradients, **spot.fields)
    tied = bool(item.traits.get("tied")) or not item.weight
    fields = {
        "path": _path(item, site),
        "inputs": item.fields["inputs"],
        "outputs": item.fields["outputs"] * spot.times,
        "bias": bool(item.others),
        "tied": tied,
    }
    return ops.Linear(**fields, **spot.fields)


def _router(item: Item, spot: Spot, site: Site) -> Operator:
    fields = item.fields | {"path": _path(item, site), "bias": bool(item.others)}
    return ops.Router(**fields, **spot.fields)


def _experts(item: Item, spot: Spot, site: Site) -> Operator:
    return ops.Experts(**item.fields, path=_path(item, site), **spot.fields)


def _convolution(item: Item, spot: Spot, site: Site) -> Operator:
    streams, read = site.streams, item.input_rows // site.streams.batch
    fields = item.fields | {"path": _path(item, site), "bias": bool(item.others)}
    own, made = streams.named(site.stream), item.rows // streams.batch
    if site.stream in streams.free and own < made < 2 * own:
        spot, fields["surplus"] = Spot({}), made - own
    elif spot.times > 1:
        spot = Spot({"positions": made})
    length = spot.fields.get("positions") or streams.named(str(spot.fields.get("stream", site.stream)))
    return ops.Convolution(**fields, input_positions=None if read == length else read, **spot.fields)


def _attention(item: Item, spot: Spot, site: Site) -> Operator:
    heads = item.fields["heads"] * spot.times
    seen = site.streams.seen(item.context, item.rows // spot.times, site.stream, site.near)
    causal = item.fields.get("causal", False) and "cross" not in seen
    fields = item.fields | {"heads": heads, "causal": causal}
    fields["kv_heads"] = min(item.fields["kv_heads"] * spot.times, heads)
    fields["sinks"] = bool(item.others)
    return ops.Attention(**fields, path=item.module, **seen, **spot.fields)


def _dropout(item: Item, spot: Spot, site: Site) -> Operator:
    fields = item.fields | {"width": item.fields["width"] * spot.times, "path": item.module}
    seen = {}
    if item.fields.get("of") == "attention":
        seen = site.streams.seen(item.context, item.rows // spot.times, site.stream, site.near)
    return ops.Dropout(**fields, **seen, **spot.fields)


def _norm(item: Item, spot: Spot, site: Site) -> Operator:
    fields = item.fields | {"affine": bool(item.others), "bias": len(item.others) > 1}
    heads = spot.times if spot.times > 1 and item.fields["kind"] in ("rms", "layer") else None
    return ops.Norm(**fields, path=_path(item, site), heads=heads, **spot.fields)


def _wide(make: Callable[..., Operator]) -> Callable[[Item, Spot, Site], Operator]:
    """Operators whose width says how many numbers a position has."""

    def write(item: Item, spot: Spot, site: Site) -> Operator:
        return make(**item.fields | {"width": item.fields["width"] * spot.times}, **spot.fields)

    return write


def _embedding(item: Item, spot: Spot, site: Site) -> Operator:
    fields: dict[str, Any] = item.fields | {"path": _path(item, site), "tied": bool(item.traits.get("tied"))}
    return ops.Embedding(**fields, **spot.fields)


def _matmul(item: Item, spot: Spot, site: Site) -> Operator:
    cross, times = site.streams.crossed(spot.times)
    fields = {"cross": cross} | item.fields | {"outputs": item.fields["outputs"] * times}
    if cross is not None and item.fields.get("cross"):
        fields["outputs"] *= spot.times // times
    return ops.MatMul(**fields, path=item.module, gradients=item.learns, **spot.fields)


def _contrast(item: Item, spot: Spot, site: Site) -> Operator:
    return ops.Contrast(width=item.fields["inner"], path=item.module)


def _loss(item: Item, spot: Spot, site: Site) -> Operator:
    return ops.Loss(**item.fields, **spot.fields)


_WRITERS: dict[str, Callable[[Item, Spot, Site], Operator]] = {
    "linear": _linear,
    "router": _router,
    "experts": _experts,
    "convolution": _convolution,
    "attention": _attention,
    "dropout": _dropout,
    "norm": _norm,
    "activation": _wide(ops.Activation),
    "add": _wide(ops.Add),
    "rotary": _wide(ops.Rotary),
    "pool": _wide(ops.Pool),
    "embedding": _embedding,
    "matmul": _matmul,
    "contrast": _contrast,
    "loss": _loss,
}


def find_spot(item: Item, streams: Streams, stream: str) -> Spot:
    """Where an item stands in its layer; of a plain product the side that is as long as the stream counts as its
    positions, so that its FLOPs grow with it.
    """
    if item.op == "matmul" and "sizes" in item.traits and "merged" not in item.traits:
        _turn(item, streams)
    if item.op == "embedding" and item.rows == streams.named(stream):
        return Spot({})  # one look-up for all samples
    return streams.spot(item.rows, stream)


def _turn(item: Item, streams: Streams) -> None:
    """2 · n · k · m is the same product whichever of the three is called positions."""
    batches, n, k, m = item.traits["sizes"]
    if batches * n * k * m == 0 or item.rows != batches * n:
        return
    if batches == 1 and n == m == streams.batch and item.learns == 2:
        item.op = "contrast"
        return
    lengths = {*streams.free.values()}
    per_sample, rest = divmod(batches, streams.batch)
    rows_of = {n: (k, m), k: (n, m), m: (k, n)}
    for length in (n, k, m):
        if length in lengths and not rest and per_sample:
            inner, outputs = rows_of[length]
            item.rows = streams.batch * length
            item.fields = {"inner": inner, "outputs": outputs * per_sample}
            for side in ("inner", "outputs"):
                cross, times = streams.crossed(item.fields[side])
                if cross is not None:
                    item.fields |= {"cross": cross, side: times}
                    return
            return


def split_roles(found: Sequence[Operator], *, tokens: bool) -> list[Operator]:
    """How tensor parallelism may cut the matrices of a part: into an attention core's heads and out of them, into an
    activation and out of it; the tables and the last matrix of a model with tokens by vocabulary.
    """
    found = list(found)
    core = next((place for place, each in enumerate(found) if isinstance(each, ops.Attention)), None)
    if core is not None:
        _around_core(found, core)
    _around_activation(found)
    if tokens:
        _by_vocabulary(found)
    return found


def _around_core(found: list[Operator], at: int) -> None:
    core = found[at]
    assert isinstance(core, ops.Attention)
    query, key = core.heads * core.head_dim, core.kv_heads * core.head_dim
    value = core.kv_heads * (core.value_dim or core.head_dim)
    fused = {query: (), key: (), value: (), query + key + value: (query, key, value), key + value: (key, value)}
    after = next(
        (
            place
            for place in range(at + 1, len(found))
            if isinstance(each := found[place], ops.Linear)
            and each.inputs == core.heads * (core.value_dim or core.head_dim)
        ),
        None,
    )
    before = [place for place in range(at) if isinstance(each := found[place], ops.Linear) and each.outputs in fused]
    if after is None or not before:
        return
    for place in before:
        outputs = getattr(found[place], "outputs", 0)
        found[place] = found[place].model_copy(update={"split": "column", "segments": fused[outputs]})
    found[after] = found[after].model_copy(update={"split": "row"})


def _around_activation(found: list[Operator]) -> None:
    for at, operator in enumerate(found):
        if not isinstance(operator, ops.Activation):
            continue
        width = operator.width
        after = next((place for place in range(at + 1, len(found)) if isinstance(found[place], ops.Linear)), None)
        before = [place for place in range(at + 2) if place < len(found) and _feeds(found[place], operator)]
        if after in before:
            after = next(
                (
                    place
                    for place in range((after or 0) + 1, len(found))
                    if isinstance(each := found[place], ops.Linear) and each.split is None and each.inputs == width
                ),
                None,
            )
        if after is None or not before or getattr(found[after], "inputs", 0) != width:
            continue
        for place in before:
            outputs = getattr(found[place], "outputs", 0)
            segments = (width, width) if outputs == 2 * width else ()
            found[place] = found[place].model_copy(update={"split": "column", "segments": segments})
        found[after] = found[after].model_copy(update={"split": "row"})


def _feeds(each: Operator, activation: ops.Activation) -> bool:
    """Whether a matrix makes what an activation reads: of a gated one, both factors at once or one by one."""
    if not isinstance(each, ops.Linear) or each.split is not None:
        return False
    return each.outputs == activation.width or (activation.gated and each.outputs == 2 * activation.width)


def _by_vocabulary(found: list[Operator]) -> None:
    loss = next((each for each in found if isinstance(each, ops.Loss)), None)
    rows = max((each.rows for each in found if isinstance(each, ops.Embedding)), default=0)
    for place, each in enumerate(found):
        if isinstance(each, ops.Embedding) and each.rows == rows:
            found[place] = each.model_copy(update={"split": "vocabulary"})
        if isinstance(each, ops.Linear) and loss is not None and each.outputs == loss.classes:
            found[place] = each.model_copy(update={"split": "column"})
