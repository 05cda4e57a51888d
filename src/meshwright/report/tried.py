"""What a plan was chosen from where the number of devices or the batch was open, or how it came from a given one."""

from collections.abc import Iterator

from meshwright.report.blocks import Block, table
from meshwright.search.answer import Answer, Tried, in_short
from meshwright.units import show_bytes, show_count, show_seconds

TITLES = {
    "time": "the fastest plan",
    "tokens-per-device": "the plan with most tokens per second and device",
    "devices": "the plan with the fewest devices that is fast enough",
    "money": "the plan whose tokens cost least",
}
"""Objective → what was found."""
_LONGEST = 90
"""Letters of a reason."""


def tried_table(answer: Answer) -> Block:
    """Each search with what it found."""
    priced = any(each.price is not None for each in answer.tried)
    columns = (
        ">devices | >batch | >step | >tokens/s | >and device" + (" | >USD a M tokens" if priced else "") + " | plan"
    )
    return table("what it was chosen from", columns, [_row(each, priced=priced) for each in answer.tried])


def path_table(answer: Answer) -> Block:
    """From the given plan to the best, change by change."""
    rows = [
        (
            each.change,
            show_seconds(each.candidate.estimate.step_time_s),
            f"{each.gain:+.1%}" if place else "-",
            show_bytes(each.candidate.estimate.memory_peak_bytes),
            "yes" if each.candidate.fits else "no",
        )
        for place, each in enumerate(answer.path)
    ]
    return table("from the given plan", "change | >step | >gain | >memory | fits", rows)


def front_table(answer: Answer) -> Block:
    """Step time against memory limit."""
    best = answer.estimate.step_time_s
    searched = all(each.bound is not None for each in answer.front)
    title = "step time against memory limit" + ("" if searched else ", of the plans that were simulated")
    rows = [
        (
            show_bytes(each.memory_limit),
            show_seconds(each.step_time_s),
            f"{each.step_time_s / best - 1:+.1%}",
            *([f"{each.step_time_s / each.bound - 1:.1%}"] if searched and each.bound else []),
            each.degrees,
        )
        for each in answer.front
    ]
    return table(title, ">limit | >step | >slower" + (" | >gap" if searched else "") + " | plan", rows)


def _row(each: Tried, *, priced: bool) -> tuple[str, ...]:
    if each.candidate is None:
        figures = ["-"] * (4 if priced else 3)
        return f"{each.devices:,}", f"{each.batch:,}", *figures, _short(each.why)
    found = each.candidate.estimate
    price = [f"{each.price:.3g}" if each.price is not None else "-"] if priced else []
    plan = in_short(each.candidate)
    return (
        f"{each.devices:,}",
        f"{each.batch:,}",
        show_seconds(found.step_time_s),
        show_count(found.tokens_per_s),
        show_count(found.tokens_per_s / each.devices),
        *price,
        f"{plan} ({each.why})" if each.why else plan,
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def chosen_facts(answer: Answer) -> Iterator[tuple[str, str]]:
    """How many devices work and which batch was chosen, where that was open, with why."""
    size = answer.problem.cluster.size
    idle = size - answer.devices
    if idle:
        why = _why_idle(answer)
        yield "devices", f"{answer.devices:,} of {size:,} work, {idle:,} idle" + (f": {why}" if why else "")
    if answer.objective == "money":
        yield "price", _price(answer)
    batches = {each.batch for each in answer.tried}
    if len(batches) > 1:
        yield "batch", f"{answer.plan.recipe.global_batch:,}: {_runner_up(answer)}"


def _price(answer: Answer) -> str:
    """Of a million tokens, and where it is from. Devices that idle are not paid for."""
    chosen = next(each for each in answer.tried if each.candidate is answer.best)
    pools = {pool.price_source: pool.price_date for pool in answer.problem.cluster.pools}
    origin = "; ".join(f"{source}, {date}" for source, date in pools.items() if source)
    return f"{chosen.price:.3g} USD a million tokens" + (f" (by {origin})" if origin else "")


def _why_idle(answer: Answer) -> str:
    """What all devices would do."""
    batch = answer.plan.recipe.global_batch
    whole = [each for each in answer.tried if each.devices == answer.problem.cluster.size and each.batch == batch]
    if not whole:
        return ""
    other = whole[0].candidate
    if other is None:
        return f"with all of them {whole[0].why}"
    own, theirs = answer.estimate, other.estimate
    pace = f"all take {show_seconds(theirs.step_time_s)} a step, these {show_seconds(own.step_time_s)}"
    if answer.objective == "time":
        return pace
    share = own.tokens_per_s / answer.devices / (theirs.tokens_per_s / whole[0].devices) - 1
    return f"{pace}; {share:+.1%} tokens/s a device"


def _runner_up(answer: Answer) -> str:
    """The batch that comes next in tokens/s on as many devices."""
    own = answer.estimate.tokens_per_s
    others = [
        (each.candidate.estimate.tokens_per_s, each.batch)
        for each in answer.tried
        if each.candidate and each.devices == answer.devices and each.batch != answer.plan.recipe.global_batch
    ]
    if not others:
        return f"{show_count(own)} tokens/s, no other fits"
    next_one, batch = max(others)
    return f"{show_count(own)} tokens/s; the next is {batch:,} with {show_count(next_one)}, {next_one / own - 1:+.1%}"
