"""Several searches as one, where the wishes leave open how many devices work, or the global batch: one for each."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from meshwright.cost.calibration import Calibration, public_calibration
from meshwright.errors import PlanError
from meshwright.recipe.resolve import resolve_recipe
from meshwright.search.answer import Answer, Progress, Tried, in_short
from meshwright.search.bounds import least_step
from meshwright.search.front import searched_front
from meshwright.search.near import find_near
from meshwright.search.problem import Problem
from meshwright.search.scoped import search
from meshwright.units import show_seconds

_LEAST = 0.2
"""Seconds that a search gets at least."""
_WIDER = 1.0
"""Seconds for the look at a wider scope, at least."""
_MOST_NODES = 12
"""Nodes up to which each number of them is tried; of more, powers of two and three times these."""
_WORSE = 3
"""Smaller numbers of devices in a row that are no better end the look at still smaller ones."""
_BISECTED = 4
"""Numbers of nodes between one that does not do and one that does."""


def sizes(problem: Problem) -> list[int]:
    """Numbers of devices that a plan may use, from the fewest: whole nodes, or parts of the only one.

    >>> import meshwright as mw
    >>> ask = lambda cluster: Problem(mw.model("gpt2"), mw.cluster(cluster), mw.recipe(global_batch=64, sequence=512))
    >>> sizes(ask("7xh100")), sizes(ask("20x8xh100"))
    ([1, 2, 3, 4, 5, 6, 7], [8, 16, 24, 32, 48, 64, 96, 128, 160])
    """
    total, node = problem.cluster.size, problem.cluster.pools[0].levels[0].size
    node = node if total > node and total % node == 0 else 1
    nodes = total // node
    if nodes <= _MOST_NODES:
        return [node * count for count in range(1, nodes + 1)]
    powers = {odd << shift for odd in (1, 3) for shift in range(nodes.bit_length())}
    return [node * count for count in sorted({each for each in powers if each < nodes} | {nodes})]


def price_per_hour(problem: Problem, devices: int) -> float:
    """US dollars for the first devices of the cluster. Raises PlanError where one has no price."""
    cluster, total = problem.cluster, 0.0
    for place, (pool, start) in enumerate(zip(cluster.pools, cluster.starts, strict=True)):
        used = min(max(devices - start, 0), pool.size)
        if used and pool.price_per_device_hour is None:
            raise PlanError(
                f"objective 'money': pool '{pool.name}' of cluster '{cluster.name}' has no price; write "
                f"'price_per_device_hour', in US dollars, under pools.{place} of a cluster file"
            )
        total += used * (pool.price_per_device_hour or 0.0)
    return total


def find(
    problem: Problem, calibration: Calibration | None = None, progress: Callable[[Progress], None] = lambda _: None
) -> Answer:
    """The best plan for the wishes. Raises PlanError where none meets them, with what binds."""
    wishes, size = problem.wishes, problem.cluster.size
    if wishes.devices is not None and wishes.devices > size:
        raise PlanError(f"devices {wishes.devices} is more than the {size} of '{problem.cluster.name}'; take {size}")
    if wishes.near is not None:
        return find_near(problem, calibration, progress)
    began, reached = time.perf_counter(), calibration or public_calibration()
    answer = Sweep(problem, reached, progress).run()
    if wishes.scope != "any" and answer.stopped != "Ctrl-C":
        left = wishes.time_limit - (time.perf_counter() - began)
        answer.notes = (*answer.notes, *_wider(answer, reached, max(_WIDER, left)))
        answer.search_s = time.perf_counter() - began
    if wishes.front and answer.stopped != "Ctrl-C":
        limit = replace(answer.problem.wishes, time_limit=wishes.time_limit)
        answer.problem = answer.problem._replace(wishes=limit)
        answer.front = searched_front(answer, reached, progress)
        answer.search_s = time.perf_counter() - began
    return answer


def _wider(answer: Answer, calibration: Calibration, seconds: float) -> Iterator[str]:
    """One line where a plan that the scope cannot be told would be faster."""
    problem, best = answer.problem, answer.best
    wishes = replace(problem.wishes, scope="any", time_limit=seconds)
    try:
        found = search(problem._replace(wishes=wishes), calibration, best=best).best
    except (PlanError, KeyboardInterrupt):
        return
    gain = 1 - found.estimate.step_time_s / best.estimate.step_time_s
    if gain > problem.wishes.gap:
        yield (
            f"--for any would be {gain:.1%} faster: {in_short(found)}, "
            f"{show_seconds(found.estimate.step_time_s)} a step"
        )


@dataclass
class Sweep:
    """The searches of one question. Each gets an equal part of the time that is left."""

    problem: Problem
    calibration: Calibration
    progress: Callable[[Progress], None]
    tried: list[Tried] = field(default_factory=list)
    best: Answer | None = None
    stopped: str = ""
    considered: int = 0
    simulated: int = 0

    def run(self) -> Answer:
        """Search. Ends at the time limit and at Ctrl-C with the best so far."""
        self.began = time.perf_counter()
        if self.problem.wishes.objective == "money":
            price_per_hour(self.problem, self.problem.devices)
        {"time": self._fastest, "devices": self._fewest}.get(self.problem.wishes.objective, self._every)()
        if self.best is None:
            raise PlanError(self._refusal())
        if len(self.tried) > 1 or self.problem.wishes.global_batch or self.problem.wishes.objective == "money":
            self.best.tried = tuple(self.tried)
        self.best.considered, self.best.simulated = self.considered, self.simulated
        self.best.objective, self.best.search_s = self.problem.wishes.objective, time.perf_counter() - self.began
        self.best.stopped = self.best.stopped or self.stopped
        return self.best

    def _fastest(self) -> None:
        """With all devices; with fewer where all cannot be used, or their number suits the batch badly."""
        most = self.problem.devices
        self._try_all(list(self._cases([most])))
        if self.problem.wishes.devices is not None or not (self.best is None or self._awkward(most)):
            return
        worse = 0
        for devices in reversed(sizes(self.problem)[:-1]):
            before = self.best
            self._try_all([each for each in self._cases([devices]) if self._may_win(each)])
            worse = worse + 1 if self.best is before else 0
            if self.stopped or (self.best is not None and worse == _WORSE):
                return

    def _awkward(self, devices: int) -> bool:
        """Whether the number of devices has an odd factor that the batch does not divide by: it cannot all be dp."""
        odd = devices // (devices & -devices)
        return self.best is not None and self.best.plan.recipe.global_batch % odd != 0

    def _may_win(self, case: Problem) -> bool:
        """Whether a case could be faster by its FLOPs alone."""
        if self.best is None:
            return True
        paced = case.recipe.global_batch / least_step(case, self.calibration)
        return paced > self.best.plan.recipe.global_batch / self.best.estimate.step_time_s

    def _every(self) -> None:
        self._try_all(list(self._cases(sizes(self.problem))))

    def _fewest(self) -> None:
        """Number by number up to the first that does, then back to the fewest that are not known to be too few."""
        failed, node = 0, sizes(self.problem)[0]
        for devices in sizes(self.problem):
            self._try_all([each for each in self._cases([devices]) if self._in_time(each)])
            if self.best is not None or self.stopped:
                break
            failed = devices
        for _ in range(_BISECTED):
            reached = self.best.devices if self.best else 0
            middle = (failed + reached) // 2 // node * node
            if self.stopped or not failed < middle < reached:
                return
            self._try_all([each for each in self._cases([middle]) if self._in_time(each)])
            failed = failed if self.best is None or self.best.devices == middle else middle

    def _in_time(self, case: Problem) -> bool:
        """Whether a case may be fast enough by its FLOPs alone; said where it is not."""
        floor = least_step(case, self.calibration)
        unmet = case.wishes.unmet(floor, self._tokens(case) / floor)
        if unmet is not None:
            why = f"its computing alone takes {show_seconds(floor)}"
            self.tried.append(Tried(case.devices, case.recipe.global_batch, None, why))
        return unmet is None

    @staticmethod
    def _tokens(case: Problem) -> float:
        stream = case.model.stacks[-1].stream
        return case.recipe.global_batch * float(case.recipe.length(stream, case.model.streams[stream].length) or 1)

    def _cases(self, devices: list[int]) -> Iterator[Problem]:
        """With each number of devices, each batch."""
        asked = self.problem.wishes.global_batch
        for count in devices:
            wishes = replace(self.problem.wishes, objective="time", devices=count, global_batch=None)
            for batch in [None] if asked is None else asked.tried(count):
                recipe = self.problem.recipe
                recipe = recipe if batch is None else resolve_recipe(recipe, global_batch=batch)
                yield self.problem._replace(wishes=wishes, recipe=recipe)

    def _try_all(self, cases: list[Problem]) -> None:
        for place, case in enumerate(cases):
            left = self.problem.wishes.time_limit - (time.perf_counter() - self.began)
            if left <= 0 and self.best is not None:
                self.stopped = self.problem.wishes.out_of_time
            if self.stopped:
                return
            self._try(case, max(_LEAST, left / (len(cases) - place)))

    def _try(self, case: Problem, limit: float) -> None:
        batch = case.recipe.global_batch
        timed = case._replace(wishes=replace(case.wishes, time_limit=limit))
        try:
            answer = search(timed, self.calibration, self.progress)
        except PlanError as error:
            self.tried.append(Tried(case.devices, batch, None, str(error)))
            return
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.stopped = "Ctrl-C"
            return
        if answer.stopped == "Ctrl-C":
            self.stopped = answer.stopped
        elif answer.stopped:
            answer.stopped = self.problem.wishes.out_of_time
        self.considered, self.simulated = self.considered + answer.considered, self.simulated + answer.simulated
        unmet = case.wishes.unmet(answer.estimate.step_time_s, answer.estimate.tokens_per_s)
        self.tried.append(Tried(case.devices, batch, answer.best, unmet or "", answer.bound, self._price(answer)))
        if unmet is None and (self.best is None or self.worth(answer) > self.worth(self.best)):
            self.best = answer

    def _price(self, answer: Answer) -> float | None:
        """US dollars of a million tokens, where devices have prices."""
        try:
            hourly = price_per_hour(self.problem, answer.devices)
        except PlanError:
            return None
        return hourly / 3600 / answer.estimate.tokens_per_s * 1e6

    def worth(self, answer: Answer) -> tuple[float, float]:
        """What is to be most; of equals, what is faster."""
        pace = answer.estimate.tokens_per_s
        match self.problem.wishes.objective:
            case "devices":
                return -answer.devices, pace
            case "money":
                return pace / price_per_hour(self.problem, answer.devices), pace
            case "tokens-per-device":
                return pace / answer.devices, pace
        return pace, pace

    def _refusal(self) -> str:
        """Why nothing will do: what is nearest to the wanted pace, or what the largest number of devices met."""
        near = [each for each in self.tried if each.candidate is not None]
        if near:
            best = max(near, key=lambda each: each.candidate.estimate.tokens_per_s if each.candidate else 0.0)
            return f"no plan is fast enough: the fastest that was found has {best.why}, on {best.devices} devices"
        alone = (
            f"; nor does any with fewer devices ({len(self.tried) - 1} numbers tried)" if len(self.tried) > 1 else ""
        )
        return self.tried[0].why + (alone if not self.problem.wishes.global_batch else "")
