"""What `plan` found: the plan, its time and memory, how far it can be from the best, and why others lost."""

import sys
import time
from collections.abc import Callable
from typing import Any

from meshwright.plan.rules import check_plan
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.estimate import estimate_blocks
from meshwright.report.tried import TITLES, chosen_facts, front_table, path_table, tried_table
from meshwright.search.answer import Answer, Point, Progress, Step, Tried, in_short
from meshwright.search.choice import inputs_of
from meshwright.search.explain import Alternative, alternatives
from meshwright.units import show_bytes, show_seconds

_QUIET = 1.0  # seconds in which nothing is shown
_EVERY = 0.1


def plan_data(answer: Answer) -> dict[str, Any]:
    """The answer as plain data."""
    found = answer.estimate
    return {
        "plan": {"meshwright_plan": 1} | answer.plan.as_data(),
        "estimate": {
            "step_time_s": found.step_time_s,
            "tokens_per_s": found.tokens_per_s,
            "memory_peak_bytes": found.memory_peak_bytes,
        },
        "gap": answer.gap,
        "bound_s": answer.bound,
        "search_s": answer.search_s,
        "considered": answer.considered,
        "simulated": answer.simulated,
        "stopped": answer.stopped,
        "alternatives": [_alternative_data(each) for each in alternatives(answer)],
        "objective": answer.objective,
        "devices": answer.devices,
        "front": [_point_data(each) for each in answer.front],
        "path": [_step_data(each) for each in answer.path],
        "tried": [_tried_data(each) for each in answer.tried],
        "notes": list(answer.notes),
    }


def _point_data(each: Point) -> dict[str, Any]:
    return {
        "memory_limit_bytes": each.memory_limit,
        "step_time_s": each.step_time_s,
        "bound_s": each.bound,
        "degrees": each.degrees,
    }


def _step_data(each: Step) -> dict[str, Any]:
    found = each.candidate.estimate
    return {
        "change": each.change,
        "step_time_s": found.step_time_s,
        "gain": each.gain,
        "fits": each.candidate.fits,
        "memory_peak_bytes": found.memory_peak_bytes,
    }


def _tried_data(each: Tried) -> dict[str, Any]:
    found = each.candidate
    return {
        "devices": each.devices,
        "global_batch": each.batch,
        "degrees": in_short(found) if found else None,
        "step_time_s": found.estimate.step_time_s if found else None,
        "tokens_per_s": found.estimate.tokens_per_s if found else None,
        "usd_per_million_tokens": each.price,
        "bound_s": each.bound if found else None,
        "why": each.why,
    }


def _alternative_data(each: Alternative) -> dict[str, Any]:
    found = each.candidate.estimate
    return {
        "family": each.family,
        "degrees": in_short(each.candidate),
        "fits": each.candidate.fits,
        "step_time_s": found.step_time_s,
        "memory_peak_bytes": found.memory_peak_bytes,
        "why": each.why,
    }


def plan_blocks(answer: Answer) -> list[Block]:
    """The same for a person."""
    blocks = [_search_facts(answer), *estimate_blocks(inputs_of(answer.problem, answer.plan), answer.estimate)]
    if answer.tried:
        blocks.insert(1, tried_table(answer))
    if answer.path:
        blocks.insert(1, path_table(answer))
    if others := alternatives(answer):
        rows = [_row(each) for each in others]
        blocks.append(table("the best of other kinds", "kind | plan | >step | >slower | >memory | why", rows))
    if len(answer.front) > 1:
        blocks.append(front_table(answer))
    notes = [*answer.notes, *_notes(answer)]
    return [*blocks, Lines("search", tuple(notes), "warning")] if notes else blocks


def _search_facts(answer: Answer) -> Block:
    rows = (
        ("plan", in_short(answer.best)),
        *chosen_facts(answer),
        ("proof", f"nothing of the space takes less than {show_seconds(answer.bound)}: a gap of {answer.gap:.1%}"),
        (
            "search",
            f"{answer.considered:,} choices, {answer.simulated:,} plans simulated, {show_seconds(answer.search_s)}",
        ),
    )
    changes = answer.problem.wishes.changes
    near = f" within {changes} change{'s' * (changes > 1)} of the given one" if answer.path else ""
    return Facts(TITLES[answer.objective] + near, rows)


def _row(each: Alternative) -> tuple[str, ...]:
    found, fits = each.candidate.estimate, each.candidate.fits
    return (
        each.family,
        in_short(each.candidate),
        show_seconds(found.step_time_s),
        f"{each.slower:+.1%}" if fits else "-",
        show_bytes(found.memory_peak_bytes),
        each.why,
    )


def _notes(answer: Answer) -> list[str]:
    notes = []
    if answer.stopped:
        notes.append(f"{answer.stopped} ended the search before its proof: the gap may close with more time")
    errors = [
        each for each in check_plan(inputs_of(answer.problem, answer.plan), "runtime") if each.severity == "error"
    ]
    if errors and answer.problem.wishes.scope in ("any", "runtime"):
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        notes.append(f"Meshwright's own runtime does not run this plan yet: {errors[0].message}{more}")
    return notes


def progress_line() -> Callable[[Progress], None]:
    """What shows how far a search is, on a terminal, once it takes over a second."""
    if sys.stderr is None or not sys.stderr.isatty():
        return lambda _: None
    last = 0.0

    def show(now: Progress) -> None:
        nonlocal last
        if now.seconds < _QUIET or time.monotonic() - last < _EVERY:
            return
        last = time.monotonic()
        best = "none yet" if now.best is None else show_seconds(now.best)
        gap = "" if now.best is None else f", gap {now.best / now.bound - 1:.1%}"
        sys.stderr.write(f"\r\033[K{now.seconds:.0f} s: best {best}{gap}, {now.simulated:,} plans simulated")
        sys.stderr.flush()

    return show


def clear_line() -> None:
    """Takes the progress away."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
