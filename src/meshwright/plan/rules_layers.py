"""Rules about layers: each of the model's stands in exactly one stage, after those that it reads; parts are real."""

from collections.abc import Iterator
from itertools import pairwise

from meshwright.errors import nearest
from meshwright.model.spans import format_spans, parse_span
from meshwright.model.spec import ModelSpec
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.sites import Site, shared_indices


def _unknown_layer(inputs: Inputs) -> Iterator[Finding]:
    spans = [stack.span for stack in inputs.model.stacks]
    for site in inputs.sites:
        _, numbers = parse_span(site.row.span)
        known = sum(len(shared_indices(site.row.span, span)) for span in spans)
        if known < (1 if numbers is None else len(numbers)):
            near = _nearest_span(site.row.span, inputs.model)
            yield found(site.where, model=inputs.model.name, span=site.row.span, nearest=near)


def _nearest_span(span: str, model: ModelSpec) -> str:
    """The span with the model's nearest name, cut down to the layers that the model has."""
    base, numbers = parse_span(span)
    runs: dict[str, list[range | None]] = {}
    for stack in model.stacks:
        name, indices = parse_span(stack.span)
        runs.setdefault(name, []).append(indices)
    name = base if base in runs else (nearest(base, runs, 1) or list(runs))[0]
    real = [indices for indices in runs[name] if indices is not None]
    if not real:
        return name
    first, last = real[0].start, real[-1].stop - 1
    if numbers is None:
        return f"{name}.{first}-{last}" if last > first else f"{name}.{first}"
    low, high = (min(max(index, first), last) for index in (numbers.start, numbers.stop - 1))
    return f"{name}.{low}-{high}" if high > low else f"{name}.{low}"


def _wholes(inputs: Inputs) -> Iterator[tuple[Site, str]]:
    """Every layer that a row for a layer as a whole names, with its row."""
    return ((site, name) for site in inputs.sites if site.row.part is None for name in site.names)


def _twice(inputs: Inputs) -> Iterator[Finding]:
    first: dict[str, Site] = {}
    clashes: dict[tuple[str, str], list[str]] = {}
    for site, name in _wholes(inputs):
        other = first.setdefault(name, site)
        if other is not site:
            clashes.setdefault((site.where, other.where), []).append(name)
    for (where, other_where), names in clashes.items():
        yield found(where, layers=", ".join(format_spans(names)), other=other_where)


def _nowhere(inputs: Inputs) -> Iterator[Finding]:
    stage_of = {name: site.stage for site, name in _wholes(inputs)}
    stage, missing = 0, dict[int, list[str]]()
    for layer in inputs.model.layers:
        if layer.name in stage_of:
            stage = stage_of[layer.name]
        else:
            missing.setdefault(stage, []).append(layer.name)
    for number, names in missing.items():
        yield found("stages", model=inputs.model.name, layers=", ".join(format_spans(names)), stage=number)


def _before_what_it_reads(inputs: Inputs) -> Iterator[Finding]:
    place = {name: (order, site.where) for order, (site, name) in enumerate(_wholes(inputs))}
    told: set[tuple[str, str]] = set()
    for layer in inputs.model.layers:
        for read in layer.reads if layer.name in place else ():
            if read not in place or place[read] <= place[layer.name]:
                continue
            rows = place[layer.name][1], place[read][1]
            if rows not in told:
                told.add(rows)
                yield found(rows[0], layer=layer.name, read=read, other=rows[1])


def _out_of_order(inputs: Inputs) -> Iterator[Finding]:
    order = {layer.name: number for number, layer in enumerate(inputs.model.layers)}
    for number in range(len(inputs.plan.stages)):
        rows = [site for site in inputs.sites if site.stage == number and site.row.part is None and site.names]
        firsts = [order[site.names[0]] for site in rows]
        wrong = next((later for before, later in pairwise(range(len(rows))) if firsts[later] < firsts[before]), None)
        if wrong is not None:
            ordered = sorted(rows, key=lambda site: order[site.names[0]])
            spans = ", ".join(site.row.span for site in ordered)
            yield found(rows[wrong].where, span=rows[wrong].row.span, before=rows[wrong - 1].row.span, spans=spans)


def _empty_stage(inputs: Inputs) -> Iterator[Finding]:
    full = {site.stage for site in inputs.sites if site.row.part is None}
    for number in range(len(inputs.plan.stages)):
        if number not in full:
            yield found(f"stages.{number}", stage=number)


def _unknown_part(inputs: Inputs) -> Iterator[Finding]:
    for site in inputs.sites:
        part = site.row.part
        lacking = [held for held in site.held if not held.parts] if part is not None else []
        if part is not None and lacking:
            known = [known.name for known in lacking[0].stack.parts]
            close = nearest(part, known, 1) or known[:1]
            fix = f"write 'part: {close[0]}'" if close else "remove the row"
            yield found(site.where, layers=lacking[0].stack.span, part=part, fix=fix)


def _part_without_layer(inputs: Inputs) -> Iterator[Finding]:
    wholes = {(site.stage, name) for site, name in _wholes(inputs)}
    for site in inputs.sites:
        alone = [name for name in site.names if (site.stage, name) not in wholes]
        if site.row.part is not None and alone:
            spans = format_spans(alone)
            yield found(site.where, part=site.row.part, layers=", ".join(spans), stage=site.stage, first=spans[0])


def _part_twice(inputs: Inputs) -> Iterator[Finding]:
    first: dict[tuple[int, str, str], Site] = {}
    for site in inputs.sites:
        if site.row.part is None:
            continue
        others = [first.setdefault((site.stage, name, site.row.part), site) for name in site.names]
        names = [name for name, other in zip(site.names, others, strict=True) if other is not site]
        if names:
            other = next(other for other in others if other is not site)
            yield found(site.where, part=site.row.part, layers=", ".join(format_spans(names)), other=other.where)


LAYER_RULES: tuple[Rule, ...] = (
    Rule(
        "layer-is-known",
        "meaning",
        _unknown_layer,
        "model '{model}' does not have all of the layers '{span}'",
        "write '{nearest}'",
    ),
    Rule(
        "layer-stands-once",
        "meaning",
        _twice,
        "{layers} stands in {other} too",
        "take it out of one of the two rows",
    ),
    Rule(
        "every-layer-stands",
        "meaning",
        _nowhere,
        "no row holds {layers} of model '{model}'",
        "add a row for {layers} to stage {stage}",
    ),
    Rule(
        "stage-has-layers",
        "meaning",
        _empty_stage,
        "stage {stage} has no layers",
        "give it a row, or remove it",
    ),
    Rule(
        "reads-come-first",
        "meaning",
        _before_what_it_reads,
        "'{layer}' reads '{read}', which stands after it in {other}",
        "put '{read}' before '{layer}'",
    ),
    Rule(
        "rows-follow-the-model",
        "meaning",
        _out_of_order,
        "'{span}' comes before '{before}' in the model",
        "write the rows of the stage in the model's order: {spans}",
    ),
    Rule(
        "part-is-known",
        "meaning",
        _unknown_part,
        "{layers} has no part '{part}'",
        "{fix}",
    ),
    Rule(
        "part-has-its-layer",
        "meaning",
        _part_without_layer,
        "part '{part}' of {layers} has roles of its own, but stage {stage} has no row for the layers as a whole",
        "add a row for '{first}' without 'part' to stage {stage}",
    ),
    Rule(
        "part-stands-once",
        "meaning",
        _part_twice,
        "part '{part}' of {layers} stands in {other} too",
        "take it out of one of the two rows",
    ),
)
