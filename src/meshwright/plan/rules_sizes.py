"""Rules about sizes: what is split divides, exactly."""

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from meshwright.model.operators import Attention, Embedding, Experts, Linear, Loss, Operator, Scan
from meshwright.plan.numbers import divides, nearest_multiple, nearest_number
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.sites import Held, Site


def _batch_in_micro_batches(inputs: Inputs) -> Iterator[Finding]:
    batch, count = inputs.recipe.global_batch, inputs.plan.micro_batches
    if batch % count:
        ways = math.lcm(*(site.ways("dp") for site in inputs.sites))
        wanted = batch // ways if batch % ways == 0 else batch
        yield found("micro_batches", batch=batch, count=count, nearest=nearest_number(count, divides(wanted)))


def _samples_over_dp(inputs: Inputs) -> Iterator[Finding]:
    batch, count = inputs.recipe.global_batch, inputs.plan.micro_batches
    samples, rest = divmod(batch, count)
    ways = math.lcm(*(site.ways("dp") for site in inputs.sites))
    if batch % ways == 0:
        fix = f"use {nearest_number(count, divides(batch // ways))} micro-batches"
    else:
        fix = f"use a global batch of {nearest_multiple(batch, count * ways)}"
    for site in inputs.sites:
        if not rest and samples % site.ways("dp"):
            yield found(site.where, samples=samples, ways=site.ways("dp"), fix=fix)


def _head_ways(site: Site) -> tuple[int, str]:
    """How many ways a row splits attention heads, and by what."""
    tp, ulysses = site.ways("tp", "tp+sp"), site.ways("ulysses")
    named = [f"{name} {ways}" for name, ways in (("tp", tp), ("ulysses", ulysses)) if ways > 1]
    return tp * ulysses, " x ".join(named)


def _cores(site: Site) -> list[Attention]:
    return list(dict.fromkeys(core for held in site.held for core in held.attentions))


def heads_divide(core: Attention, ways: int) -> bool:
    """Whether an attention's heads can be split so many ways, its KV heads too or as whole copies."""
    return core.heads % ways == 0 and _kv_heads_divide(core, ways)


def _kv_heads_divide(core: Attention, ways: int) -> bool:
    return core.kv_heads % ways == 0 or ways % core.kv_heads == 0


def _heads(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        ways, splits = _head_ways(site)
        for core in _cores(site):
            if core.heads % ways:
                yield found(site.where, heads=core.heads, splits=splits, nearest=_nearest_split(site, ways))


def _kv_heads(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        ways, splits = _head_ways(site)
        for core in _cores(site):
            if core.heads % ways == 0 and not _kv_heads_divide(core, ways):
                yield found(site.where, heads=core.kv_heads, splits=splits, nearest=_nearest_split(site, ways))


def _nearest_split(site: Site, ways: int) -> int:
    """The number of ranks nearest to this over which a row's heads divide, and its widths where tp alone splits."""
    width = 0 if site.ways("ulysses") > 1 else _common_width(site)
    return nearest_number(ways, lambda ranks: _heads_fit(site, ranks) and width % ranks == 0)


def _nearest_tp(site: Site, tp: int) -> int:
    """The tp nearest to this by which the widths of a row divide, and its heads."""
    width, ulysses = _common_width(site), site.ways("ulysses")
    return nearest_number(tp, lambda ranks: width % ranks == 0 and _heads_fit(site, ranks * ulysses))


def _heads_fit(site: Site, ways: int) -> bool:
    return all(heads_divide(core, ways) for core in _cores(site))


def _common_width(site: Site) -> int:
    """The greatest common divisor of all widths that tp cuts; 0 where it cuts none."""
    return math.gcd(*(width for held in site.held for _, width in _cut_widths(held)))


def _widths(inputs: Inputs) -> Iterator[Finding]:
    cut_widths = cache(_cut_widths)
    for site in inputs.sites:
        tp = site.ways("tp", "tp+sp")
        cut = [width for held in site.held for width in cut_widths(held)] if tp > 1 else []
        uneven = next(((name, width) for name, width in cut if width % tp), None)
        if uneven:
            yield found(site.where, operator=uneven[0], width=uneven[1], ways=tp, nearest=_nearest_tp(site, tp))


def _cut_widths(held: Held) -> list[tuple[str, int]]:
    """The widths that tp cuts, with the operator's name, but heads and vocabularies, which have rules of their own."""
    classes = {op.classes for part in held.stack.parts for op in part.operators if isinstance(op, Loss)}
    cut = []
    for part in held.parts:
        heads = {width for op in part.operators if isinstance(op, Attention) for width in _head_widths(op)}
        widths = [(op.path or op.op, width) for op in part.operators for width in _operator_widths(op)]
        cut += [(name, width) for name, width in widths if width not in heads and width not in classes]
    return cut


def _head_widths(core: Attention) -> set[int]:
    """The widths of its queries, keys and values."""
    dims = (core.head_dim, core.value_dim or core.head_dim)
    return {count * dim for count in (core.heads, core.kv_heads) for dim in dims}


def _operator_widths(operator: Operator) -> tuple[int, ...]:
    match operator:
        case Linear(split="column"):
            return operator.segments or (operator.outputs,)
        case Linear(split="row"):
            return (operator.inputs,)
        case Experts():
            return (operator.ffn,)
        case Scan():
            return (operator.width,)
        case _:
            return ()


def _vocabulary(inputs: Inputs) -> Iterator[Finding]:
    tables = cache(vocabularies)
    for site in inputs.sites:
        ways = site.ways("tp", "tp+sp")
        for rows in dict.fromkeys(size for held in site.held for size in tables(held)):
            if rows % ways:
                yield found(site.where, rows=rows, ways=ways, padded=-(-rows // ways) * ways)


def vocabularies(held: Held) -> list[int]:
    """The numbers of rows, or classes, that tp cuts by vocabulary."""
    classes = {op.classes for op in held.operators if isinstance(op, Loss)}
    tables = [op.rows for op in held.operators if isinstance(op, Embedding) and op.split == "vocabulary"]
    heads = [op.outputs for op in held.operators if isinstance(op, Linear) and op.split and op.outputs in classes]
    return tables + heads


class Cut(NamedTuple):
    """How a row cuts a stream of so many positions: over how many ranks, and how many of these are a ring.

    A causal ring is balanced by an early and a late piece on each rank (Megatron-LM; torch's context parallel).
    """

    stream: str
    length: int
    ranks: int
    ring: int
    pieces: int
    by: str

    @property
    def unit(self) -> int:
        """What the length must be a multiple of."""
        return math.lcm(self.pieces * self.ring, self.ranks)


def _sequence(inputs: Inputs) -> Iterator[Finding]:
    causal = {stack.stream for stack in inputs.model.stacks if any(_is_causal(op) for op in stack.operators)}
    for site in inputs.sites:
        for cut in _cuts(inputs, site, causal):
            if cut.length % cut.unit:
                yield found(
                    site.where,
                    length=cut.length,
                    stream=cut.stream,
                    unit=cut.unit,
                    by=cut.by,
                    fix=_other_length(inputs, cut),
                )


def _cuts(inputs: Inputs, site: Site, causal: set[str]) -> Iterator[Cut]:
    """The streams that a row's layers work on, and those that they only look at, which tp+sp leaves whole."""
    ring = site.ways("cp")
    for stream, crossed in dict.fromkeys(pair for held in site.held for pair in _streams(held)):
        length, balanced = inputs.length(stream), ring > 1 and stream in causal and not crossed
        ways = {"cp": ring, "ulysses": site.ways("ulysses"), "tp+sp": 1 if crossed else site.ways("tp+sp")}
        by = " x ".join(f"{name} {size}" for name, size in ways.items() if size > 1)
        by += ", two pieces a rank of a causal ring" if balanced else ""
        if length is not None:
            yield Cut(stream, length, math.prod(ways.values()), ring, 2 if balanced else 1, by)


def _is_causal(operator: Operator) -> bool:
    return isinstance(operator, Attention) and operator.causal and operator.cross is None


def _streams(held: Held) -> list[tuple[str, bool]]:
    return [(held.stack.stream, False), *((op.cross, True) for op in held.attentions if op.cross is not None)]


def _other_length(inputs: Inputs, cut: Cut) -> str:
    known = inputs.model.streams.get(cut.stream)
    if known is None or known.length is None:
        return f"use a sequence of {nearest_multiple(cut.length, cut.unit)}"
    return f"split it over {nearest_number(cut.ranks, lambda ranks: cut.length % (cut.pieces * ranks) == 0)} ranks"


SIZE_RULES: tuple[Rule, ...] = (
    Rule(
        "micro-batches-divide-the-batch",
        "meaning",
        _batch_in_micro_batches,
        "a global batch of {batch} does not divide into {count} micro-batches",
        "use {nearest}",
    ),
    Rule(
        "samples-divide",
        "meaning",
        _samples_over_dp,
        "the samples of a micro-batch ({samples}) do not divide over {ways} ranks (dp)",
        "{fix}",
    ),
    Rule(
        "heads-divide",
        "meaning",
        _heads,
        "{heads} heads do not divide over {splits}",
        "split them over {nearest} ranks",
    ),
    Rule(
        "kv-heads-divide",
        "meaning",
        _kv_heads,
        "{heads} KV heads neither divide over {splits} nor have whole copies there",
        "split the heads over {nearest} ranks",
    ),
    Rule(
        "widths-divide",
        "meaning",
        _widths,
        "the width {width} of '{operator}' does not divide over tp {ways}",
        "use tp {nearest}",
    ),
    Rule(
        "vocabulary-divides",
        "meaning",
        _vocabulary,
        "a vocabulary of {rows} does not divide over tp {ways}, and is padded to {padded}",
        "give the model a vocabulary of {padded}",
        "warning",
    ),
    Rule(
        "sequence-divides",
        "meaning",
        _sequence,
        "the {length} positions of stream '{stream}' are no multiple of {unit} ({by})",
        "{fix}",
    ),
)
