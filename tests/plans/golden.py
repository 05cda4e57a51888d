"""The golden plans and their process groups. `python -m tests.plans.golden` writes `groups/` anew."""

from pathlib import Path

import yaml

from meshwright.model.spec import ModelSpec
from meshwright.plan.groups import GroupSet, process_groups, read_groups, show_groups
from meshwright.plan.resolve import read_inputs
from meshwright.plan.rule import Inputs
from meshwright.plan.spec import Plan
from meshwright.yaml12 import load

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in HERE.glob("*.yaml")))
_NOTE = "# The process groups of {}.yaml; tests/plans/README.md says how to read and check them.\n"


def inputs(name: str) -> Inputs:
    """A golden plan with its model, cluster and recipe."""
    return read_inputs(HERE / f"{name}.yaml")


def groups(plan: Plan, model: ModelSpec) -> tuple[GroupSet, ...]:
    """Every process group of a plan, those of tied parameters included."""
    return process_groups(plan, model.tied_layers, {layer.name: layer.reads for layer in model.layers})


def shown(sets: tuple[GroupSet, ...], name: str) -> str:
    """Process groups as a golden file has them: one set a line."""
    entries = [{"purpose": purpose, "used_by": list(spans)} | show_groups(ranks) for purpose, spans, ranks in sets]
    lines = [yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000) for entry in entries]
    return _NOTE.format(name) + "".join(f"- {line}" for line in lines)


def kept(name: str) -> tuple[GroupSet, ...]:
    """The process groups in a golden file."""
    data, _ = load((HERE / "groups" / f"{name}.yaml").read_text(encoding="utf-8"))
    return tuple(GroupSet(entry["purpose"], tuple(entry["used_by"]), read_groups(entry)) for entry in data)


if __name__ == "__main__":
    for name in NAMES:
        what = inputs(name)
        text = shown(groups(what.plan, what.model), name)
        (HERE / "groups" / f"{name}.yaml").write_text(text, encoding="utf-8")
