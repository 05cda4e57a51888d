"""Why a plan lost against another: in which part of the step, or by how much too little memory."""

from typing import NamedTuple

from meshwright.cost.estimate import Estimate
from meshwright.cost.verdict import MemoryVerdict
from meshwright.search.answer import Answer, Candidate
from meshwright.units import show_bytes, show_seconds

REASONS: dict[str, tuple[str, ...]] = {
    "bubble": ("bubble",),
    "exposed communication": ("tensor", "sequence", "expert", "state", "transition"),
    "recompute": ("recompute",),
    "slower computing": ("forward", "backward", "launch"),
    "optimizer": ("optimizer", "offload"),
}
"""What a step is lost to → the parts of an estimate that say so."""


class Alternative(NamedTuple):
    """The best simulated plan of another kind."""

    family: str
    candidate: Candidate
    slower: float
    """Than the best, as a share of it."""
    why: str


def alternatives(answer: Answer) -> list[Alternative]:
    """The best of each other family, the fastest that fits first."""
    best = answer.best
    found = [
        Alternative(
            family,
            candidate,
            candidate.estimate.step_time_s / best.estimate.step_time_s - 1,
            _lost_to(candidate, best) if candidate.fits else _too_large(candidate),
        )
        for family, candidate in answer.families.items()
        if candidate is not best
    ]
    return sorted(found, key=lambda each: (not each.candidate.fits, each.slower))


def _lost_to(candidate: Candidate, best: Candidate) -> str:
    """The parts of the step that are longer, the longest first."""
    own, others = _seconds(candidate.estimate), _seconds(best.estimate)
    more = {reason: own[reason] - others[reason] for reason in REASONS}
    lost = sorted(((seconds, reason) for reason, seconds in more.items() if seconds > 0), reverse=True)
    total = candidate.estimate.step_time_s - best.estimate.step_time_s
    said = [f"{show_seconds(seconds)} more {reason}" for seconds, reason in lost if seconds >= _WORTH * total]
    return ", ".join(said) or "about the same"


_WORTH = 0.1
"""Of what is lost, what is worth a word."""


def _seconds(estimate: Estimate) -> dict[str, float]:
    return {reason: sum(estimate.parts.get(part, 0.0) for part in parts) for reason, parts in REASONS.items()}


def _too_large(candidate: Candidate) -> str:
    """Where it is full, when, and by how much."""
    tight = MemoryVerdict(candidate.estimate.memory, candidate.estimate.hosts).tightest[0]
    over = show_bytes(max(0.0, tight.asked.high - tight.capacity))
    return f"does not fit: {tight.where} asks for {tight.asked} of {show_bytes(tight.capacity)}, up to {over} too many"
