"""What a launch line can say, as a flat mapping: degrees and settings of a uniform plan, and what its recipe asks for.

A system's table of keys (`export.keys`) names these fields, and is read in both directions: `fields_of` takes them from
a plan to be written, `plan_of` makes the plan of what was read. Fields of a model begin with `model.`, those of a
recipe with `recipe.`.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError
from meshwright.model.operators import Attention
from meshwright.model.spans import format_spans, parse_span, span_names
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.shorthand import uniform_plan
from meshwright.plan.sites import Site
from meshwright.plan.spec import STATEFUL, Execution, Offload, Plan, Recompute, Row, Save, Stage
from meshwright.recipe.spec import Recipe
from meshwright.search.near import coordinates

Fields = dict[str, Any]

SHAPE = (
    "tp",
    "ulysses",
    "cp",
    "pp",
    "ep",
    "etp",
    "zero",
    "shard",
    "micro_batches",
    "schedule",
    "virtual",
    "rank_order",
)
"""Fields that `uniform_plan` takes by their names."""
HALF = Save(save=("half-matmul", "attention", "collective"))
"""What torchtitan's selective recompute keeps: all but every second matrix, attention and collectives."""
RECOMPUTES: dict[str, Recompute] = {"none": "none", "full": "full", "selective": "selective", "half": HALF}
"""Words of the field `recompute`."""


def parallel(fields: Fields, *names: str) -> int:
    """The product of some degrees."""
    return math.prod(fields.get(name) or 1 for name in names)


def fields_of(inputs: Inputs) -> Fields:
    """What most of a plan's layers do, as fields. They make the same plan again where all of them do so."""
    at, main = coordinates(inputs), _main(inputs)
    fields = {name: value for name, value in at._asdict().items() if name in (*SHAPE, "dp")}
    return fields | {
        "samples": at.samples,
        "sp": main.ways("tp+sp") > 1,
        "zero": _zero(inputs, main),
        "shard": _sharding(main),
        "layers": tuple(_numbered_layers(stage) for stage in inputs.plan.stages),
        "recompute": _word(inputs),
        "block": _block(inputs.plan),
        "rank_order": _rank_order(inputs.plan),
        "sync": inputs.plan.execution.sync,
        "overlap": inputs.plan.execution.overlap,
        "kernels": inputs.plan.execution.kernels,
        **{f"offload.{name}": getattr(main.row.offload, name) == "cpu" for name in Offload.model_fields},
        **recipe_fields(inputs.recipe),
    }


def recipe_fields(recipe: Recipe) -> Fields:
    """All that a recipe says, under `recipe.`, whatever is left at its default too. A norm of 0 does not clip."""
    data = recipe.model_dump(mode="json") | {"clip_norm": recipe.clip_norm or 0.0}
    return {f"recipe.{name}": value for name, value in _flat(data) if value is not None}


def _flat(data: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and at + name != "sequence":
            yield from _flat(value, f"{at}{name}.")
        else:
            yield at + name, value


def recipe_of(fields: Fields) -> Recipe:
    """The recipe of what was read. Raises DocumentError where it is none."""
    data: dict[str, Any] = {"meshwright_recipe": 1}
    for name, value in fields.items():
        if name.startswith("recipe."):
            *outer, last = name.split(".")[1:]
            place = data
            for step in outer:
                place = place.setdefault(step, {})
            place[last] = None if name == "recipe.clip_norm" and value == 0 else value
    return Recipe.from_data(data, "what was read")


def plan_of(fields: Fields, model: ModelSpec, cluster: Cluster, recipe: Recipe) -> Plan:
    """The plan of some fields; those that are missing are as `uniform_plan` has them. Raises PlanError."""
    given = {name: fields[name] for name in SHAPE if fields.get(name) is not None}
    if given.get("micro_batches") is None:
        given["micro_batch"] = fields.get("samples")
    if given.get("zero") and not _stateful(fields, cluster):
        given |= {"zero": 0, "shard": None}
    layers = fields.get("layers")
    plan = uniform_plan(
        model,
        cluster,
        recipe,
        **given,
        dp=fields.get("dp"),
        sp=bool(fields.get("sp")),
        recompute=RECOMPUTES[fields.get("recompute") or "none"],
        layers_per_stage=layers if layers is not None and len(layers) > 1 else None,
        kernels=fields.get("kernels") or "hf-sdpa",
    )
    said = {name: fields[name] for name in ("sync", "overlap") if fields.get(name) is not None}
    if not {row.state for stage in plan.stages for row in stage.layers} & {"zero2", "zero3"}:
        said.pop("sync", None)  # it says when these two reduce gradients
    offload = Offload(**{name: "cpu" for name in Offload.model_fields if fields.get(f"offload.{name}")})
    return Plan(
        **{name: getattr(plan, name) for name in Plan.model_fields}
        | {
            "stages": tuple(_finished(stage, fields.get("block"), offload) for stage in plan.stages),
            "execution": Execution(**{"kernels": plan.execution.kernels} | said),
        }
    )


def _stateful(fields: Fields, cluster: Cluster) -> bool:
    """Whether any ranks hold equal parameters, of layers or of experts alone: a state that shards over one rank is
    none.
    """
    dp = fields.get("dp") or cluster.size // parallel(fields, "tp", "pp", "cp", "ulysses")
    equal = dp * parallel(fields, "cp", "ulysses")
    return max(equal, equal_experts(fields, equal)) > 1


def equal_experts(fields: Fields, equal: int) -> int:
    """Ranks that hold the same experts, where so many hold the same layers: tensor ranks too that do not cut them."""
    tp, ep = parallel(fields, "tp"), parallel(fields, "ep")
    return equal * tp // (ep * (fields.get("etp") or tp)) if ep > 1 else 1


def _zero(inputs: Inputs, main: Site) -> int:
    """The state of the main row; of experts where no two ranks hold the same layers."""
    experts = (row.state for stage in inputs.plan.stages for row in stage.layers if row.part is not None)
    state = main.row.state or (next(experts, None) if main.ways(*STATEFUL) == 1 else None)
    return int((state or "zero0")[-1])


def _finished(stage: Stage, block: int | None, offload: Offload) -> Stage:
    """A stage with what its layers offload, and with the first so many of its layers computed again in full."""
    rows = [row.model_copy(update={"offload": offload}) for row in stage.layers]
    if block is None:
        return Stage(on=stage.on, layers=tuple(rows))
    names = [name for row in rows if row.part is None and _numbered(row) for name in span_names(row.span)]
    again = set(names[:block])
    return Stage(on=stage.on, layers=tuple(piece for row in rows for piece in _cut(row, again)))


def _cut(row: Row, again: set[str]) -> Iterator[Row]:
    if not _numbered(row):
        yield row
        return
    for full, run in groupby(span_names(row.span), again.__contains__):
        for span in format_spans(run):
            yield row.model_copy(update={"span": span, "recompute": "full" if full else "none"})


def _numbered(row: Row) -> bool:
    return parse_span(row.span)[1] is not None


def _main(inputs: Inputs) -> Site:
    """The row with most layers."""
    whole = [site for site in inputs.sites if site.row.part is None]
    return max(whole, key=lambda site: (_numbered(site.row), len(site.names)))


def _sharding(site: Site) -> int | None:
    """Ranks that shard together; none where all that hold equal parameters do, or nothing is sharded."""
    row, mesh = site.row, site.group.mesh
    inside = math.prod(mesh.get(axis, 1) for axis in row.state_axes())
    return inside if row.state and inside < site.ways(*STATEFUL) else None


def _numbered_layers(stage: Stage) -> int:
    return sum(_numbered(row) * len(span_names(row.span)) for row in stage.layers if row.part is None)


def _rank_order(plan: Plan) -> str:
    """Whether stages vary before dp: then the devices of the first group are no run."""
    devices = next(iter(plan.groups.values())).devices
    return "megatron" if devices[-1] - devices[0] < len(devices) or len(plan.groups) == 1 else "megatron-pp-dp"


def _word(inputs: Inputs) -> str:
    """What most numbered layers recompute; of those with attention, where all are alike or `selective`."""
    counts: dict[str, int] = {}
    for site in inputs.sites:
        if site.row.part is None and _numbered(site.row):
            attends = any(isinstance(op, Attention) for held in site.held for op in held.operators)
            word = next((name for name, value in RECOMPUTES.items() if value == site.row.recompute), "full")
            counts[word] = counts.get(word, 0) + len(site.names) * (2 if attends else 1)
    return max(counts, key=counts.__getitem__, default="none")


def _block(plan: Plan) -> int | None:
    """The most layers of a stage that recompute in full, where not all layers recompute alike."""
    stages = [[row for row in stage.layers if row.part is None and _numbered(row)] for stage in plan.stages]
    if {row.recompute for rows in stages for row in rows} != {"full", "none"}:
        return None
    return max(sum(len(span_names(row.span)) for row in rows if row.recompute == "full") for rows in stages)


def merged(plan: Plan) -> Plan:
    """The same plan with neighbouring axes of a mesh that have equal roles in every row made one, as uniform plans
    have them.
    """
    groups = dict(plan.groups)
    rows: dict[str, list[Row]] = {name: [] for name in plan.groups}
    for stage in plan.stages:
        rows[stage.on] += stage.layers
    kept: dict[str, list[str]] = {}
    for name, group in plan.groups.items():
        mesh: dict[str, int] = {}
        for axis, size in group.mesh.items():
            last = next(reversed(mesh), None)
            alike = last is not None and all(row.roles.get(last) == row.roles.get(axis) for row in rows[name])
            if size == 1 and len(group.mesh) > 1 and group.size > 1:
                continue
            mesh |= {last: mesh[last] * size} if alike and last is not None else {axis: size}
        groups[name], kept[name] = group.model_copy(update={"mesh": mesh}), list(mesh)
    stages = tuple(
        Stage(
            on=stage.on,
            layers=tuple(
                row.model_copy(
                    update={"roles": {axis: row.roles[axis] for axis in kept[stage.on] if axis in row.roles}}
                )
                for row in stage.layers
            ),
        )
        for stage in plan.stages
    )
    return Plan(**{name: getattr(plan, name) for name in Plan.model_fields} | {"groups": groups, "stages": stages})


def check_model(fields: Fields, model: ModelSpec) -> None:
    """Raises PlanError where what was read says other sizes than the model has."""
    cores = [op for stack in model.stacks for op in stack.operators if isinstance(op, Attention)]
    has = {
        "model.num_hidden_layers": {sum(layer.index is not None for layer in model.layers)},
        "model.num_attention_heads": {core.heads for core in cores},
    }
    for name, values in has.items():
        said = fields.get(name)
        if said is not None and values and said not in values:
            what = name.removeprefix("model.num_").replace("_", " ").replace("hidden ", "")
            raise PlanError(f"{said} {what} are asked for, and '{model.name}' has {min(values)}; give another --model")
