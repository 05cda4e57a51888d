"""Whether a ModelSpec counts what was run: parameters exactly, matrix FLOPs against torch's own count."""

from typing import NamedTuple

from meshwright.model.operators import work_of
from meshwright.model.spec import ModelSpec
from meshwright.trace.errors import TraceError
from meshwright.trace.tape import Tape

_ROUNDING = 1e-9
LOUD = 0.01
"""A difference of this share is worth a warning; a smaller one stands in the source of the ModelSpec alone."""


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


class Difference(NamedTuple):
    """Where a ModelSpec counts otherwise than torch."""

    sentence: str
    share: float
    """Of torch's count."""


def differences(spec: ModelSpec, tape: Tape, batch: int, lengths: dict[str, int]) -> list[Difference]:
    """What the ModelSpec counts otherwise than torch; empty where all is equal."""
    said, found = counted(spec, batch, lengths), list[Difference]()
    for name, ours, torchs in (
        ("forward", said.forward, tape.forward_flops),
        ("backward", said.backward, tape.backward_flops),
    ):
        if torchs is None:
            found.append(Difference(f"could not run the {name} pass to check its FLOPs", 1.0))
        elif abs(ours - torchs) > _ROUNDING * max(ours, torchs):
            share = (ours - torchs) / torchs if torchs else 1.0
            shown = f"counts {ours:.6g} matrix FLOPs {name} where torch counts {torchs:.6g} ({100 * share:+.2g} %)"
            found.append(Difference(shown, abs(share)))
    return found


def check_parameters(spec: ModelSpec, held: int) -> None:
    """Raises TraceError where a parameter was lost or counted twice: our fault, and no spec to plan with."""
    if spec.parameters != held:
        raise TraceError(
            f"the trace of '{spec.name}' counts {spec.parameters:,} parameters, but the module has {held:,}; please "
            "report this with the module"
        )
