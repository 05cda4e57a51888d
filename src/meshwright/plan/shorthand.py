"""Uniform plans from degrees: what Megatron-LM's flags say, as a plan.

Ranks lie in Megatron-LM's order, `tp-cp-ep-dp-pp`, tp fastest (megatron/core/parallel_state.py); ulysses follows tp.
Experts lie over the same ranks with a tp of their own (`etp`) fastest, then `ep`, then what is left as their dp.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError, did_you_mean
from meshwright.explain import explain
from meshwright.model.operators import Attention
from meshwright.model.resolve import resolve_model
from meshwright.model.spans import format_spans
from meshwright.model.spec import Layer, ModelSpec
from meshwright.plan.degrees import Degrees, RankOrder, fit_devices, fit_experts, fit_shard
from meshwright.plan.numbers import divides, nearest_multiple, nearest_number, require_whole
from meshwright.plan.refine import Piece
from meshwright.plan.rules import Inputs, check_plan
from meshwright.plan.rules_schedule import PLACEMENTS
from meshwright.plan.rules_sizes import heads_divide
from meshwright.plan.spec import (
    ClusterRef,
    Execution,
    Group,
    ModelRef,
    Plan,
    RecipeRef,
    Recompute,
    Repeat,
    Role,
    Row,
    Save,
    Stage,
)
from meshwright.plan.stage_cut import cut_layers, numbered_layers
from meshwright.plan.words import Kernels, Schedule
from meshwright.recipe.resolve import resolve_recipe
from meshwright.recipe.spec import Recipe

_V_SHAPED = ("zbv", "dualpipev")


def uniform_plan(
    model: Any,
    cluster: str | Path | Cluster,
    recipe: str | Path | Recipe | dict[str, Any],
    *,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    dp: int | None = None,
    ulysses: int = 1,
    zero: Literal[0, 1, 2, 3] = 0,
    shard: int | None = None,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
    recompute: Recompute = "none",
    sp: bool = False,
    virtual: int = 1,
    schedule: Schedule | None = None,
    layers_per_stage: Sequence[int] | None = None,
    rank_order: RankOrder = "megatron",
    kernels: Kernels = "hf-sdpa",
) -> Plan:
    """A plan in which all layers have the same roles, and all stages the same number of layers or nearly so:
    `uniform_plan("llama-3.1-8b", "8xh100", recipe, tp=2, zero=1)`.

    `dp` follows from the number of devices; where it is given, devices may stay idle. `etp` is tp unless it is given.
    `zero` shards over dp, cp and ulysses together, as Megatron-LM's distributed optimizer and FSDP do; experts over the
    ranks that hold copies of them. `shard` says over how many of these ranks, the nearest, and makes the others
    replicas (HSDP; MiCS; Megatron-LM's instances of the distributed optimizer). `micro_batch` is Megatron-LM's: samples
    for each of the dp replicas; 1 where neither it, nor `micro_batches`, nor the recipe says. `recompute` is for the
    numbered layers, `selective` for those of them with attention; `kernels` is what the implementation fuses and keeps.
    `rank_order` numbers the ranks as Megatron-LM does, or as its `--use-tp-pp-dp-mapping`, where pp varies before dp.
    Layers are cut evenly into pp x virtual stages (pp x 2 with V-shaped schedules); a remainder goes to the stages in
    the middle (`stage_cut.even_counts`). `layers_per_stage` may leave the first and last the embedding and head alone.

    Raises PlanError with the nearest degree that works; UnknownNameError and DocumentError for what it is made of.
    """
    require_whole(tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, dp=dp, ulysses=ulysses, zero=zero, shard=shard, virtual=virtual)
    require_whole(micro_batch=micro_batch, micro_batches=micro_batches)
    require_whole(**{f"layers_per_stage[{place}]": each for place, each in enumerate(layers_per_stage or ())})
    model, cluster, recipe = resolve_model(model), resolve_cluster(cluster), resolve_recipe(recipe)
    etp = tp if etp is None else etp
    asked = Degrees(tp=tp, ulysses=ulysses, cp=cp, pp=pp, ep=ep, etp=etp, dp=1, rank_order=rank_order)
    suits = _suits(model, 2 if schedule in _V_SHAPED else virtual)
    degrees = fit_devices(asked, cluster, dp, suits)
    if layers_per_stage is None:
        _check_stages(model, degrees, 2 if schedule in _V_SHAPED else virtual, cluster.size if dp is None else None)
    try:
        pieces = fit_shard(fit_experts(degrees, model), _state(zero), shard)
        rows = _Rows(pieces, _state(zero), sp=_sequence(sp, tp), recompute=_known(recompute))
        _check_state(rows, degrees)
        chosen, on = _stages(schedule, pp, virtual)
        plan = Plan(
            model=ModelRef(name=model.name, fingerprint=model.fingerprint),
            cluster=ClusterRef(name=cluster.name, fingerprint=cluster.fingerprint),
            recipe=RecipeRef(
                global_batch=recipe.global_batch, sequence=recipe.sequence, fingerprint=recipe.fingerprint
            ),
            micro_batches=_micro_batches(recipe, degrees.dp, micro_batch, micro_batches),
            schedule=chosen,
            groups=rows.groups(on, degrees),
            stages=rows.stages(on, cut_layers(model, len(on), layers_per_stage)),
            execution=Execution(kernels=kernels),
        )
    except ValidationError as error:
        raise PlanError(explain(error, "plan")) from None
    return _with_meaning(Inputs(plan, model, cluster, recipe))


def _suits(model: ModelSpec, per_group: int) -> Callable[[Degrees], bool]:
    """Which degrees the model can take: it fills the stages, of which a group has so many, and its heads divide."""
    layers = sum(layer.index is not None for layer in model.layers)
    cores = {op for stack in model.stacks for op in stack.operators if isinstance(op, Attention)}

    def suits(degrees: Degrees) -> bool:
        filled = degrees.pp == 1 or degrees.pp * per_group <= layers
        return filled and all(heads_divide(core, degrees.tp * degrees.ulysses) for core in cores)

    return suits


def _check_state(rows: "_Rows", degrees: Degrees) -> None:
    """Raises PlanError where a state is asked for, and no ranks hold equal parameters that it could shard."""
    if rows.state and not any(role.state for role in (*rows.roles.values(), *rows.expert_roles.values())):
        more = ", or fewer ways of tp or pp" if degrees.tp * degrees.pp > 1 else ""
        raise PlanError(f"{rows.state} shards over dp, cp and ulysses, and each of them is 1; take zero 0{more}")


def _check_stages(model: ModelSpec, degrees: Degrees, per_group: int, world: int | None) -> None:
    """Raises PlanError where there are more stages than layers, with a pp that also divides the `world`, if any."""
    if degrees.pp == 1:
        return
    layers, stages = len(numbered_layers(model)), degrees.pp * per_group
    if stages <= layers:
        return
    rest = world // degrees.inner if world is not None else 0
    near = nearest_number(degrees.pp, lambda pp: rest % pp == 0 and pp * per_group <= layers)
    fix = f"take pp {near}" if near > 1 else f"take at most {layers} (pp x virtual)"
    raise PlanError(f"{layers} layers do not fill {stages} stages; {fix}")


def _state(zero: int) -> str | None:
    if zero not in range(4):
        raise PlanError(f"zero is 0, 1, 2 or 3 (got {zero}); take {min(max(zero, 0), 3)}")
    return f"zero{zero}" if zero else None


def _sequence(sp: bool, tp: int) -> bool:
    if sp and tp == 1:
        raise PlanError("sp cuts activations over the tp ranks, and tp is 1; take tp 2, or leave sp out")
    return sp


def _known(recompute: Recompute) -> Recompute:
    words = ("none", "full", "selective")
    if not isinstance(recompute, Save | Repeat) and recompute not in words:
        raise PlanError(f"'{recompute}' is no recompute; {did_you_mean(recompute, words)}")
    return recompute


@dataclass(frozen=True)
class _Rows:
    """The rows of layers that all have the same roles."""

    pieces: tuple[Piece, ...]
    """The axes, fastest first; none on a stage of one device."""
    state: str | None
    sp: bool
    recompute: Recompute

    @property
    def mesh(self) -> dict[str, int]:
        """Axes and sizes, slowest first."""
        return {piece.axis: piece.size for piece in reversed(self.pieces)} or {"dp": 1}

    @property
    def roles(self) -> dict[str, Role]:
        """The roles of layers as a whole."""
        return {piece.axis: piece.role(sp=self.sp, state=self.state) for piece in reversed(self.pieces)} or {
            "dp": Role("dp")
        }

    @property
    def expert_roles(self) -> dict[str, Role]:
        """The roles of routed experts."""
        return {piece.axis: piece.expert_role(sp=self.sp, state=self.state) for piece in reversed(self.pieces)}

    def groups(self, on: Sequence[str], degrees: Degrees) -> dict[str, Group]:
        """The groups, in the order of their first stages."""
        names = dict.fromkeys(on)
        return {name: Group(devices=degrees.devices(place), mesh=self.mesh) for place, name in enumerate(names)}

    def stages(self, on: Sequence[str], cut: Sequence[Sequence[Layer]]) -> tuple[Stage, ...]:
        """The stages, each on its group."""
        return tuple(Stage(on=name, layers=tuple(self._of(layers))) for name, layers in zip(on, cut, strict=True))

    def _of(self, layers: Sequence[Layer]) -> Iterator[Row]:
        """A row for each run of layers; a second one for its experts, where these have other roles."""
        apart = any(piece.expert != piece.dense for piece in self.pieces)
        for recompute, run in groupby(layers, self._recomputed):
            together = tuple(run)
            for span in format_spans(layer.name for layer in together):
                yield Row(span=span, roles=self.roles, recompute=recompute)
            for part, names in _expert_parts(together).items() if apart else ():
                for span in format_spans(names):
                    yield Row(span=span, part=part, roles=self.expert_roles, recompute=recompute)

    def _recomputed(self, layer: Layer) -> Recompute:
        if layer.index is None:
            return "none"
        attends = any(isinstance(operator, Attention) for operator in layer.stack.operators)
        return self.recompute if attends or self.recompute != "selective" else "none"


def _expert_parts(layers: Sequence[Layer]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for layer in layers:
        for part in layer.stack.parts:
            if part.experts:
                found.setdefault(part.name, []).append(layer.name)
    return found


def _stages(schedule: Schedule | None, pp: int, virtual: int) -> tuple[Schedule, list[str]]:
    """The schedule, and the group that each stage is on."""
    if schedule is not None and schedule not in PLACEMENTS:
        raise PlanError(f"'{schedule}' is no schedule; {did_you_mean(schedule, PLACEMENTS)}")
    chosen: Schedule = schedule or ("1f1b" if virtual == 1 else "interleaved")
    if virtual < 1:
        raise PlanError(f"virtual counts stages on a group, from 1 on (got {virtual})")
    if chosen in _V_SHAPED and virtual > 2:
        raise PlanError(f"{chosen} has 2 stages on each group, and virtual is {virtual}; take virtual 2")
    if chosen == "interleaved" and virtual == 1:
        raise PlanError("interleaved has two or more stages on each group, and virtual is 1; take virtual 2")
    if chosen not in ("interleaved", *_V_SHAPED) and virtual > 1:
        raise PlanError(f"{chosen} has 1 stage on each group, and virtual is {virtual}; take 'interleaved'")
    if chosen in ("interleaved", *_V_SHAPED) and pp == 1:
        raise PlanError(f"{chosen} needs a pipeline, and pp is 1; take pp 2, or '1f1b' with virtual 1")
    names = [chr(ord("a") + place) for place in range(pp)] if pp <= 26 else [f"g{place}" for place in range(pp)]
    return chosen, names + names[::-1] if chosen in _V_SHAPED else names * virtual


def _micro_batches(recipe: Recipe, dp: int, size: int | None, count: int | None) -> int:
    """The number of micro-batches, from what is given."""
    if size is not None and count is not None:
        raise PlanError("micro_batch and micro_batches say the same thing in two ways; give one of them")
    count = count if count is not None or size is not None else recipe.micro_batches
    if count is not None:
        return count
    batch, size = recipe.global_batch, 1 if size is None else size
    if size < 1:
        raise PlanError(f"micro_batch counts samples, from 1 on (got {size})")
    if batch % dp:
        raise PlanError(f"a global batch of {batch} does not divide over dp {dp}; use {nearest_multiple(batch, dp)}")
    if batch % (size * dp):
        near = nearest_number(size, divides(batch // dp))
        raise PlanError(
            f"micro_batch {size} x dp {dp} does not divide the global batch of {batch}; take micro_batch {near}"
        )
    return batch // (size * dp)


def _with_meaning(inputs: Inputs) -> Plan:
    """The plan, if the rules find that it has a meaning."""
    errors = [problem for problem in check_plan(inputs) if problem.severity == "error"]
    if errors:
        raise PlanError("\n".join(f"{problem.message}; {problem.fix}" for problem in errors))
    return inputs.plan
