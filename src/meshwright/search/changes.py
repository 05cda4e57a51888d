"""What it takes to hand activations on between neighbours that divide their samples over unlike axes."""

from typing import NamedTuple, TypeAlias

from meshwright.cost.placement import Placement
from meshwright.cost.volumes import edge_flows
from meshwright.cost.wires import Wires
from meshwright.search.bench import Bench
from meshwright.search.choice import Option, inputs_of, make_plan

Divides: TypeAlias = tuple[str, ...]


class Change(NamedTuple):
    """Seconds for a micro-batch, each way."""

    forward: float
    backward: float


NO_CHANGE = Change(0.0, 0.0)


class Changes:
    """The changes between the layers of a bench's problem, by the cost core: on a plan whose layers take turns."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._known: dict[tuple[Divides, Divides], dict[str, Change]] = {}

    def into(self, layer: str, before: Divides, own: Divides) -> Change:
        """Between a layer and the one before it."""
        if before == own:
            return NO_CHANGE
        if (before, own) not in self._known:
            first, second = self._turns(before, own), self._turns(own, before)
            # Layers at odd places take over from those at even ones.
            odd = {name for place, name in enumerate(self._names) if place % 2}
            self._known[before, own] = {name: (first if name in odd else second)[name] for name in first}
            self._known[own, before] = {name: (second if name in odd else first)[name] for name in first}
        return self._known[before, own].get(layer, NO_CHANGE)

    @property
    def _names(self) -> list[str]:
        return [layer.name for layer in self._bench.problem.model.layers]

    def _turns(self, even: Divides, odd: Divides) -> dict[str, Change]:
        """Layers at even places divide over the first axes, those at odd ones over the second."""
        bench, count = self._bench, len(self._names)
        options = [Option(None, "none", even if place % 2 == 0 else odd) for place in range(count)]
        plan = make_plan(bench.problem, bench.single, (0, count), options)
        placement = Placement(inputs_of(bench.problem, plan), bench.calibration)
        wires, found = Wires(placement, bench.network), dict[str, Change]()
        for edge in placement.edges:
            there = back = 0.0
            for flow in edge_flows(placement, edge):
                seconds = wires.flow_seconds(edge.target.group, flow)
                there, back = there + seconds * (flow.when == "forward"), back + seconds * (flow.when != "forward")
            found[edge.target.layer] = Change(there, back)
        return found
