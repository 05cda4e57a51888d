"""What is asked: a model, a cluster, a recipe, and wishes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError, did_you_mean
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Scope
from meshwright.plan.rules_runtime import PROVEN, PROVEN_SPLITS, PROVEN_STATES
from meshwright.plan.spec import Execution, Plan
from meshwright.plan.targets import TARGETS, Target
from meshwright.plan.words import Kernels, Schedule
from meshwright.recipe.spec import Recipe
from meshwright.search.batches import Batches, read_batches
from meshwright.units import show_seconds

if TYPE_CHECKING:
    from meshwright.search.space import Shape

For = Literal["any", "runtime", "megatron", "torchtitan", "deepspeed", "accelerate"]
FORBIDDABLE = ("tp", "pp", "cp", "ulysses", "ep", "zero1", "zero2", "zero3", "hsdp", "unlike", "full", "selective")
"""Splits, states and recomputes that a wish can forbid; unlike: layers under several splits or states."""
RULES_OF: dict[str, Scope] = {
    "any": "meaning",
    "runtime": "runtime",
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
}
"""What a plan must be good for → the rules that say so."""
_RUNTIME = Target(
    title="the runtime",
    release="this one",
    splits=(*PROVEN_SPLITS, "pp"),
    states=PROVEN_STATES,
    schedules=tuple(map(str, PROVEN["plan.schedule"])),
    recomputes=("full", "selective", "none"),
    alike=False,
)
Objective = Literal["time", "tokens-per-device", "devices", "money"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)


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
    kernels: Kernels | None = None
    """None: hf-sdpa, or those of the plan that is near."""
    execution: Execution | None = None
    """What changes speed only, in place of the defaults."""
    time_limit: float = 10.0
    """Seconds."""
    gap: float = 0.01
    """The search ends when nothing can be faster by more than this share."""
    processes: int = 1
    """That share its work; the answer is the same, however many."""
    devices: int | None = None
    """That work, the first ones of the cluster; none: all, or as many as the objective is best with."""
    global_batch: Batches | None = None
    """To choose from, in place of the recipe's: the one with most tokens per second."""
    objective: Objective = "time"
    """What is best: the shortest step, most tokens per second and device, fewest devices, or least money a token."""
    within: float | None = None
    """Seconds that a step may take."""
    at_least: float | None = None
    """Tokens per second."""
    front: bool = False
    """Search under smaller memory limits too, for the front of step time against memory."""
    near: Plan | None = None
    """A plan to begin from."""
    changes: int = 3
    """Choices in which the answer may differ from it."""

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
        hint = did_you_mean(self.scope, RULES_OF)
        yield self.scope not in RULES_OF, f"--for: no scope is called '{self.scope}'; {hint}"
        for name in _COUNTED:
            value = getattr(self, name)
            yield value is not None and value < 1, f"{name} counts from 1 on (got {value})"
        yield from self._faults_of_objectives()
        yield self.gap < 0, f"gap is a share, from 0 on (got {self.gap:g})"
        yield self.time_limit <= 0, f"time_limit is in seconds, more than 0 (got {self.time_limit:g})"

    def _faults_of_objectives(self) -> Iterator[tuple[bool, str]]:
        hint = did_you_mean(str(self.objective), OBJECTIVES)
        yield self.objective not in OBJECTIVES, f"objective: none is called '{self.objective}'; {hint}"
        aimless = self.objective == "devices" and self.within is None and self.at_least is None
        yield (
            aimless,
            "objective 'devices': the fewest that do what? give within (seconds a step) or at_least (tokens/s)",
        )
        fixed = self.objective != "time" and self.devices is not None
        yield (
            fixed,
            f"objective '{self.objective}' chooses the number of devices, and devices is fixed to {self.devices}",
        )
        moved = [name for name in ("devices", "global_batch", "within", "at_least") if getattr(self, name) is not None]
        moved += ["objective"] * (self.objective != "time")
        text = f"near a plan, its batch and devices stay, and {', '.join(moved)} would change them; leave one out"
        yield self.near is not None and bool(moved), text
        yield self.kernels is not None and self.execution is not None, "execution has the kernels too; give one of them"
        for name in ("within", "at_least"):
            value = getattr(self, name)
            yield value is not None and not value > 0, f"{name} is more than 0 (got {value})"

    @property
    def runs(self) -> Execution:
        """What the plans have that changes speed only."""
        return self.execution or Execution(kernels=self.kernels or "hf-sdpa")

    @property
    def out_of_time(self) -> str:
        """What stopped a search that took all of its time."""
        return f"the time limit of {self.time_limit:g} s"

    def unmet(self, step_time_s: float, tokens_per_s: float) -> str | None:
        """What of the wanted pace a plan does not reach, in words."""
        if self.within is not None and step_time_s > self.within:
            return f"{show_seconds(step_time_s)} a step, and {show_seconds(self.within)} is wanted"
        if self.at_least is not None and tokens_per_s < self.at_least:
            return f"{tokens_per_s:,.0f} tokens/s, and {self.at_least:,.0f} are wanted"
        return None

    def fixed(self, name: str) -> int | None:
        """A degree that is given, or 1 where it is forbidden."""
        value: int | None = getattr(self, name)
        unsaid = self.target is not None and name not in ("dp", "etp", *self.target.splits)
        return 1 if value is None and (name in self.forbid or unsaid) else value

    @property
    def target(self) -> Target | None:
        """What the system of the scope can be told; none: anything."""
        return _RUNTIME if self.scope == "runtime" else TARGETS.get(self.scope)

    @property
    def alike(self) -> bool:
        """Whether the scope wants one recompute of all layers, and it is free which."""
        return self.target is not None and self.target.alike and len(self.recomputes) > 1

    @property
    def replicates(self) -> bool:
        """Whether some of the ranks that hold equal parameters may shard them, and the others be replicas (HSDP)."""
        return "hsdp" not in self.forbid and (self.target is None or self.target.replicas)

    @property
    def mixes(self) -> bool:
        """Whether layers may have unlike splits and states."""
        return "unlike" not in self.forbid and self.scope in ("any", "runtime")

    @property
    def scatters(self) -> bool:
        """Whether tp leaves activations between its matrices cut along the sequence, which costs no time."""
        return self.target is None or "tp+sp" in self.target.splits

    @property
    def states(self) -> tuple[str | None, ...]:
        """What may shard equal parameters."""
        asked = (self.zero,) if self.zero is not None else (0, 1, 2, 3)
        allowed = (_state(zero) for zero in asked if _state(zero) not in self.forbid)
        return tuple(state for state in allowed if self.target is None or state in (None, *self.target.states))

    @property
    def recomputes(self) -> tuple[str, ...]:
        """What numbered layers may compute again; `none` is always allowed where nothing is asked."""
        if self.recompute is not None:
            return (self.recompute,)
        known = ("full", "selective", "none") if self.target is None else self.target.recomputes
        return tuple(name for name in known if name == "none" or name not in self.forbid)


_COUNTED = (
    "processes",
    "tp",
    "pp",
    "cp",
    "ulysses",
    "ep",
    "etp",
    "dp",
    "micro_batch",
    "micro_batches",
    "virtual",
    "devices",
    "changes",
)


def _state(zero: int) -> str | None:
    return f"zero{zero}" if zero else None


def read_wishes(given: Mapping[str, Any]) -> Wishes:
    """Wishes by name. Raises PlanError for a name that is none."""
    known = [field.name for field in fields(Wishes)]
    for name in given:
        if name not in known:
            raise PlanError(f"'{name}' is no wish; {did_you_mean(name, known)}")
    read = {name: _READ[name](value) for name, value in given.items() if name in _READ and value is not None}
    return Wishes(**{**given, **read})


def _plan(near: Plan | str | Path) -> Plan:
    return near if isinstance(near, Plan) else Plan.read(near)


_READ: dict[str, Callable[[Any], Any]] = {"global_batch": read_batches, "near": _plan}
"""Wishes that may be given in another form than they have."""


class Problem(NamedTuple):
    """A search."""

    model: ModelSpec
    cluster: Cluster
    recipe: Recipe
    wishes: Wishes = Wishes()
    only: "Callable[[Shape], bool] | None" = None
    """Which outer choices count; none: all."""

    @property
    def devices(self) -> int:
        """That work."""
        return self.wishes.devices or self.cluster.size
