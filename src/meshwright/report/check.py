"""The verdict on a plan: fits, does not fit, or bad."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.cost.verdict import MemoryVerdict, judge_memory
from meshwright.plan.groups import GroupSet, process_groups, show_groups
from meshwright.plan.rules import Inputs, Problem, Scope, check_plan
from meshwright.report.blocks import Block, Lines, Tone, table
from meshwright.report.estimate import plan_facts
from meshwright.report.memory import host_tables, memory_table

Judgement = Literal["fits", "does-not-fit", "bad"]


class Verdict(NamedTuple):
    """What is wrong with a plan, and whether it fits; `memory` is none where the plan is bad."""

    inputs: Inputs
    scope: Scope
    problems: Sequence[Problem]
    memory: MemoryVerdict | None

    @property
    def judgement(self) -> Judgement:
        """Bad where a rule says so; memory decides between the others."""
        if self.memory is None:
            return "bad"
        return "fits" if self.memory.fits else "does-not-fit"


def judge(inputs: Inputs, scope: Scope, calibration: Calibration | None = None) -> Verdict:
    """Ask the rules of a scope, and then the memory, by a calibration; none: the public one."""
    problems = check_plan(inputs, scope)
    sound = not any(problem.severity == "error" for problem in problems)
    return Verdict(inputs, scope, problems, judge_memory(inputs, calibration) if sound else None)


def groups_of(inputs: Inputs) -> tuple[GroupSet, ...]:
    """Every process group of a plan that has a meaning."""
    reads = {layer.name: layer.reads for layer in inputs.model.layers}
    return process_groups(inputs.plan, inputs.model.tied_layers, reads)


def check_data(verdict: Verdict, groups: bool) -> dict[str, Any]:
    """The verdict as plain data."""
    data: dict[str, Any] = {
        "verdict": verdict.judgement,
        "scope": verdict.scope,
        "problems": [vars(problem) for problem in verdict.problems],
        "memory": verdict.memory.as_data() if verdict.memory else None,
    }
    if groups and verdict.judgement != "bad":
        data["groups"] = [
            {"purpose": each.purpose, "used_by": list(each.used_by)} | show_groups(each.ranks)
            for each in groups_of(verdict.inputs)
        ]
    return data


def check_blocks(verdict: Verdict, groups: bool) -> list[Block]:
    """The same for a person; the verdict stands first."""
    blocks: list[Block] = [_headline(verdict)]
    for severity, title, tone in _SEVERITIES:
        said = tuple(str(problem) for problem in verdict.problems if problem.severity == severity)
        if said:
            blocks.append(Lines(title, said, tone))
    blocks.append(plan_facts(verdict.inputs))
    if verdict.memory is not None:
        blocks += [memory_table(verdict.memory.groups), *host_tables(verdict.memory.hosts)]
    if groups and verdict.judgement != "bad":
        blocks.append(_groups(verdict.inputs))
    return blocks


_SEVERITIES: tuple[tuple[str, str, Tone], ...] = (("error", "", "plain"), ("warning", "warnings", "warning"))


def _headline(verdict: Verdict) -> Block:
    count = sum(problem.severity == "error" for problem in verdict.problems)
    if verdict.memory is None:
        return Lines("", (f"bad: {count} problem{'s' * (count != 1)}",), "bad")
    said = f"{verdict.memory.word}: {verdict.memory.sentence}"
    return Lines("", (said,), "good" if verdict.memory.fits else "bad")


def _groups(inputs: Inputs) -> Block:
    rows: list[tuple[str, ...]] = []
    for each in groups_of(inputs):
        shown = {key: str(value) for key, value in show_groups(each.ranks).items()}
        ranks = shown.get("all") or f"{shown['first']} from {shown['starts']}"
        rows.append((each.purpose, shown["count"], shown["size"], ranks, " ".join(each.used_by)))
    return table("process groups", "purpose | >groups | >ranks | first, from where each starts | used by", rows)
