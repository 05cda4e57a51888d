"""Random plans that the schema reads, with anything wrong in them."""

from typing import Any

from hypothesis import strategies as st

from meshwright.plan.rules import Inputs
from meshwright.plan.spec import STATES, Plan
from tests.plan.models import listener, resnet
from tests.plan.strategies import MIXABLE, Draw, clusters, recipes, words

_roles = st.sampled_from([f"{split}/{state}" for split in MIXABLE for state in STATES] + [*MIXABLE, "ep"])
_spans = st.sampled_from(["embed", "decoder.0-99", "decoder.1", "decoder.0-1", "encoder.0", "nope", "head.3", "frames"])


@st.composite
def _row(draw: Draw, row: dict[str, Any]) -> dict[str, Any]:
    """A row with one thing changed."""
    axis = draw(words | st.sampled_from(sorted(row["roles"]) or ["x"]))
    change = draw(st.sampled_from(["role", "span", "part", "roles", "recompute", "offload"]))
    values = {
        "role": {"roles": row["roles"] | {axis: draw(_roles)}},
        "roles": {"roles": {name: role for name, role in row["roles"].items() if name != axis}},
        "span": {"span": draw(_spans)},
        "part": {"part": draw(st.sampled_from(["experts", "attention", "conv", "nope"]))},
        "recompute": {"recompute": draw(st.sampled_from(["selective", {"save": []}]))},
        "offload": {"offload": {"optimizer": "cpu", "parameters": "cpu"}},
    }
    return row | values[change]


@st.composite
def _stages(draw: Draw, stages: list[dict[str, Any]], groups: list[str]) -> list[dict[str, Any]]:
    """Stages with one of them changed, moved, doubled or dropped."""
    place = draw(st.integers(0, len(stages) - 1))
    stage, rest = stages[place], stages[:place] + stages[place + 1 :]
    change = draw(st.sampled_from(["row", "row twice", "on", "drop row", "move", "double", "drop"]))
    if change.startswith("row") and stage["layers"]:
        number = draw(st.integers(0, len(stage["layers"]) - 1))
        changed = draw(_row(stage["layers"][number]))
        after = number + (change == "row")
        layers = [*stage["layers"][:number], changed, *stage["layers"][after:]]
        return [*stages[:place], stage | {"layers": layers}, *stages[place + 1 :]]
    other = {
        "on": [*stages[:place], stage | {"on": draw(st.sampled_from(groups))}, *stages[place + 1 :]],
        "drop row": [*stages[:place], stage | {"layers": stage["layers"][1:]}, *stages[place + 1 :]],
        "move": [*rest, stage],
        "double": [*stages, stage],
        "drop": rest or stages,
    }
    return other.get(change, stages)


@st.composite
def _groups(draw: Draw, groups: dict[str, Any]) -> dict[str, Any]:
    """Groups with the devices or the mesh of one changed."""
    name = draw(st.sampled_from(sorted(groups)))
    devices = st.sampled_from(["0", "0-3", "5,1,1", "0-30:2", "1048575", "0-3*4+8"])
    meshes = st.dictionaries(words, st.sampled_from([1, 2, 5, 16, 10**15]), max_size=4)
    change = draw(st.fixed_dictionaries({}, optional={"devices": devices, "mesh": meshes}))
    return groups | {name: groups[name] | change}


@st.composite
def spoilt_plans(draw: Draw, sound: st.SearchStrategy[Inputs]) -> Inputs:
    """Sound plans that are changed here and there, and put to any model, cluster and recipe."""
    plan, model, cluster, recipe = draw(sound)
    data = {"meshwright_plan": 1} | plan.as_data()
    for change in draw(st.lists(st.sampled_from(["stages", "groups", "counts", "inputs"]), min_size=1, max_size=6)):
        if change == "stages":
            data["stages"] = draw(_stages(data["stages"], sorted(data["groups"])))
        elif change == "groups":
            data["groups"] = draw(_groups(data["groups"]))
        elif change == "counts":
            data["micro_batches"] = draw(st.sampled_from([1, 3, 7, 2**16]))
            data["schedule"] = draw(st.sampled_from(["1f1b", "interleaved", "zbv", "dualpipev"]))
        else:
            model = draw(st.sampled_from([model, listener(), resnet()]))
            cluster, recipe = draw(st.just(cluster) | clusters()), draw(st.just(recipe) | recipes())
    return Inputs(Plan.from_data(data), model, cluster, recipe)
