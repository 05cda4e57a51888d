"""Our plans beside those that experts ran: every published run of grade A on sixteen devices or more, searched anew.

Run `.venv/bin/python benchmarks/plan_vs_published.py [--most N] [--seconds S] [--gap G] [--kept FILE]`. Each request
(model, cluster, recipe, kernels) is searched once, scope `any`, without being given the published plans; its answer is
held against the fastest of these that fits, both by our own estimate. With `--kept`, what a former run found is read
from there and not searched again. Printed are:

* requests where the search is slower: holes in its space, by kind;
* published plans that we predict to run out of memory, or cannot express: failures of the model;
* gains over 15 %: suspects, each with the parts of the step that would have to be measured to believe it.

Exits with 1 where the search is slower, but for what its time limit and its gap explain.
"""

import argparse
import hashlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.table import Table

from meshwright.cost.calibration import public_calibration
from meshwright.cost.estimate import Estimate, estimate_plan
from meshwright.errors import PlanError
from meshwright.plan.rules import Inputs
from meshwright.plan.spec import Plan
from meshwright.search.answer import Progress
from meshwright.search.choice import degrees_of
from meshwright.search.explain import REASONS
from meshwright.search.near import beyond, coordinates
from meshwright.search.planner import Search
from meshwright.search.problem import Problem, Wishes
from meshwright.validation.described import describe_plan
from meshwright.validation.rows import Measured, read_rows
from meshwright.validation.setting import setting_of
from meshwright.validation.unusable import Unusable

LEAST_DEVICES = 16
SUSPECT = 0.15
EQUAL = 1e-9
FOREVER = 1e6
console = Console(width=170)


@dataclass(frozen=True)
class Request:
    """What several published runs were asked for."""

    key: str
    """Of its first row, whatever is changed in ours."""
    source: str
    rows: tuple[tuple[Measured, Inputs], ...]

    @property
    def first(self) -> Inputs:
        """The inputs of the first run; all have its model, cluster and recipe."""
        return self.rows[0][1]


@dataclass(frozen=True)
class Found:
    """What became of a request. Seconds by our estimate."""

    key: str
    source: str
    what: str
    devices: int
    runs: int
    too_large: int
    """Published runs that we predict to run out of memory, and that did not."""
    published: float | None
    """The fastest published plan that fits."""
    their_plan: str
    ours: float | None
    our_plan: str
    bound: float
    search_s: float
    stopped: str
    differs: tuple[str, ...]
    parts: dict[str, float]
    """Seconds that the published plan has more, by part."""

    @property
    def gain(self) -> float | None:
        """Of the published step time, what ours saves."""
        return 1 - self.ours / self.published if self.ours is not None and self.published is not None else None


def requests(rows: Sequence[Measured]) -> tuple[list[Request], Counter[str]]:
    """Equal requests once, sources in turns; and why rows make none."""
    groups: dict[str, list[tuple[Measured, Inputs]]] = defaultdict(list)
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            inputs = setting_of(row)
        except Unusable as error:
            refused[f"{row.source}: {error}"] += 1
            continue
        names = (inputs.model.fingerprint, inputs.cluster.fingerprint, inputs.recipe.fingerprint)
        groups["|".join((*map(str, names), str(inputs.plan.execution)))].append((row, inputs))
    by_source: dict[str, list[Request]] = defaultdict(list)
    for members in groups.values():
        first = members[0][0]
        name = hashlib.sha256(first.identity.encode()).hexdigest()[:16]
        by_source[first.source].append(Request(name, first.source, tuple(members)))
    turns = zip_longest(*by_source.values())
    return [request for turn in turns for request in turn if request is not None], refused


def compare(request: Request, seconds: float, gap: float) -> Found:
    """Search one request, and hold the answer against the fastest published plan that fits."""
    inputs, calibration = request.first, public_calibration()
    known = [(estimate_plan(each, calibration), each, row) for row, each in request.rows]
    fitting = [(found, each) for found, each, _ in known if found.fits]
    theirs, plan = min(fitting, key=lambda pair: pair[0].step_time_s) if fitting else (None, None)
    wishes = Wishes(execution=inputs.plan.execution, time_limit=FOREVER, gap=gap)
    problem = Problem(inputs.model, inputs.cluster, inputs.recipe, wishes)
    began = time.process_time()
    try:
        answer = Search(problem, calibration, limit(seconds)).run()
    except PlanError as error:
        answer, refused = None, str(error)
    except KeyboardInterrupt:
        answer, refused = None, "no plan within the time limit"
    return Found(
        key=request.key,
        source=request.source,
        what=f"{inputs.model.name}, {inputs.cluster.name}, {inputs.recipe.global_batch} x {inputs.recipe.sequence}",
        devices=inputs.cluster.size,
        runs=len(request.rows),
        too_large=sum(not found.fits and not row.ran_out for found, _, row in known),
        published=theirs.step_time_s if theirs else None,
        their_plan=describe_plan(plan.plan) if plan else "",
        ours=answer.estimate.step_time_s if answer else None,
        our_plan=degrees_of(answer.best.choice) if answer else refused,
        bound=answer.bound if answer else 0.0,
        search_s=time.process_time() - began,
        stopped=f"the time limit of {seconds:g} s" if answer and answer.stopped else "",
        differs=tuple(kinds(plan, answer.plan)) if plan and answer else (),
        parts=more_parts(theirs, answer.estimate) if theirs and answer else {},
    )


def limit(seconds: float) -> Callable[[Progress], None]:
    """What ends a search after so many seconds of the processor, whatever else the machine does."""
    began = time.process_time()

    def check(_: Progress) -> None:
        if time.process_time() - began > seconds:
            raise KeyboardInterrupt

    return check


def kinds(theirs: Inputs, ours: Plan) -> Iterator[str]:
    """What a published plan has that the search does not choose, and in what else the two differ."""
    yield from (f"beyond: {each}" for each in beyond(theirs.plan))
    if theirs.plan.schedule not in ("1f1b", "interleaved"):
        yield f"beyond: schedule {theirs.plan.schedule}"
    given = coordinates(theirs)
    found = coordinates(Inputs(ours, theirs.model, theirs.cluster, theirs.recipe))
    yield from given.changes(found)


def more_parts(theirs: Estimate, ours: Estimate) -> dict[str, float]:
    """Seconds that a published plan takes more, by what a step is lost to."""
    more = {
        reason: sum(theirs.parts.get(part, 0.0) - ours.parts.get(part, 0.0) for part in parts)
        for reason, parts in REASONS.items()
    }
    return {reason: seconds for reason, seconds in sorted(more.items(), key=lambda pair: -pair[1]) if seconds > 0}


def show(found: Sequence[Found], refused: Counter[str]) -> int:
    """Print the tables; gives how many requests the search is slower on, beyond its gap."""
    compared = [each for each in found if each.gain is not None]
    slower = [each for each in compared if each.gain is not None and each.gain < -EQUAL]
    by_source(found)
    listed("the search is slower", sorted(slower, key=lambda each: each.gain or 0.0))
    holes = Counter(kind for each in slower for kind in each.differs)
    for kind, count in holes.most_common():
        console.print(f"  {count:3d} x {kind}")
    suspects = [each for each in compared if each.gain is not None and each.gain > SUSPECT]
    listed(f"gains over {SUSPECT:.0%}: to be measured", sorted(suspects, key=lambda each: -(each.gain or 0.0)))
    failures(found, refused)
    return len(slower)


def by_source(found: Sequence[Found]) -> None:
    """One line for each source."""
    table = Table(title="searched anew")
    columns = ("source", "requests", "compared", "slower", "equal", "faster", "median gain", "most", "in time")
    for name in columns:
        table.add_column(name, justify="left" if name == "source" else "right")
    for source in dict.fromkeys(each.source for each in found):
        own = [each for each in found if each.source == source]
        gains = sorted(each.gain for each in own if each.gain is not None)
        signs = [sum(gain < -EQUAL for gain in gains), sum(abs(gain) <= EQUAL for gain in gains)]
        middle, most = (f"{gains[len(gains) // 2]:.1%}", f"{gains[-1]:.1%}") if gains else ("", "")
        done = sum(not each.stopped for each in own)
        counts = (len(own), len(gains), *signs, len(gains) - sum(signs))
        table.add_row(source, *map(str, counts), middle, most, str(done))
    console.print(table)


def listed(title: str, found: Sequence[Found]) -> None:
    """Requests with both plans."""
    table = Table(title=f"{title} ({len(found)})")
    for name in ("source", "request", "published", "s", "ours", "s", "gain", "gap", "more in the published step"):
        table.add_column(name, justify="right" if name in ("s", "gain", "gap") else "left")
    for each in found:
        parts = ", ".join(f"{seconds:.2g} s {reason}" for reason, seconds in list(each.parts.items())[:3])
        gap = f"{(each.ours or 0) / each.bound - 1:.1%}" if each.bound else ""
        plans = (each.their_plan, f"{each.published:.4g}", each.our_plan, f"{each.ours:.4g}")
        table.add_row(each.source, each.what, *plans, f"{each.gain:+.1%}", gap + "*" * bool(each.stopped), parts)
    console.print(table)


def failures(found: Sequence[Found], refused: Counter[str]) -> None:
    """What the model cannot explain."""
    large = [each for each in found if each.too_large]
    runs = sum(each.too_large for each in large)
    console.print(f"published runs that we predict to run out of memory: {runs}, in {len(large)} requests")
    for source, count in Counter({each.source: each.too_large for each in large}).most_common():
        console.print(f"  {source}: {count} in one request or more")
    nothing = [each for each in found if each.ours is None]
    console.print(f"requests for which we find no plan at all: {len(nothing)}")
    for each in nothing:
        console.print(f"  {each.source}: {each.what}: {each.our_plan[:150]}")
    console.print(f"runs that cannot be expressed: {sum(refused.values())}")
    for reason, count in refused.most_common():
        console.print(f"  {count} x {reason}")


def kept(path: Path | None) -> dict[str, Found]:
    """What a former run found."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["key"]: Found(**line | {"differs": tuple(line["differs"])}) for line in lines}


def main() -> int:
    """Search, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, help="requests; none: all")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the processor, for each search")
    parser.add_argument("--gap", type=float, default=Wishes().gap, help="that a search stops at")
    parser.add_argument("--again", action="store_true", help="search those that were slower again, and no others")
    parser.add_argument("--kept", type=Path, help="a file of results, added to")
    parser.add_argument("--source", action="append", help="its rows alone")
    parser.add_argument("--show", action="store_true", help="print what is kept, and search nothing")
    given = parser.parse_args()
    rows = [row for row in read_rows() if row.grade == "A" and row.count("n_gpus") >= LEAST_DEVICES]
    rows = [row for row in rows if not given.source or row.source in given.source]
    asked, refused = requests(rows)
    asked, known = asked[: given.most], kept(given.kept)
    for place, request in enumerate(asked, start=1):
        before = known.get(request.key)
        gain = None if before is None else before.gain
        slower = before is not None and (gain is None or gain < -EQUAL)
        if given.show or not (slower if given.again else before is None):
            continue
        found = compare(request, given.seconds, given.gap)
        known[request.key] = found
        console.print(
            f"{place} of {len(asked)}: {found.source}, {found.what}: gain {found.gain}, {found.search_s:.1f} s"
        )
        if given.kept:
            with given.kept.open("a") as stream:
                stream.write(json.dumps(asdict(found)) + "\n")
    console.print(f"{len(rows)} runs of grade A on {LEAST_DEVICES} devices or more; {len(asked)} distinct requests")
    lost = show([known[each.key] for each in asked if each.key in known], refused)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
