"""Rules about time: whether stages lie as the schedule needs them, and whether settings have an effect."""

import math
from collections.abc import Callable, Iterator

from meshwright.model.operators import Experts
from meshwright.plan.numbers import nearest_number
from meshwright.plan.rule import Finding, Inputs, Rule, found
from meshwright.plan.sites import Site
from meshwright.plan.spec import Execution, Plan

_DEFAULT = Execution()


def once(on: list[str]) -> list[str]:
    """The order of stages in which each group has one."""
    return list(dict.fromkeys(on))


def in_turns(on: list[str]) -> list[str]:
    """The order in which the groups take turns: a b a b, as often as the stages allow, at least twice."""
    groups = once(on)
    return groups * max(2, len(on) // len(groups))


def there_and_back(on: list[str]) -> list[str]:
    """The order in which the groups have two stages each in the shape of a V: a b b a."""
    groups = once(on)
    return groups + groups[::-1]


PLACEMENTS: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "gpipe": (once, "one stage on each group"),
    "1f1b": (once, "one stage on each group"),
    "zb-h1": (once, "one stage on each group"),
    "interleaved": (in_turns, "two or more stages on each group, in turns"),
    "zbv": (there_and_back, "two stages on each group, there and back"),
    "dualpipev": (there_and_back, "two stages on each group, there and back"),
}
"""Schedule → the order of groups that it needs, in code and in words. Huang 2019; Narayanan 2021 (interleaved); Qi 2024
(zero bubble; ZBV is V-shaped); DeepSeek 2025 (DualPipeV).
"""


def makes_pairs(schedule: str, stages: int) -> bool:
    """Whether a schedule runs the forward of one micro-batch together with the backward of another: DualPipeV by its
    nature, and those that Megatron-Core pairs (`--overlap-moe-expert-parallel-comm`, which over several devices needs
    stages that are interleaved: others have no forward ahead to pair).
    """
    return schedule in ("dualpipev", "interleaved") or (schedule == "1f1b" and stages == 1)


def _misplaced(inputs: Inputs) -> Iterator[Finding]:
    plan = inputs.plan
    on = [stage.on for stage in plan.stages]
    order, words = PLACEMENTS[plan.schedule]
    if on == order(on):
        return
    fitting = [name for name in ("1f1b", "interleaved", "zbv") if PLACEMENTS[name][0](on) == on]
    fix = f"write 'schedule: {fitting[0]}'" if fitting else f"put the stages on {_listed(order(on))}"
    yield found("schedule", schedule=plan.schedule, words=words, on=_listed(on), fix=fix)


def _listed(groups: list[str], room: int = 12) -> str:
    return ", ".join(groups) if len(groups) <= room else f"{', '.join(groups[:room])}, ..."


def _uneven_rounds(inputs: Inputs) -> Iterator[Finding]:
    count, groups = inputs.plan.micro_batches, len(inputs.plan.groups)
    if inputs.plan.schedule == "interleaved" and not rounds_fit(count, groups):
        near = nearest_number(count, lambda number: _divides_batch(inputs, number) and rounds_fit(number, groups))
        yield found("micro_batches", count=count, groups=groups, nearest=near)


def rounds_fit(count: int, groups: int) -> bool:
    """Whether micro-batches make equal rounds of at least one for each group (one round, where they are fewer).

    torch.distributed.pipelining 2.13, Schedule Interleaved1F1B; Megatron-LM wants multiples of the groups.
    """
    return count % max(1, count // groups) == 0


def _divides_batch(inputs: Inputs, count: int) -> bool:
    ways = math.lcm(*(site.ways("dp") for site in inputs.sites))
    return inputs.recipe.global_batch % (count * ways) == 0


def _too_few_for_dualpipev(inputs: Inputs) -> Iterator[Finding]:
    plan, stages = inputs.plan, len(inputs.plan.stages)
    if plan.schedule == "dualpipev" and plan.micro_batches < stages:
        near = nearest_number(stages, lambda count: count >= stages and _divides_batch(inputs, count), stages)
        yield found("micro_batches", count=plan.micro_batches, stages=stages, nearest=near)


def _states(plan: Plan) -> set[str]:
    return {row.state for stage in plan.stages for row in stage.layers if row.state}


def _sync_in_vain(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.execution.sync != _DEFAULT.sync and not _states(inputs.plan) & {"zero2", "zero3"}:
        yield found("execution.sync", sync=inputs.plan.execution.sync, default=_DEFAULT.sync)


def _prefetch_in_vain(inputs: Inputs) -> Iterator[Finding]:
    if inputs.plan.execution.prefetch != _DEFAULT.prefetch and "zero3" not in _states(inputs.plan):
        yield found("execution.prefetch", prefetch=inputs.plan.execution.prefetch)


def _overlap_in_vain(inputs: Inputs) -> Iterator[Finding]:
    plan, overlap = inputs.plan, inputs.plan.execution.overlap
    for what in ("tensor", "weights"):
        if what in overlap and not any(site.ways("tp", "tp+sp") > 1 for site in inputs.sites):
            yield found("execution.overlap", what=what, why="no row has tp")
    if "experts" in overlap and not _expert_sites(inputs):
        yield found("execution.overlap", what="experts", why="no row has ep")
    elif "experts" in overlap and not makes_pairs(plan.schedule, len(plan.stages)):
        why = f"{plan.schedule} runs no forward together with a backward, as dualpipev and interleaved do"
        yield found("execution.overlap", what="experts", why=why)


def _expert_sites(inputs: Inputs) -> list[tuple[Site, Experts]]:
    """The rows whose experts lie over several ranks."""
    return [
        (site, operator)
        for site in inputs.sites
        if site.ways("ep") > 1
        for held in site.held
        for operator in held.operators
        if isinstance(operator, Experts)
    ]


def _experts_in_vain(inputs: Inputs) -> Iterator[Finding]:
    for name in ("dispatch", "expert_imbalance"):
        value = getattr(inputs.plan.execution, name)
        if value != getattr(_DEFAULT, name) and not _expert_sites(inputs):
            yield found(f"execution.{name}", name=name, value=value)


def _more_than_all(inputs: Inputs) -> Iterator[Finding]:
    """Of its k copies a position sends the busiest of n ranks min(k, E / n) at most, and any k / n in the mean."""
    imbalance = inputs.plan.execution.expert_imbalance
    for site, experts in _expert_sites(inputs):
        most = min(site.ways("ep"), experts.count / experts.top_k)
        if imbalance > most:
            yield found("execution.expert_imbalance", imbalance=imbalance, ranks=site.ways("ep"), most=most)


def _bucket_in_vain(inputs: Inputs) -> Iterator[Finding]:
    reduced = any(site.ways("dp", "cp", "ulysses", "copy") > 1 for site in inputs.sites)
    if inputs.plan.execution.bucket_mib != _DEFAULT.bucket_mib and not reduced:
        yield found("execution.bucket_mib", bucket=inputs.plan.execution.bucket_mib)


OF_SCHEDULES = frozenset(
    {"stages-lie-as-the-schedule-needs", "interleaved-rounds-are-equal", "dualpipev-fills-its-stages"}
)
"""Rules that a plan's schedule needs, and no order that stands in its place."""

SCHEDULE_RULES: tuple[Rule, ...] = (
    Rule(
        "stages-lie-as-the-schedule-needs",
        "meaning",
        _misplaced,
        "{schedule} needs {words}, and the stages are on {on}",
        "{fix}",
    ),
    Rule(
        "interleaved-rounds-are-equal",
        "meaning",
        _uneven_rounds,
        "{count} micro-batches make no equal rounds over {groups} groups, as 'interleaved' needs",
        "use {nearest}",
    ),
    Rule(
        "dualpipev-fills-its-stages",
        "meaning",
        _too_few_for_dualpipev,
        "dualpipev fills all stages, and micro-batches ({count}) are fewer than stages ({stages})",
        "use {nearest}",
    ),
    Rule(
        "sync-has-an-effect",
        "meaning",
        _sync_in_vain,
        "sync '{sync}' has no effect: it is about zero2 and zero3, and no row has these",
        "write 'sync: {default}'",
        "warning",
    ),
    Rule(
        "prefetch-has-an-effect",
        "meaning",
        _prefetch_in_vain,
        "prefetch {prefetch} has no effect: it is about zero3, and no row has it",
        "remove it",
        "warning",
    ),
    Rule(
        "overlap-has-an-effect",
        "meaning",
        _overlap_in_vain,
        "overlap of '{what}' has no effect: {why}",
        "remove it",
        "warning",
    ),
    Rule(
        "experts-are-dispatched",
        "meaning",
        _experts_in_vain,
        "{name} {value} has no effect: no row has ep",
        "remove it",
        "warning",
    ),
    Rule(
        "imbalance-is-possible",
        "meaning",
        _more_than_all,
        "expert_imbalance {imbalance:g} cannot be: of {ranks} ranks of experts the busiest has {most:g} times the mean "
        "where all positions go to it",
        "use {most:g} or less",
    ),
    Rule(
        "bucket-has-an-effect",
        "meaning",
        _bucket_in_vain,
        "bucket_mib {bucket:g} has no effect: no gradients are reduced between ranks",
        "remove it",
        "warning",
    ),
)
