"""A model in numbers: parameters and forward FLOPs by layer, and what a planner has to mind."""

from typing import Any

from meshwright.model.operators import Operator, Work
from meshwright.model.spans import span_names
from meshwright.model.spec import LayerStack, ModelSpec
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.hazards import hazards
from meshwright.units import show_count


def model_data(spec: ModelSpec, sequence: int) -> dict[str, Any]:
    """The model as plain data. Numbers of a layer are those of one layer; FLOPs are a forward's, per token, at
    `sequence` positions or as many as the model has places for.
    """
    sequence = min([sequence, *(stream.limit for stream in spec.streams.values() if stream.limit)])
    return {
        "name": spec.name,
        "family": spec.family,
        "source": spec.source,
        "parameters": spec.parameters,
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
    facts = [
        ("family", spec.family),
        ("parameters", f"{show_count(spec.parameters)} ({spec.parameters:,})"),
        *([("tied", f"{tied}, counted once")] if tied else []),
        ("forward", f"{show_count(data['forward_flops_per_token'])} FLOP per token at {data['sequence']:,} positions"),
        *([("source", spec.source)] if spec.source else []),
        ("fingerprint", spec.fingerprint),
    ]
    said = tuple(f"{hazard['name']}: {hazard['message']}" for hazard in data["hazards"])
    blocks: list[Block] = [Facts(spec.name, tuple(facts)), _layers(data)]
    return [*blocks, Lines("to mind", said, "warning")] if said else blocks


def _layers(data: dict[str, Any]) -> Block:
    rows: list[tuple[str, ...]] = []
    for layer in data["layers"]:
        numbers = (f"{layer['parameters']:,}", show_count(layer["forward_flops_per_token"]))
        rows.append((layer["span"], str(layer["layers"]), _parts(layer), *numbers))
    count = sum(layer["layers"] for layer in data["layers"])
    rows.append(("all", str(count), "", f"{data['parameters']:,}", show_count(data["forward_flops_per_token"])))
    return table("", "span | >layers | parts | >parameters each | >forward FLOP/token each", rows, total=True)


def _parts(layer: dict[str, Any]) -> str:
    return ", ".join(f"{part['name']} {show_count(part['parameters'])}" for part in layer["parts"])


def _layer(spec: ModelSpec, stack: LayerStack, sequence: int) -> dict[str, Any]:
    return {
        "span": stack.span,
        "layers": _count(stack),
        "parameters": stack.parameters,
        "forward_flops_per_token": _flops(spec, stack, sequence),
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
    """Of one sample, for each position of the layer's stream: what a plan's tokens are in a model with one stream."""
    length = spec.streams[stack.stream].length or sequence
    looked_at = getattr(operator, "cross", None)
    context = (spec.streams[looked_at].length or sequence) if looked_at in spec.streams else length
    return operator.flops(Work(1.0, length, context)) / length
