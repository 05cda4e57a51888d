"""What a plan takes and what it fills: step time with its parts, and memory, from model, cluster and recipe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meshwright.cost.blocks import Block
from meshwright.cost.calibration import IDEAL, Calibration
from meshwright.cost.compute import machines, needed_flops
from meshwright.cost.host import HostMemory
from meshwright.cost.layer_times import Spent
from meshwright.cost.memory import Memory
from meshwright.cost.overlap import MIB
from meshwright.cost.placement import Placement
from meshwright.cost.simulation import SharedPool, StageTime, Timeline, simulate
from meshwright.cost.stage_times import PARTS, Stages
from meshwright.cost.verdict import MemoryVerdict, memory_verdict
from meshwright.errors import PlanError
from meshwright.plan.orders import Order
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.rules_schedule import OF_SCHEDULES
from meshwright.units import show_count, show_seconds

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
    """The share of the step that a group waits, in the mean over groups."""
    parts: dict[str, float]
    """Seconds of the busiest group by what it does (see `stage_times.PARTS`), and `bubble`: what it waits. They add up
    to the step. Communication counts as far as computing waits for it.
    """
    memory: tuple[Memory, ...]
    """One rank of each group."""
    timeline: Timeline
    calibration: str
    """What the devices reach of their peaks, and where that is from."""
    hosts: tuple[HostMemory, ...] = ()
    """The memory of nodes, where something is offloaded."""
    notes: tuple[str, ...] = ()
    """What a reader should know: the warnings of the rules, and what the figures leave out."""

    @property
    def memory_peak_bytes(self) -> float:
        """The fullest rank's peak."""
        return max(each.peak for each in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every rank fits into its device and its host, but for a small chance (`memory.ACCEPTED`)."""
        return self._judged.fits

    @property
    def verdict(self) -> str:
        """One sentence."""
        pace = f"{show_seconds(self.step_time_s)} a step, {show_count(self.tokens_per_s)} tokens/s, MFU {self.mfu:.1%}"
        return f"{self._judged.word}: {self._judged.sentence}; {pace}"

    @property
    def _judged(self) -> MemoryVerdict:
        return MemoryVerdict(self.memory, self.hosts)

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
            "groups": [each.as_data() for each in self.memory],
            "hosts": [each.as_data() for each in self.hosts],
            "calibration": self.calibration,
            "notes": list(self.notes),
        }


def estimate_plan(
    inputs: Inputs, calibration: Calibration | None = None, *, orders: tuple[Order, ...] | None = None
) -> Estimate:
    """Predict a plan, with what devices and links reach by a calibration; none: the public one. `orders` stand in place
    of the plan's schedule, whose rules do not count then. Raises PlanError, with every problem, for a plan without
    meaning.
    """
    problems = [each for each in check_plan(inputs) if orders is None or each.rule not in OF_SCHEDULES]
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    if errors:
        raise PlanError("the plan has no meaning:\n" + "\n".join(errors))
    found = estimate_placement(Placement(inputs, calibration, orders=orders))
    return replace(found, notes=(*map(str, problems), *found.notes))


def estimate_placement(placement: Placement) -> Estimate:
    """The same of a plan that has a meaning, by the calibration of its placement. For another calibration the rest is
    known already: `estimate_placement(placement.with_calibration(other))`.
    """
    stages, timeline = run_step(placement)
    memory = memory_verdict(placement)
    return Estimate(
        step_time_s=timeline.seconds,
        tokens_per_s=_tokens(placement) / timeline.seconds,
        mfu=model_flops(placement) / (peak_flops(placement) * timeline.seconds),
        bubble=timeline.bubble,
        parts=_parts(stages, timeline),
        memory=memory.groups,
        hosts=memory.hosts,
        timeline=timeline,
        calibration=f"{placement.calibration.name}: {placement.calibration.source}",
        notes=(*_notes(placement), *_bucket_note(stages, timeline)),
    )


def run_step(placement: Placement) -> tuple[Stages, Timeline]:
    """The times of a plan's stages, and the step that they make: `timeline.seconds`, without memory and the rest."""
    stages = Stages(placement)
    return stages, _timeline(stages, stages.times())


def _timeline(stages: Stages, times: Sequence[StageTime]) -> Timeline:
    placement = stages.placement
    pools = _shared_pools(placement)
    return simulate(
        placement.orders,
        times,
        stages.links,
        tied=stages.tied,
        norm=stages.norm,
        pools=pools,
        contention=placement.calibration.contention,
    )


def _shared_pools(placement: Placement) -> list[SharedPool]:
    """Pools whose devices share computing, with the devices that each group has there."""
    found: dict[str, SharedPool] = {}
    for number, name in enumerate(placement.running):
        for pool, count in placement.pools(name):
            if pool.compute_units is not None:
                before = found.get(pool.name, SharedPool(pool.compute_units, {}))
                found[pool.name] = before._replace(devices={**before.devices, number: count})
    return list(found.values()) if len(placement.running) > 1 else []


def _parts(stages: Stages, timeline: Timeline) -> dict[str, float]:
    placement = stages.placement
    busiest = max(range(len(timeline.busy)), key=timeline.busy.__getitem__)
    spent = Spent()
    for number, stage in enumerate(placement.plan.stages):
        if stage.on == placement.running[busiest]:
            spent.add_all(stages.work[number].step(placement.plan.micro_batches))
    spent.add("expert", -timeline.hidden[busiest])
    # Where groups share computing, what they do in turns goes faster than all at once.
    together = _together(timeline, busiest)
    own = timeline.busy[busiest] - together
    faster = own / spent.total if spent.total else 1.0
    spent = Spent({part: time * faster for part, time in spent.parts.items()})
    spent.add("state", together)
    parts = {part: spent.parts.get(part, 0.0) for part in PARTS}
    waiting = timeline.seconds - sum(parts.values())
    return parts | {"bubble": waiting if waiting > _ROUNDING * timeline.seconds else 0.0}


def _together(timeline: Timeline, group: int) -> float:
    """Seconds of a group's reductions with other groups."""
    spans = (span for span in timeline.finish if span.group == group and span.kind in ("tied", "norm"))
    return sum(span.end - span.start for span in spans)


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
    """FLOP per second of all devices that work, in the dtype of matrix products; of those that share computing, no more
    than there is of it.
    """
    return sum(
        count * machine.matmul / machine.slowdown
        for name in placement.plan.groups
        for (_, count), machine in zip(placement.pools(name), machines(placement, name), strict=True)
    )


def _notes(placement: Placement) -> list[str]:
    """What the reader should know of the figures."""
    plan, notes = placement.plan, list[str]()
    if placement.given_orders is not None:
        notes.append(f"actions are in the order that was given: the schedule '{plan.schedule}' has no effect")
    used = {pool.device for name in plan.groups for pool, _ in placement.pools(name)}
    for name in sorted(used - placement.calibration.devices.keys() if placement.calibration is not IDEAL else ()):
        notes.append(f"calibration '{placement.calibration.name}' does not know '{name}', which gets its 'others'")
    return notes


def _bucket_note(stages: Stages, timeline: Timeline) -> Iterator[str]:
    """What another size of buckets would save of the step, where that is worth a word."""
    own = stages.placement.plan.execution.bucket_mib
    least = _WORTH_A_WORD * timeline.seconds
    unlike = {id(each): each for each in stages.reductions.values()}.values()  # equal stages share theirs
    exposed = [each for each in unlike if each.exposed(own * MIB) >= least]
    sizes = {each.best_bucket / MIB for each in exposed} - {own}
    steps = {size: _timeline(stages, stages.times_in_buckets(size)).seconds for size in sorted(sizes)}
    size = min(steps, key=steps.__getitem__, default=own)
    saved = timeline.seconds - steps.get(size, timeline.seconds)
    if sizes and saved >= least:
        yield f"'bucket_mib: {size:g}' would take {saved / timeline.seconds:.1%} off the step; it is {own:g}"


_WORTH_A_WORD = 0.01
