"""Whether a ModelSpec counts what was run: parameters exactly, matrix FLOPs against torch's own count."""

from typing import NamedTuple

from meshwright.model.operators import work_of
from meshwright.model.spec import ModelSpec
from meshwright.trace.errors import TraceError
from meshwright.trace.tape import Tape


class Count(NamedTuple):
    """Matrix FLOPs."""

    forward: float
    backward: float


def counted(spec: ModelSpec, batch: int, lengths: dict[str, int]) -> Count:
    """What a ModelSpec says of so many samples; what the first operators read wants no gradient."""
    forward = backward = 0.0
    flows: dict[str, bool] = {}
    for layer in spec.layers:
        fed, wanted = any(flows[read] for read in layer.reads), layer.name not in spec.unused
        for operator in layer.stack.operators:
            flops = operator.flops(work_of(operator, batch, lengths, layer.stack.stream))
            forward += flops.forward
            backward += wanted * (flops.by_weight + flops.by_input * fed)
            fed = fed or bool(operator.parameters() or getattr(operator, "tied", False))
        flows[layer.name] = fed
    return Count(forward, backward)


def differences(spec: ModelSpec, tape: Tape, batch: int, lengths: dict[str, int]) -> list[str]:
    """What the ModelSpec counts otherwise than torch, a sentence each; empty where all is equal."""
    said = counted(spec, batch, lengths)
    found = []
    for name, ours, torchs in (("forward", said.forward, tape.forward_flops), ("backward", said.backward, None)):
        torchs = tape.backward_flops if torchs is None else torchs
        if torchs is None:
            found.append(f"the {name} pass could not be run, and its FLOPs are not checked")
        elif abs(ours - torchs) > 1e-9 * max(ours, torchs):
            share = f"{100 * (ours - torchs) / torchs:+.2g} %" if torchs else "not 0"
            found.append(f"counts {ours:.6g} matrix FLOPs {name} where torch counts {torchs:.6g} ({share})")
    return found


def check_parameters(spec: ModelSpec, held: int) -> None:
    """Raises TraceError where a parameter was lost or counted twice: our fault, and no spec to plan with."""
    if spec.parameters != held:
        raise TraceError(
            f"the trace of '{spec.name}' counts {spec.parameters:,} parameters, but the module has {held:,}; please "
            "report this with the module"
        )
