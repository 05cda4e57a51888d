"""The benches of a search. Micro-batches of one size on ranks that lie alike take the same, however many ranks repeat
them; states on one mesh take the same, whatever the size of micro-batches. Both are costed once.
"""

from meshwright.cost.calibration import Calibration
from meshwright.cost.collectives import Network
from meshwright.search.bench import Bench
from meshwright.search.choice import Choice
from meshwright.search.problem import Problem
from meshwright.search.room import Room
from meshwright.search.space import Shape, realise


class Benches:
    """Benches and rooms by choice."""

    def __init__(self, problem: Problem, calibration: Calibration) -> None:
        self.problem, self.calibration = problem, calibration
        self._replicas: dict[Shape, Bench] = {}
        self._twins: dict[tuple[object, ...], Bench] = {}
        self._rooms: dict[tuple[object, ...], Room] = {}
        self._network = Network(problem.cluster, calibration)

    def replica(self, inner: Shape) -> Bench:
        """Of one replica, or as many as experts spread over."""
        if inner not in self._replicas:
            one = realise(self.problem, inner)
            assert one is not None, "it has the mesh of its shape"
            self._replicas[inner] = Bench(self.problem, one, self.calibration, network=self._network)
        return self._replicas[inner]

    def of(self, shape: Shape, choice: Choice) -> Bench:
        """Of a choice of a shape."""
        key = self._mesh(choice)
        replica = self.replica(shape.inner) if self._repeats(shape.inner) else None
        twin = self._twins.get(key)
        bench = Bench(self.problem, choice, self.calibration, replica=replica, twin=twin, network=self._network)
        self._twins.setdefault(key, bench)
        return bench

    def room(self, choice: Choice) -> Room:
        """Of a device of a choice."""
        key = self._mesh(choice)
        if key not in self._rooms:
            twin, limit = self._twins[key], self.problem.wishes.memory_limit
            self._rooms[key] = Room(twin.placement, twin.group, pipeline=choice.degrees.pp > 1, limit=limit)
        return self._rooms[key]

    def _mesh(self, choice: Choice) -> tuple[object, ...]:
        """What states depend on: gradients of several micro-batches are added up."""
        return choice.degrees, choice.pieces, choice.micro_batches > 1

    def _repeats(self, inner: Shape) -> bool:
        """Whether all replicas lie alike: devices are of one kind, and replicas fill units or divide them."""
        pools, size = self.problem.cluster.pools, inner.tp * inner.ulysses * inner.cp * inner.dp
        if len(pools) > 1 or pools[0].compute_units is not None:
            return False
        unit = 1
        for level in pools[0].levels:
            unit *= level.size
            if unit % size and size % unit:
                return False
        return True
