"""Where a step failed, for whoever reads of it: rank, stage, layer, action."""

from meshwright.model.spans import format_spans
from meshwright.plan.orders import Action
from meshwright.runtime.place import Place
from meshwright.runtime.stage import StageModule


def standing(error: BaseException, action: Action, place: Place, stage: StageModule) -> str:
    """A sentence for an error that an action raised. The layer is named where Python was inside of one: backward is
    torch's own code.
    """
    layers = ", ".join(format_spans([placed.layer for placed in place.of_stage(action.stage)]))
    inside = _layer(error, place, stage)
    where = f"layer {inside} of stage" if inside else "stage"
    return (
        f"on rank {place.processes.rank}, in {where} {action.stage} ({layers}): {action.kind} of micro-batch "
        f"{action.micro_batch}"
    )


def _layer(error: BaseException, place: Place, stage: StageModule) -> str | None:
    """The layer of the innermost module whose code raised."""
    names = {id(module): name for name, module in stage.module.named_modules()}
    found, trace = None, error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        found = place.inputs.model.layer_of(names.get(id(module), "")) or found
        trace = trace.tb_next
    return found
