"""A model in numbers: parameters, forward FLOPs and saved bytes by layer, and what a planner has to mind."""

from typing import Any

from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.saved import saved_bytes
from meshwright.model.operators import Operator, work_of
from meshwright.model.spans import span_names
from meshwright.model.spec import LayerStack, ModelSpec
from meshwright.model.work import Flops
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.hazards import hazards
from meshwright.units import show_bytes, show_count

_TERMS = Flops._fields
"""Forward, backward's two products, and of attention what a mask hides and what flash attention computes again."""


def model_data(spec: ModelSpec, sequence: int) -> dict[str, Any]:
    """The model as plain data. Numbers of a layer are those of one layer; FLOPs are a forward's and bytes those that it
    saves for backward in bf16 on a GPU without recompute, by kernel set: both per token of the layer's stream, at
    `sequence` positions or as many as the model has places for.
    """
    sequence = min([sequence, *(stream.limit for stream in spec.streams.values() if stream.limit)])
    return {
        "name": spec.name,
        "family": spec.family,
        "source": spec.source,
        "parameters": spec.parameters,
        "active_parameters": spec.active_parameters,
        "sequence": sequence,
        "forward_flops_per_token": sum(_flops(spec, stack, sequence) * _count(stack) for stack in spec.stacks),
        "layers": [_layer(spec, stack, sequence) for stack in spec.stacks],
        "tied": [{"name": tie.name, "owner": tie.owner, "copies": list(tie.copies)} for tie in spec.ties],
        "hazards": [{"name": hazard.name, "message": hazard.message} for hazard in hazards(spec)],
        "fingerprint": spec.fingerprint,
    }


def model_blocks(spec: ModelSpec, sequence: int) -> list[Block]:
    """The same for a person."""
    data = model_data(spec, sequence)
    tied = ", ".join(f"{tie.owner} = {' = '.join(tie.copies)}" for tie in spec.ties)
    active = spec.active_parameters < spec.parameters
    facts = [
        ("family", spec.family),
        ("parameters", f"{show_count(spec.parameters)} ({spec.parameters:,})"),
        *([("active", f"{show_count(spec.active_parameters)} per token")] if active else []),
        *([("tied", f"{tied}, counted once")] if tied else []),
        ("forward", f"{show_count(data['forward_flops_per_token'])} FLOP per token at {data['sequence']:,} positions"),
        *([("source", spec.source)] if spec.source else []),
        ("fingerprint", spec.fingerprint),
    ]
    said = tuple(f"{hazard['name']}: {hazard['message']}" for hazard in data["hazards"])
    blocks: list[Block] = [Facts(spec.name, tuple(facts)), _layers(data), _flops_table(data), _saved_table(data)]
    return [*blocks, Lines("to mind", said, "warning")] if said else blocks


def _layers(data: dict[str, Any]) -> Block:
    rows: list[tuple[str, ...]] = [
        (layer["span"], str(layer["layers"]), _parts(layer), f"{layer['parameters']:,}") for layer in data["layers"]
    ]
    count = sum(layer["layers"] for layer in data["layers"])
    rows.append(("all", str(count), "", f"{data['parameters']:,}"))
    return table("", "span | >layers | parts | >parameters each", rows, total=True)


def _flops_table(data: dict[str, Any]) -> Block:
    rows = [
        (layer["span"], *(show_count(layer["flops_per_token"][term]) for term in _TERMS)) for layer in data["layers"]
    ]
    columns = "span | >forward | >backward, input | >backward, weights | >masked forward | >flash again"
    return table("matrix FLOP of one layer, per token", columns, rows)


def _parts(layer: dict[str, Any]) -> str:
    return ", ".join(f"{part['name']} {show_count(part['parameters'])}" for part in layer["parts"])


def _layer(spec: ModelSpec, stack: LayerStack, sequence: int) -> dict[str, Any]:
    return {
        "span": stack.span,
        "layers": _count(stack),
        "parameters": stack.parameters,
        "forward_flops_per_token": _flops(spec, stack, sequence),
        "flops_per_token": {
            term: sum(getattr(_operator_terms(spec, stack, op, sequence), term) for op in stack.operators)
            for term in _TERMS
        },
        "saved_bytes_per_token": {name: _saved(spec, stack, name, sequence) for name in KERNEL_SETS},
        "parts": [
            {
                "name": part.name,
                "parameters": part.parameters,
                "forward_flops_per_token": sum(_operator_flops(spec, stack, op, sequence) for op in part.operators),
            }
            for part in stack.parts
        ],
    }


def _count(stack: LayerStack) -> int:
    return len(span_names(stack.span))


def _flops(spec: ModelSpec, stack: LayerStack, sequence: int) -> float:
    return sum(_operator_flops(spec, stack, operator, sequence) for operator in stack.operators)


def _operator_flops(spec: ModelSpec, stack: LayerStack, operator: Operator, sequence: int) -> float:
    return _operator_terms(spec, stack, operator, sequence).forward


def _operator_terms(spec: ModelSpec, stack: LayerStack, operator: Operator, sequence: int) -> Flops:
    """Of one sample, for each position of the layer's stream: what a plan's tokens are in a model with one stream."""
    lengths = _lengths(spec, sequence)
    flops = operator.flops(work_of(operator, 1.0, lengths, stack.stream))
    return Flops(*(term / lengths[stack.stream] for term in flops))


def _saved(spec: ModelSpec, stack: LayerStack, kernels: str, sequence: int) -> float:
    lengths = _lengths(spec, sequence)
    return saved_bytes(spec, stack, kernels, lengths) / lengths[stack.stream]


def _lengths(spec: ModelSpec, sequence: int) -> dict[str, int]:
    return {name: stream.length or sequence for name, stream in spec.streams.items()}


def _saved_table(data: dict[str, Any]) -> Block:
    """One row a kernel set, one column for all spans that save the same."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for layer in data["layers"]:
        saved = tuple(show_bytes(layer["saved_bytes_per_token"][name]) for name in KERNEL_SETS)
        alike.setdefault(saved, []).append(layer["span"])
    heads = [first if not more else f"{first}, {len(more)} more" for first, *more in alike.values()]
    columns = " | ".join(["kernels", *(f">{head}" for head in heads)])
    rows = list(zip(KERNEL_SETS, *alike, strict=True))
    return table("saved for backward by one layer, per token, in bf16 on a GPU", columns, rows)
