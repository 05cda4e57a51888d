"""What `plan` found: the plan, its time and memory, how far it can be from the best, and why others lost."""

import sys
import time
from collections.abc import Callable
from typing import Any

from meshwright.plan.rules import check_plan
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.estimate import estimate_blocks
from meshwright.search.answer import Answer, Progress
from meshwright.search.choice import degrees_of, inputs_of
from meshwright.search.explain import Alternative, alternatives
from meshwright.search.problem import Problem
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
        "notes": list(answer.notes),
    }


def _alternative_data(each: Alternative) -> dict[str, Any]:
    found = each.candidate.estimate
    return {
        "family": each.family,
        "degrees": degrees_of(each.candidate.choice),
        "fits": each.candidate.fits,
        "step_time_s": found.step_time_s,
        "memory_peak_bytes": found.memory_peak_bytes,
        "why": each.why,
    }


def plan_blocks(problem: Problem, answer: Answer) -> list[Block]:
    """The same for a person."""
    blocks = [_search_facts(answer), *estimate_blocks(inputs_of(problem, answer.plan), answer.estimate)]
    if others := alternatives(answer):
        rows = [_row(each) for each in others]
        blocks.append(table("the best of other kinds", "kind | plan | >step | >slower | >memory | why", rows))
    notes = [*answer.notes, *_notes(problem, answer)]
    return [*blocks, Lines("search", tuple(notes), "warning")] if notes else blocks


def _search_facts(answer: Answer) -> Block:
    rows = (
        ("plan", degrees_of(answer.best.choice)),
        ("proof", f"nothing of the space takes less than {show_seconds(answer.bound)}: a gap of {answer.gap:.1%}"),
        (
            "search",
            f"{answer.considered:,} choices, {answer.simulated:,} plans simulated, {show_seconds(answer.search_s)}",
        ),
    )
    return Facts("the fastest plan", rows)


def _row(each: Alternative) -> tuple[str, ...]:
    found, fits = each.candidate.estimate, each.candidate.fits
    return (
        each.family,
        degrees_of(each.candidate.choice),
        show_seconds(found.step_time_s),
        f"{each.slower:+.1%}" if fits else "-",
        show_bytes(found.memory_peak_bytes),
        each.why,
    )


def _notes(problem: Problem, answer: Answer) -> list[str]:
    notes = []
    if answer.stopped:
        notes.append(f"{answer.stopped} ended the search before its proof: the gap may close with more time")
    errors = [each for each in check_plan(inputs_of(problem, answer.plan), "runtime") if each.severity == "error"]
    if errors:
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
