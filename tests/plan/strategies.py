"""Random documents for hypothesis: models, clusters, recipes, and plans over them that have a meaning.

Roles are drawn under what heads divide by; then the batch and the sequence are made multiples of what the roles need.
"""

import math
from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import strategies as st

from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster
from meshwright.model.spans import format_spans
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import (
    STATES,
    ClusterRef,
    Execution,
    Group,
    ModelRef,
    Offload,
    Overlap,
    Plan,
    RecipeRef,
    Recompute,
    Role,
    Row,
    Save,
    Stage,
)
from meshwright.recipe.spec import BYTES, Recipe
from tests.plan.models import gpt2, llama, mixture

Draw = st.DrawFn
EXPERTS = 24
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)

words = st.sampled_from(["a", "b", "x", "y2", "dp", "tp", "node", "gpu", "inner", "outer_most", "ep", "cp", "pp", "z_"])
"""Names of axes and groups; what they say means nothing."""
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)


@st.composite
def models(draw: Draw) -> ModelSpec:
    """Llamas and GPT-2s of all sizes, with experts or without."""
    heads = draw(st.sampled_from([4, 6, 12, 24]))
    hidden = heads * draw(st.sampled_from([2, 4]))
    layers, rows = draw(st.integers(2, 6)), draw(st.integers(1, 300))
    family = draw(st.sampled_from(["mixture", "llama", "gpt2"]))
    if family == "gpt2":
        return gpt2(layers=layers, hidden=hidden, heads=heads, rows=rows)
    kv_heads = draw(st.sampled_from([number for number in range(1, heads + 1) if heads % number == 0]))
    ffn = 24 * draw(st.integers(1, 3))
    model = llama(layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=kv_heads, rows=rows)
    return mixture(model, EXPERTS) if family == "mixture" else model


@st.composite
def clusters(draw: Draw, least: int = 1) -> Cluster:
    """Clusters of one kind and of two, of CPU processes, with at least so many devices."""
    kinds = st.sampled_from(["h100", "a100-80gb", "v100", "h800"])
    size = least + draw(st.integers(0, 3))
    shape = draw(st.sampled_from(["cpu", "one", "two"]))
    if shape == "cpu":
        return parse_cluster(f"cpu:{size}/{draw(st.integers(1, 4))}")
    nodes = draw(st.integers(1, 4))
    pool = f"{nodes}x{-(-size // nodes)}x{draw(kinds)}"
    return parse_cluster(pool if shape == "one" else f"{pool}+2x{draw(kinds)}")


@st.composite
def recipes(draw: Draw) -> Recipe:
    """Recipes of all kinds, that no model need fit."""
    streams, spans = st.sampled_from(["tokens", "audio"]), names | st.sampled_from(["embed", "decoder.0-3", "head"])
    counts, floats = st.integers(1, 2**31), st.floats(1e-12, 1e12)
    dtypes = st.sampled_from(["fp64", "fp32", "fp16", "bf16"])
    data = {
        "global_batch": draw(counts),
        "sequence": draw(counts | st.dictionaries(names | streams, counts, min_size=1, max_size=3)),
        "precision": {
            "compute": draw(dtypes),
            "reduce": draw(dtypes),
            "master": draw(st.none() | dtypes),
            "matmul": draw(st.sampled_from([None, "fp8", "fp4"])),
        },
        "optimizer": {
            "name": draw(st.sampled_from(["sgd", "adamw", "muon"])),
            "learning_rate": draw(floats),
            "betas": draw(st.tuples(floats, floats)),
        },
        "loss": {"kind": draw(st.sampled_from(["causal_lm", "seq2seq"])), "chunks": draw(st.integers(1, 4))},
        "clip_norm": draw(st.none() | floats),
        "trainable": {"frozen": draw(st.lists(spans, max_size=3)), "lora": draw(st.none() | st.just({"rank": 4}))},
        "seed": draw(st.integers(0, 2**31)),
        "micro_batches": draw(st.none() | counts),
    }
    return Recipe.from_data({"meshwright_recipe": 1} | data)


@dataclass
class _Needs:
    """What the roles drawn so far need."""

    heads: int
    kv_heads: int
    batch: int = 1
    sequence: int = 1

    def allow(self, ways: int) -> bool:
        """Whether heads divide so, with whole copies of KV heads where these are fewer."""
        return self.heads % ways == 0 and (self.kv_heads % ways == 0 or ways % self.kv_heads == 0)

    def note(self, mesh: dict[str, int], roles: dict[str, Role]) -> None:
        """Let the batch and the sequence fit a row."""
        dp, *cuts = (
            math.prod(mesh[axis] for axis, role in roles.items() if role.split == split)
            for split in ("dp", "cp", "ulysses", "tp+sp")
        )
        self.batch = math.lcm(self.batch, dp)
        self.sequence = math.lcm(self.sequence, 2 * math.prod(cuts))


MIXABLE = ("dp", "cp", "ulysses", "copy", "tp", "tp+sp")


@st.composite
def _roles(draw: Draw, mesh: dict[str, int], needs: _Needs) -> dict[str, Role]:
    """Roles for one row; all axes that carry a state carry the same one."""
    state = draw(st.none() | st.sampled_from(STATES))
    roles, cut = {}, 1
    for axis, size in mesh.items():
        split = draw(st.sampled_from(MIXABLE))
        if split in ("tp", "tp+sp", "ulysses"):
            split, cut = (split, cut * size) if needs.allow(cut * size) else ("dp", cut)
        stated = split in ("dp", "cp", "ulysses", "copy") and draw(st.booleans())
        roles[axis] = Role(split, state if stated else None)
    if not needs.allow(cut):
        roles = {axis: Role("dp") for axis in mesh}
    needs.note(mesh, roles)
    return roles


@st.composite
def _expert_roles(draw: Draw, mesh: dict[str, int], roles: dict[str, Role]) -> dict[str, Role]:
    """The roles of a row with some axes given to experts."""
    ways, changed = 1, dict(roles)
    for axis, size in mesh.items():
        if EXPERTS % (ways * size) == 0 and draw(st.booleans()):
            ways, changed[axis] = ways * size, Role("ep")
    return changed


recomputes: st.SearchStrategy[Recompute] = st.sampled_from(["none", "full", "selective"]) | st.builds(
    Save, save=st.lists(st.sampled_from(["matmul", "attention", "collective"]), min_size=1, unique=True).map(tuple)
)
_cpu = st.sampled_from([None, "cpu"])
offloads = st.builds(Offload, optimizer=_cpu, parameters=_cpu, activations=_cpu)
executions = st.builds(
    Execution,
    prefetch=st.integers(0, 4),
    bucket_mib=st.floats(0.5, 200.0),
    sync=st.sampled_from(["each", "last"]),
    overlap=st.lists(st.sampled_from(OVERLAPS), unique=True).map(tuple),
    dispatch=st.sampled_from(["copies", "nodes"]),
    kernels=st.sampled_from(["hf-eager", "hf-sdpa", "megatron-flash"]),
)


@st.composite
def _rows(draw: Draw, layers: tuple[str, ...], model: ModelSpec, mesh: dict[str, int], needs: _Needs) -> list[Row]:
    """The rows of a stage: runs of layers with roles of their own, unlike their neighbours, and their experts."""
    rows, place = [], 0
    while place < len(layers):
        run = layers[place : place + draw(st.integers(1, len(layers) - place))]
        place += len(run)
        roles, recompute, offload = draw(_roles(mesh, needs)), draw(recomputes), draw(offloads)
        rows += [Row(span=span, roles=roles, recompute=recompute, offload=offload) for span in format_spans(run)]
        sparse = [name for name in run if "experts" in model.part_names(name)]
        if sparse:
            changed = draw(_expert_roles(mesh, roles))
            rows += [Row(span=span, part="experts", roles=changed) for span in format_spans(sparse)]
    return rows


@st.composite
def _placement(draw: Draw, layers: int) -> tuple[Any, list[int]]:
    """A schedule, and the number of the group of each stage."""
    schedule = draw(st.sampled_from(["1f1b", "interleaved", "zbv", "gpipe", "dualpipev", "zb-h1"]))
    turns = {"interleaved": draw(st.integers(2, 3)), "zbv": 2, "dualpipev": 2}.get(schedule, 1)
    turns = min(turns, layers)
    groups = list(range(draw(st.integers(1, min(4, layers // turns)))))
    return schedule, groups + groups[::-1] if schedule in ("zbv", "dualpipev") else groups * turns


@st.composite
def _groups(draw: Draw, count: int) -> dict[str, Group]:
    """Disjoint groups of devices, in order or not, under meshes of up to three axes."""
    meshes = [draw(st.dictionaries(words, st.sampled_from([1, 2, 3, 4]), max_size=3)) for _ in range(count)]
    sizes = [math.prod(mesh.values()) for mesh in meshes]
    devices = list(range(sum(sizes)))
    devices = draw(st.sampled_from([devices, devices[::-1], devices[::2] + devices[1::2]]))
    labels = draw(st.lists(words, min_size=count, max_size=count, unique=True))
    starts = [sum(sizes[:place]) for place in range(count)]
    return {
        label: Group(devices=tuple(devices[start : start + size]), mesh=mesh)
        for label, start, size, mesh in zip(labels, starts, sizes, meshes, strict=True)
    }


def _micro_batches(draw: Draw, schedule: str, groups: int) -> int:
    if schedule == "interleaved":
        return groups * draw(st.integers(1, 3))
    return draw(st.integers(1, 6)) + (2 * groups if schedule == "dualpipev" else 0)


@st.composite
def valid_plans(draw: Draw) -> Inputs:
    """Plans that have a meaning, with what they are for."""
    model = draw(models())
    schedule, on = draw(_placement(len(model.layers)))
    groups = draw(_groups(len(set(on))))
    cluster = draw(clusters(sum(group.size for group in groups.values())))
    core = model.attentions("decoder.0")[0]
    needs = _Needs(core.heads, core.kv_heads)
    labels, inner = list(groups), range(1, len(model.layers))
    picked = st.lists(st.sampled_from(inner), min_size=len(on) - 1, max_size=len(on) - 1, unique=True)
    cuts = [0, *sorted(draw(picked)), len(model.layers)]
    stages = []
    for place, number in enumerate(on):
        layers = tuple(layer.name for layer in model.layers[cuts[place] : cuts[place + 1]])
        rows = draw(_rows(layers, model, groups[labels[number]].mesh, needs))
        stages.append(Stage(on=labels[number], layers=tuple(rows)))
    count = _micro_batches(draw, schedule, len(groups))
    recipe = draw(_fitting_recipe(model, cluster, needs, count))
    told = draw(st.booleans())
    plan = Plan(
        name=draw(st.none() | names),
        model=ModelRef(name=model.name, fingerprint=model.fingerprint if told else None),
        cluster=ClusterRef(name=cluster.name, fingerprint=cluster.fingerprint if told else None),
        recipe=RecipeRef(global_batch=recipe.global_batch, sequence=recipe.sequence),
        micro_batches=count,
        schedule=schedule,
        groups=groups,
        stages=tuple(stages),
        execution=draw(executions),
    )
    return Inputs(plan, model, cluster, recipe)


@st.composite
def _fitting_recipe(draw: Draw, model: ModelSpec, cluster: Cluster, needs: _Needs, count: int) -> Recipe:
    """A recipe whose batch and sequence divide, in a dtype that all devices have."""
    known = [dtype for dtype in BYTES if all(dtype in device.peak for device in cluster.devices.values())]
    length = needs.sequence * draw(st.integers(1, 3))
    return Recipe.from_data(
        {
            "meshwright_recipe": 1,
            "global_batch": count * needs.batch * draw(st.integers(1, 3)),
            "sequence": draw(st.sampled_from([length, {"tokens": length}])),
            "precision": {"compute": draw(st.sampled_from([dtype for dtype in known if dtype in _COMPUTE]))},
            "micro_batches": draw(st.sampled_from([None, count])),
        }
    )


_COMPUTE = ("fp64", "fp32", "fp16", "bf16")
