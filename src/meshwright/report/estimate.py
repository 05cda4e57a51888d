"""What a plan takes: the step with its parts, and memory by stage."""

from typing import Any

from meshwright.cost.estimate import Estimate
from meshwright.plan.rules import Inputs
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.memory import host_tables, memory_table
from meshwright.units import show_count, show_seconds


def estimate_data(inputs: Inputs, found: Estimate) -> dict[str, Any]:
    """The estimate as plain data, with what it is for."""
    return {"model": inputs.model.name, "cluster": inputs.cluster.name} | found.as_data()


def estimate_blocks(inputs: Inputs, found: Estimate) -> list[Block]:
    """The same for a person; the verdict stands first."""
    blocks: list[Block] = [
        Lines("", (found.verdict,), "good" if found.fits else "bad"),
        plan_facts(inputs),
        _step(found),
        memory_table(found.memory),
        *host_tables(found.hosts),
    ]
    blocks.append(Lines("calibration", (found.calibration,)))
    return [*blocks, Lines("notes", found.notes, "warning")] if found.notes else blocks


def plan_facts(inputs: Inputs) -> Block:
    """What a plan is for, and its frame."""
    plan, recipe = inputs.plan, inputs.recipe
    sequence = recipe.sequence
    streams = {"": sequence} if isinstance(sequence, int) else sequence
    lengths = [f"{size:,} {name}".rstrip() for name, size in streams.items()]
    pieces = _many(plan.micro_batches, "micro-batch", "es")
    stages, groups = len(plan.stages), len(plan.groups)
    rows = (
        ("model", f"{inputs.model.name}, {show_count(inputs.model.parameters)} parameters"),
        ("cluster", f"{inputs.cluster.name}, {inputs.cluster.size:,} devices; the plan uses {plan.world_size:,}"),
        ("batch", f"{recipe.global_batch:,} samples of {', '.join(lengths)} in {pieces}"),
        ("schedule", f"{plan.schedule}, {_many(stages, 'stage')} on {_many(groups, 'group')}"),
        ("kernels", plan.execution.kernels),
    )
    return Facts(plan.name or "plan", rows)


def _many(count: int, noun: str, more: str = "s") -> str:
    return f"{count:,} {noun}{more * (count != 1)}"


def _step(found: Estimate) -> Block:
    parts = {part: seconds for part, seconds in found.parts.items() if seconds} | {"step": found.step_time_s}
    rows = [(part, show_seconds(seconds), f"{seconds / found.step_time_s:.1%}") for part, seconds in parts.items()]
    return table("time of the busiest group", "part | >time | >share", rows, total=True)
