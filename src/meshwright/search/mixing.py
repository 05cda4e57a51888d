"""Plans whose layers have unlike splits and states: near plans of like layers, or all that may be better."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from meshwright.search.answer import Candidate
from meshwright.search.choice import Choice
from meshwright.search.ground import Ground
from meshwright.search.mixed import Mixer
from meshwright.search.problem import Problem
from meshwright.search.solve import MOST, Solution, every_cut
from meshwright.search.space import Shape, realise, shape_of


@dataclass(frozen=True)
class Mixing:
    """What a search looks at after plans of like layers, by what it knows."""

    problem: Problem
    ground: Ground
    simulate: Callable[[Choice, Solution], None]
    is_sound: Callable[[Shape, Choice], bool]
    below: Callable[[], float]
    """What is worth finding, by now."""
    late: Callable[[], bool]

    def near(self, plans: Iterable[Candidate]) -> None:
        """On the meshes and stages of some plans, what is better by its bound and fits."""
        for found in plans:
            if found.solution is not None and found.choice.schedule == "1f1b":
                for solution in self._mixer(found.choice).better(found.solution.cuts, found.solution.options):
                    self.simulate(found.choice, solution)

    def few(self) -> bool:
        """Whether there are so few ways on each shape that all of them can be looked at."""
        return all(self._ways(shape) <= MOST for shape in self.ground.shapes)

    def _ways(self, shape: Shape) -> float:
        choice = realise(self.problem, shape)
        return math.prod(map(self._mixer(choice).options_of, self.problem.model.layers)) if choice else 0

    def every(self) -> float | None:
        """All that may be better than the best, shape by shape; gives what is left takes at least, if it is late."""
        bounds = self.ground.unlike()
        for place in np.argsort(bounds, kind="stable").tolist():
            if bounds[place] >= self.below():
                return None
            if self.late():
                return float(bounds[place])
            self._all(self.ground.shapes[place])
        return None

    def _all(self, shape: Shape) -> None:
        choice = realise(self.problem, shape)
        if choice is None or not self.is_sound(shape, choice):
            return
        mixer = self._mixer(choice)
        for cuts in every_cut(mixer.bench.body, choice.stages, len(self.problem.model.layers)):
            for solution in mixer.every(cuts, self.below):
                if solution.bound >= self.below():
                    break
                self.simulate(choice, solution)

    def _mixer(self, choice: Choice) -> Mixer:
        benches = self.ground.benches
        return Mixer(self.problem, choice, benches.of(shape_of(self.problem, choice), choice), benches.room(choice))
