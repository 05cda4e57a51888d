"""The costs of a shape's stages under each state that may shard its equal parameters, made once for all schedules."""

from collections.abc import Iterable, Iterator

from meshwright.search.benches import Benches
from meshwright.search.choice import Choice
from meshwright.search.costs import StageCosts
from meshwright.search.problem import Problem
from meshwright.search.space import Shape, replicated


class StateCosts:
    """Those of a problem's shapes."""

    def __init__(self, problem: Problem, benches: Benches) -> None:
        self._problem, self._benches = problem, benches
        self._whole: dict[Shape, tuple[StageCosts, ...]] = {}
        self._inside: dict[Shape, tuple[StageCosts, ...]] = {}

    def whole(self, shape: Shape, choice: Choice) -> tuple[StageCosts, ...]:
        """Under states over all ranks that hold equal parameters."""
        if shape not in self._whole:
            self._whole[shape] = self._under(shape, choice, states_of(self._problem, choice))
        return self._whole[shape]

    def inside(self, shape: Shape, choice: Choice) -> tuple[StageCosts, ...]:
        """Under the same states over the ranks of a node alone (HSDP)."""
        if shape not in self._inside:
            own = replicated(self._problem, choice)
            states = [] if own is None else [state for state in states_of(self._problem, own) if state is not None]
            self._inside[shape] = () if own is None else self._under(shape, own, states)
        return self._inside[shape]

    def of(self, shape: Shape, choice: Choice, state: str | None) -> StageCosts:
        """What is known already of one state, over the ranks that the choice says."""
        known = (*self._whole[shape], *self._inside.get(shape, ()))
        return next(each for each in known if (each.state, each.bench.choice.pieces) == (state, choice.pieces))

    def _under(self, shape: Shape, choice: Choice, states: Iterable[str | None]) -> tuple[StageCosts, ...]:
        bench, room = self._benches.of(shape, choice), self._benches.room(choice)
        return tuple(StageCosts(bench, state, room) for state in states)


def states_of(problem: Problem, choice: Choice) -> Iterator[str | None]:
    """What can shard the equal parameters of a choice."""
    target, ways = problem.wishes.target, vars(choice.degrees)
    for state in problem.wishes.states:
        if target is not None and not target.goes_with(state, ways):
            continue
        roles = (*choice.roles(state).values(), *choice.expert_roles(state).values())
        if state is None or any(role.state for role in roles):
            yield state
