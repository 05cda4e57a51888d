"""What a plan takes and what it fills: step time with its parts, and memory, from model, cluster and recipe."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.cost.blocks import Block
from meshwright.cost.compute import needed_flops
from meshwright.cost.memory import Instant, Memory, stage_memory
from meshwright.cost.placement import Placement
from meshwright.cost.schedule import Span, Timeline, orders, simulate
from meshwright.cost.stage_times import PARTS, Stages
from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.spec import Offload
from meshwright.units import show_bytes, show_count, show_seconds

_ROUNDING = 1e-9  # of a step: less is what floating-point sums leave


@dataclass(frozen=True)
class Estimate:
    """The predicted time and memory of one optimizer step."""

    step_time_s: float
    tokens_per_s: float
    """Positions of the stream that the last layer works on."""
    mfu: float
    """Model FLOPs utilisation: the matrix FLOPs that the model needs, forward and backward, without recompute, over the
    time and the devices' peak in the dtype of matrix products. Causal attention counts as what its mask leaves, half;
    Chowdhery 2022, appendix B, counts the full square, which is more and may pass 100 % on long sequences.
    """
    bubble: float
    """The share of the step that a stage waits, in the mean over stages."""
    parts: dict[str, float]
    """Seconds of the busiest stage by what it does (see `stage_times.PARTS`), and `bubble`: what it waits. They add up
    to the step. Communication counts where computing waits for it, which is all of it so far.
    """
    memory: tuple[Memory, ...]
    """One rank of each stage."""
    timeline: tuple[Span, ...]
    notes: tuple[str, ...] = ()
    """What the figures leave out."""

    @property
    def memory_peak_bytes(self) -> float:
        """The fullest rank's peak."""
        return max(each.peak for each in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every rank fits into its device."""
        return all(each.fits for each in self.memory)

    @property
    def tightest(self) -> Memory:
        """The stage that fills its devices most."""
        return max(self.memory, key=lambda each: each.peak / each.capacity)

    @property
    def verdict(self) -> str:
        """One sentence."""
        tight = self.tightest
        pace = f"{show_seconds(self.step_time_s)} a step, {show_count(self.tokens_per_s)} tokens/s, MFU {self.mfu:.1%}"
        at = f"stage {tight.stage}, {tight.worst.name}"
        filled = f"{show_bytes(tight.peak)} of {show_bytes(tight.capacity)}"
        if self.fits:
            return f"fits: {filled} on the fullest device ({at}); {pace}"
        over, part = show_bytes(tight.peak - tight.capacity), _largest(tight.worst)
        return f"does not fit: {filled} on the fullest device ({at}), {over} too many, the largest part {part}; {pace}"

    def as_data(self) -> dict[str, Any]:
        """Plain data for `--json`; the timeline has a format of its own."""
        return {
            "step_time_s": self.step_time_s,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "bubble": self.bubble,
            "memory_peak_bytes": self.memory_peak_bytes,
            "fits": self.fits,
            "verdict": self.verdict,
            "parts": dict(self.parts),
            "stages": [_stage_data(each) for each in self.memory],
            "notes": list(self.notes),
        }


def _largest(instant: Instant) -> str:
    name, size = max(instant.parts.items(), key=lambda item: item[1])
    return f"{name} ({show_bytes(size)})"


def _stage_data(memory: Memory) -> dict[str, Any]:
    instants = {instant.name: {"total": instant.total} | instant.parts for instant in memory.instants}
    return {
        "stage": memory.stage,
        "group": memory.group,
        "memory_peak_bytes": memory.peak,
        "memory_bytes": memory.capacity,
        "fits": memory.fits,
        "peak_at": memory.worst.name,
        "memory": instants,
    }


def estimate_plan(inputs: Inputs) -> Estimate:
    """Predict a plan. Raises PlanError, with every problem, for a plan without meaning, and for a schedule that cannot
    be estimated yet.
    """
    problems = [problem for problem in check_plan(inputs) if problem.severity == "error"]
    if problems:
        raise PlanError("the plan has no meaning:\n" + "\n".join(str(problem) for problem in problems))
    plan = inputs.plan
    order = orders(plan.schedule, len(plan.stages), plan.micro_batches)
    placement = Placement(inputs)
    stages = Stages(placement)
    times = [work.time() for work in stages.work]
    timeline = simulate(order, times, stages.links, norm=stages.norm_seconds())
    memory = tuple(stage_memory(placement, number, actions) for number, actions in enumerate(order))
    return Estimate(
        step_time_s=timeline.seconds,
        tokens_per_s=_tokens(placement) / timeline.seconds,
        mfu=model_flops(placement) / (peak_flops(placement) * timeline.seconds),
        bubble=timeline.bubble,
        parts=_parts(stages, timeline),
        memory=memory,
        timeline=timeline.spans,
        notes=tuple(_notes(placement)),
    )


def _parts(stages: Stages, timeline: Timeline) -> dict[str, float]:
    busiest = max(range(len(timeline.busy)), key=timeline.busy.__getitem__)
    spent = stages.work[busiest].step(stages.placement.plan.micro_batches)
    norm = sum(span.end - span.start for span in timeline.spans if span.stage == busiest and span.kind == "norm")
    spent["state"] = spent.get("state", 0.0) + norm
    parts = {part: spent.get(part, 0.0) for part in PARTS}
    waiting = timeline.seconds - sum(parts.values())
    return parts | {"bubble": waiting if waiting > _ROUNDING * timeline.seconds else 0.0}


def _tokens(placement: Placement) -> float:
    last = placement.model.stacks[-1]
    return float(placement.recipe.global_batch * placement.lengths[last.stream])


def model_flops(placement: Placement) -> float:
    """Matrix FLOPs of a step: forward, and the products of backward that the recipe's learning parameters call for."""
    total = 0.0
    for block in placement.blocks:
        key = ("needed", id(block.stack), block.learning)
        total += len(block.names) * placement.once(key, partial(_needed, placement, block))
    return total


def _needed(placement: Placement, block: Block) -> float:
    return sum(needed_flops(share) for share in placement.whole_shares(block))


def peak_flops(placement: Placement) -> float:
    """FLOP per second of all devices that work, in the dtype of matrix products."""
    precision, devices = placement.recipe.precision, placement.inputs.cluster.devices
    dtype = precision.matmul or precision.compute
    pools = [found for name in placement.plan.groups for found in placement.pools(name)]
    return sum(count * devices[pool.device].peak[dtype] for pool, count in pools)


def _notes(placement: Placement) -> list[str]:
    """What the reader should know of the figures."""
    rows = [row for stage in placement.plan.stages for row in stage.layers]
    if any(row.offload != Offload() for row in rows):
        return ["offload takes bytes off the devices; the time of its copies is not counted yet"]
    return []
