"""What is asked: a model, a cluster, a recipe, and wishes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError, did_you_mean
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Scope
from meshwright.plan.rules_runtime import PROVEN_SPLITS, PROVEN_STATES
from meshwright.plan.words import Kernels, Schedule
from meshwright.recipe.spec import Recipe

For = Literal["any", "runtime"]
FORBIDDABLE = ("tp", "pp", "cp", "ulysses", "ep", "zero1", "zero2", "zero3", "full", "selective")
"""Splits, states and recomputes that a wish can forbid."""
RULES_OF: dict[str, Scope] = {"any": "meaning", "runtime": "runtime"}
"""What a plan must be good for → the rules that say so."""
_EXPORTERS = ("megatron", "torchtitan", "deepspeed")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a plan must have; none: free."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ulysses: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    zero: int | None = None
    micro_batch: int | None = None
    """Samples of a micro-batch for each dp rank."""
    micro_batches: int | None = None
    schedule: Schedule | None = None
    """None: 1f1b and interleaved."""
    virtual: int | None = None
    recompute: str | None = None
    """Of all numbered layers; none: what each needs."""
    forbid: tuple[str, ...] = ()
    memory_limit: float | None = None
    """Bytes of a device."""
    scope: For = "any"
    kernels: Kernels = "hf-sdpa"
    time_limit: float = 10.0
    """Seconds."""
    gap: float = 0.01
    """The search ends when nothing can be faster by more than this share."""

    def __post_init__(self) -> None:
        said = next((text for wrong, text in self._faults() if wrong), None)
        if said is not None:
            raise PlanError(said)

    def _faults(self) -> Iterator[tuple[bool, str]]:
        """What wishes can be that makes no sense, and what is said of it."""
        for name in self.forbid:
            known = name in FORBIDDABLE
            yield not known, f"forbid: '{name}' cannot be forbidden; {did_you_mean(name, FORBIDDABLE)}"
            fixed = getattr(self, name, None) or 0
            yield fixed > 1, f"{name} is fixed to {fixed} and forbidden; leave one of them out"
        state = None if self.zero is None else _state(self.zero)
        both = "leave one of them out"
        yield state in self.forbid, f"zero is fixed to {self.zero}, and {state} is forbidden; {both}"
        yield self.zero not in (None, 0, 1, 2, 3), f"zero is 0, 1, 2 or 3 (got {self.zero})"
        yield self.recompute in self.forbid, f"recompute is fixed to {self.recompute} and forbidden; {both}"
        twice = self.micro_batch is not None and self.micro_batches is not None
        yield twice, "micro_batch and micro_batches say the same thing in two ways; give one of them"
        rules = f"--for {self.scope}: its rules come with its exporter, which is not there yet; take 'any' or 'runtime'"
        yield self.scope in _EXPORTERS, rules
        hint = did_you_mean(self.scope, RULES_OF)
        yield self.scope not in RULES_OF, f"--for: no scope is called '{self.scope}'; {hint}"
        for name in _COUNTED:
            value = getattr(self, name)
            yield value is not None and value < 1, f"{name} counts from 1 on (got {value})"
        yield self.gap < 0, f"gap is a share, from 0 on (got {self.gap:g})"
        yield self.time_limit <= 0, f"time_limit is in seconds, more than 0 (got {self.time_limit:g})"

    def fixed(self, name: str) -> int | None:
        """A degree that is given, or 1 where it is forbidden."""
        value: int | None = getattr(self, name)
        unproven = self.scope == "runtime" and name not in ("dp", "etp", *PROVEN_SPLITS)
        return 1 if value is None and (name in self.forbid or unproven) else value

    @property
    def scatters(self) -> bool:
        """Whether tp leaves activations between its matrices cut along the sequence, which costs no time."""
        return self.scope != "runtime" or "tp+sp" in PROVEN_SPLITS

    @property
    def states(self) -> tuple[str | None, ...]:
        """What may shard equal parameters."""
        asked = (self.zero,) if self.zero is not None else (0, 1, 2, 3)
        allowed = (_state(zero) for zero in asked if _state(zero) not in self.forbid)
        return tuple(state for state in allowed if self.scope != "runtime" or state in (None, *PROVEN_STATES))

    @property
    def recomputes(self) -> tuple[str, ...]:
        """What numbered layers may compute again; `none` is always allowed where nothing is asked."""
        if self.recompute is not None:
            return (self.recompute,)
        if self.scope == "runtime":
            return ("none",)
        return tuple(name for name in ("full", "selective", "none") if name == "none" or name not in self.forbid)


_COUNTED = ("tp", "pp", "cp", "ulysses", "ep", "etp", "dp", "micro_batch", "micro_batches", "virtual")


def _state(zero: int) -> str | None:
    return f"zero{zero}" if zero else None


def read_wishes(given: Mapping[str, Any]) -> Wishes:
    """Wishes by name. Raises PlanError for a name that is none."""
    known = [field.name for field in fields(Wishes)]
    for name in given:
        if name not in known:
            raise PlanError(f"'{name}' is no wish; {did_you_mean(name, known)}")
    return Wishes(**given)


class Problem(NamedTuple):
    """A search."""

    model: ModelSpec
    cluster: Cluster
    recipe: Recipe
    wishes: Wishes = Wishes()
