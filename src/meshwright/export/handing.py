"""Handing over: a plan → the files of another system, and what they mean, read back from themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.cost.estimate import Estimate, estimate_plan
from meshwright.errors import MeshwrightError, PlanError
from meshwright.export.fields import Fields, fields_of, merged, recipe_fields
from meshwright.export.keys import Values, plain, write_keys
from meshwright.export.system import System
from meshwright.export.systems import find_system
from meshwright.export.taking import Source, from_source, joined
from meshwright.export.texts import read_settings
from meshwright.plan.diff import Change, diff_plans
from meshwright.plan.rules import Inputs, Scope, check_plan
from meshwright.plan.spec import Execution, Plan
from meshwright.plan.targets import TARGETS, Target
from meshwright.search.choice import inputs_of
from meshwright.search.problem import RULES_OF, Problem, read_wishes
from meshwright.search.scoped import search


@dataclass(frozen=True)
class Handover:
    """The files of another system for a plan."""

    system: System
    files: dict[str, str]
    """File name → text."""
    plan: Plan
    """What the files say: the given plan, or the nearest that could be said."""
    reasons: tuple[str, ...] = ()
    """What the system cannot be told of the given plan; empty where it can all."""
    changes: tuple[Change, ...] = ()
    """What differs between the given plan and the one that was written."""
    slowdown: float | None = None
    """What a step of that takes longer, as a share (0.05 is 5 %; under 0: faster); none where they are the same."""
    fits: bool = True
    """Whether what was written fits into the devices' memory; said where it is not the given plan."""
    notes: tuple[str, ...] = ()


class _Written:
    """One attempt: fields, the files of them, and the plan that they say."""

    def __init__(self, system: System, fields: Fields, inputs: Inputs) -> None:
        assert system.files is not None, "the system can be written"
        self.values = write_keys(system.keys, system.prepare(fields, inputs))
        self.files = system.files(self.values)
        given = {"cluster": inputs.cluster, "model": inputs.model}
        said = any(key.field == "recipe.sequence" for key in system.keys)
        also = {} if said else {"recipe.sequence": inputs.recipe.sequence}
        values: Values = {}
        for name, text in self.files.items():
            values = joined(values, read_settings(name, text)[0], name)
        source = Source(values, {"devices_a_node": inputs.plan.world_size}, system.name)
        self.taken = from_source(system, source, **given, also=also)
        self.plan = merged(_as_given(self.taken.inputs.plan, inputs.plan))
        self.key = "".join(self.files.values())


def _as_given(plan: Plan, given: Plan) -> Plan:
    """With what changes speed alone, names and references as in the given plan: files say nothing of these."""
    execution = given.execution.model_copy(update={"sync": plan.execution.sync})
    kept = {name: getattr(given, name) for name in ("name", "source", "model", "cluster", "recipe")}
    return Plan(**{name: getattr(plan, name) for name in Plan.model_fields} | kept | {"execution": execution})


def export_plan(inputs: Inputs, to: str, calibration: Calibration | None = None) -> Handover:
    """The files of a system for a plan. Where it cannot be told all of the plan, they say the nearest that it can be:
    with the same degrees, if any is sound and fits, or else the fastest that the search finds.

    Raises PlanError for an unknown system, for a plan that has no meaning, and where nothing near can be said.
    """
    system = find_system(to, written=True)
    if errors := _errors(inputs, "meaning"):
        raise PlanError(f"the plan has no meaning: {errors[0]}")
    reasons = _errors(inputs, RULES_OF[system.name])
    whole = inputs._replace(plan=merged(inputs.plan))
    exact = _attempt(system, fields_of(whole), whole)
    if exact is not None and not reasons and not diff_plans(whole.plan, exact.plan):
        return Handover(system, exact.files, exact.plan, notes=tuple(_notes(system, inputs, exact)))
    near = _nearest(system, whole, calibration)
    reasons += _own_ways(system, whole, exact, near)
    notes = _notes(system, inputs, near.written)
    return Handover(
        system,
        near.written.files,
        near.written.plan,
        (*reasons, *near.why),
        near.changes,
        near.slowdown,
        near.fits,
        tuple(notes),
    )


def _errors(inputs: Inputs, scope: Scope) -> list[str]:
    return [str(each) for each in check_plan(inputs, scope) if each.severity == "error"]


def _attempt(system: System, fields: Fields, inputs: Inputs) -> _Written | None:
    """None where no plan is like that, or it cannot be said."""
    try:
        return _Written(system, fields, inputs)
    except MeshwrightError:
        return None


def _own_ways(system: System, inputs: Inputs, exact: _Written | None, near: "_Near") -> list[str]:
    """What a system does unlike the plan where no rule of its scope says so, and why no more of the plan was kept."""
    if exact is None or not _sound(system, inputs, exact):
        return []
    title, own = TARGETS[system.name].title, diff_plans(inputs.plan, exact.plan)
    ways = [f"{title} does it in its own way: {change}" for change in own]
    return ways if near.written.key == exact.key else [*ways, "with that, the plan does not fit into memory"]


class _Near(NamedTuple):
    """A plan that the system can be told, beside the given one."""

    written: _Written
    changes: tuple[Change, ...]
    slowdown: float
    fits: bool
    why: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[bool, int, float]:
        """What fits comes first, then what differs least."""
        return not self.fits, len(self.changes), self.slowdown


def _nearest(system: System, inputs: Inputs, calibration: Calibration | None) -> _Near:
    """The nearest of those that have the same degrees and fit; or else what the search finds for the system."""
    given = estimate_plan(inputs, calibration)
    found: dict[str, _Near] = {}
    for fields in _alike(fields_of(inputs), TARGETS[system.name]):
        written = _attempt(system, fields, inputs)
        if written is not None and written.key not in found and _sound(system, inputs, written):
            found[written.key] = _beside(inputs, written, given, calibration)
    best = min(found.values(), key=lambda near: near.order, default=None)
    if best is None or (given.fits and not best.fits):
        searched = _searched(system, inputs, given, calibration)
        best = searched if searched is not None else best
    if best is None:
        title = TARGETS[system.name].title
        why = (*_errors(inputs, RULES_OF[system.name]), "no plan fits")
        raise PlanError(f"{title} cannot be told this plan, nor one like it that fits: {why[0]}")
    return best


def _beside(inputs: Inputs, written: _Written, given: Estimate, calibration: Calibration | None) -> _Near:
    estimate = estimate_plan(inputs._replace(plan=written.plan), calibration)
    changes = tuple(diff_plans(inputs.plan, written.plan))
    return _Near(written, changes, estimate.step_time_s / given.step_time_s - 1, estimate.fits)


def _sound(system: System, inputs: Inputs, written: _Written) -> bool:
    return not _errors(inputs._replace(plan=written.plan), RULES_OF[system.name])


def _alike(fields: Fields, target: Target) -> Iterator[Fields]:
    """Fields that the system can be told, with the degrees of some others: each state and recompute that it has."""
    ways = {name: fields.get(name) or 1 for name in ("tp", "cp", "ulysses", "pp", "ep", "etp")}
    at = fields | {"sp": fields["sp"] and "tp+sp" in target.splits}
    for one, other in (("cp", "ulysses"), ("ulysses", "cp")):
        if ways[one] > 1 and one not in target.splits and other in target.splits:
            at |= {other: ways[one] * ways[other], one: 1}
    word = fields["recompute"]
    recomputes = dict.fromkeys((word, *target.recomputes, *(["half"] if target.operators else [])))
    zeros = dict.fromkeys((fields["zero"], *(int(state[-1]) for state in target.states), 0))
    schedules = dict.fromkeys((fields["schedule"], *target.schedules)) if ways["pp"] > 1 else [fields["schedule"]]
    tensors = (True, False) if ways["tp"] > 1 and "tp+sp" in target.splits else (False,)
    for zero, recompute, schedule, sp in product(zeros, recomputes, schedules, tensors):
        if target.goes_with(f"zero{zero}" if zero else None, ways) and (sp or "tp" in target.splits or ways["tp"] == 1):
            yield at | {"zero": zero, "recompute": recompute, "schedule": schedule, "sp": sp, "block": None}


def _searched(system: System, inputs: Inputs, given: Estimate, calibration: Calibration | None) -> _Near | None:
    """What the search finds for the system, if anything."""
    asked = {"scope": system.name, "execution": inputs.plan.execution, "devices": inputs.plan.world_size}
    wishes = read_wishes(asked | {"time_limit": 5.0})
    problem = Problem(inputs.model, inputs.cluster, inputs.recipe, wishes)
    try:
        best = search(problem, calibration).best
    except PlanError:
        return None
    found = inputs_of(problem, best.plan)
    written = _attempt(system, fields_of(found), found)
    if written is None:
        return None
    why = f"no plan of these degrees can be told {TARGETS[system.name].title} and fits: the search's own was written"
    return _beside(inputs, written, given, calibration)._replace(why=(why,))


def _notes(system: System, inputs: Inputs, written: _Written) -> list[str]:
    """What the files leave to the user."""
    asked, said = recipe_fields(inputs.recipe), recipe_fields(written.taken.inputs.recipe)
    unsaid = [
        f"{name} {asked.get(name)} (the files say {said.get(name)})"
        for name in dict.fromkeys((*asked, *said))
        if asked.get(name) != said.get(name) and name != "recipe.micro_batches"
    ]
    notes = [f"the recipe's, which you have to see to yourself: {', '.join(unsaid)}"] if unsaid else []
    model = {plain(key.name) for key in system.keys if key.field.startswith("model.")}
    if model and model.isdisjoint(map(plain, written.values)):
        notes.append(f"the model is not described: '{inputs.model.name}' is none of {system.release}'s own")
    if inputs.plan.execution.kernels == Execution().kernels != system.kernels:
        notes.append(f"{system.release} has kernels of its own; estimate with --kernels {system.kernels}")
    return [*notes, *system.notes(inputs)]
