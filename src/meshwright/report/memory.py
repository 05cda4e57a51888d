"""Whether a plan fits, for a verdict: stage by stage, without simulating the step."""

from typing import Any, NamedTuple

from meshwright.cost.memory import Memory, stage_memory
from meshwright.cost.placement import Placement
from meshwright.cost.schedule import orders
from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs
from meshwright.report.blocks import Block, table
from meshwright.units import show_bytes


class MemoryVerdict(NamedTuple):
    """Whether a plan fits, in one sentence, and the stages that it follows from; none where that is not known."""

    fits: bool | None
    sentence: str
    stages: tuple[Memory, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "fits": self.fits,
            "verdict": self.sentence,
            "stages": [
                {
                    "stage": each.stage,
                    "group": each.group,
                    "peak_bytes": each.peak,
                    "capacity_bytes": each.capacity,
                    "peak_at": each.worst.name,
                    "parts": dict(each.worst.parts),
                }
                for each in self.stages
            ],
        }


def judge_memory(inputs: Inputs) -> MemoryVerdict:
    """The verdict on a plan that has a meaning."""
    plan = inputs.plan
    placement = Placement(inputs)
    try:
        order = orders(plan.schedule, len(plan.stages), plan.micro_batches)
    except PlanError:
        return _judge_states(placement)
    stages = tuple(stage_memory(placement, number, actions) for number, actions in enumerate(order))
    tight = max(stages, key=lambda each: each.peak / each.capacity)
    filled = f"{show_bytes(tight.peak)} of {show_bytes(tight.capacity)} on the fullest device"
    at = f"stage {tight.stage} on group {tight.group}, at {tight.worst.name}"
    if tight.fits:
        return MemoryVerdict(True, f"{filled} ({at})", stages)
    return MemoryVerdict(False, f"{filled} ({at}), {show_bytes(tight.peak - tight.capacity)} too many", stages)


def _judge_states(placement: Placement) -> MemoryVerdict:
    """A schedule that is not simulated yet says nothing of activations; what rests between steps needs no schedule."""
    plan = placement.plan
    resting: dict[str, float] = {}
    capacity: dict[str, float] = {}
    for number, stage in enumerate(plan.stages):
        memory = stage_memory(placement, number, ())
        at_step = next(instant for instant in memory.instants if instant.name == "step")
        resting[stage.on] = resting.get(stage.on, 0.0) + at_step.total
        capacity[stage.on] = memory.capacity
    tight = max(resting, key=lambda group: resting[group] / capacity[group])
    filled = f"{show_bytes(resting[tight])} of {show_bytes(capacity[tight])} on a device of group {tight}"
    if resting[tight] > capacity[tight]:
        return MemoryVerdict(False, f"parameters, gradients and optimizer alone take {filled}")
    why = f"memory was not judged, since schedule '{plan.schedule}' is not simulated yet"
    return MemoryVerdict(None, f"{why}; parameters, gradients and optimizer take {filled}, activations come on top")


def memory_table(stages: tuple[Memory, ...]) -> Block:
    """The peak of each stage by what it is for; stages that are alike stand in one row."""
    parts = [part for part in _PARTS if any(each.worst.parts.get(part) for each in stages)]
    alike: dict[tuple[str, ...], list[int]] = {}
    for each in stages:
        sizes = tuple(show_bytes(each.worst.parts[part]) if each.worst.parts.get(part) else "-" for part in parts)
        share = f"{each.peak / each.capacity:.0%} of {show_bytes(each.capacity)}"
        alike.setdefault((*sizes, show_bytes(each.peak), share, each.worst.name), []).append(each.stage)
    rows = [(_numbers(numbers), *cells) for cells, numbers in alike.items()]
    names = " | ".join(("stages", *(f">{part}" for part in parts), ">peak", ">of the device", "at"))
    return table("memory of one device, at its peak", names, rows)


_PARTS = ("parameters", "gradients", "optimizer", "activations", "gathered", "logits", "recomputed", "reduced", "loss")


def _numbers(stages: list[int]) -> str:
    runs: list[list[int]] = []
    for number in stages:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
