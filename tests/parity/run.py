"""`make parity`: every case of the array, over a pool of runners, and docs/parity.md.

    python -m tests.parity.run                 all; what was proven of the same sources is not run again
    python -m tests.parity.run --case NAME     one case, here
    python -m tests.parity.run --limit 60      so many more, and no document

A red case ends the run, exit status 1, with the line that runs it again. Results lie in build/parity.jsonl.
"""

import argparse
import hashlib
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import util
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError
from tests.parity.array import FACTORS, SEED, Row, case_of, refusal
from tests.parity.cover import covering_array
from tests.parity.draws import drawn
from tests.parity.families import FLOAT32, MIXED
from tests.parity.harness import Case, in_bf16, in_float32
from tests.parity.proof import Pools, prove_case
from tests.parity.report import Result, written

ROOT = Path(__file__).parents[2]
ARRAY, RESULTS = Path(__file__).with_name("array.json"), ROOT / "build" / "parity.jsonl"
DOCUMENT = ROOT / "docs" / "parity.md"
RANDOM_PLANS = 300


def rows() -> list[Case]:
    """The cases of the array that is kept."""
    cases = [case_of(Row(*row)) for row in json.loads(ARRAY.read_text())["rows"]]
    assert None not in cases
    return [case for case in cases if case is not None]


def names() -> list[str]:
    """Every case: rows of the array that is kept, then random plans, then families in narrower dtypes."""
    kept = json.loads(ARRAY.read_text())["rows"]
    exact = [f"row-{number:03}" for number in range(len(kept))] + [f"random-{n:03}" for n in range(RANDOM_PLANS)]
    return exact + [f"float32-{name}" for name in FLOAT32] + [f"bf16-{name}" for name in MIXED]


def case_named(name: str) -> tuple[Case, Counter[str]]:
    """A case by its name, and what rules refused before a random one."""
    kind, _, number = name.partition("-")
    if kind in ("float32", "bf16"):
        return (in_float32(FLOAT32[number]) if kind == "float32" else in_bf16(MIXED[number])), Counter()
    if kind == "random":
        return drawn(int(number))
    case = case_of(Row(*json.loads(ARRAY.read_text())["rows"][int(number)]))
    assert case is not None, f"{name} is no case"
    return case, Counter()


def make_array() -> None:
    """Find the rows anew and keep them, with the pairs that rules refuse; then comes `tests.parity.known`."""
    found, refused = covering_array(list(FACTORS.values()), refusal, SEED)
    lists = {"rows": found, "refused": [[*pair, why] for pair, why in refused.items()]}
    ARRAY.write_text(json.dumps(lists).replace("], [", "],\n["))


def sources() -> str:
    """A digest of what a proof depends on."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in ("src/meshwright/runtime", "src/meshwright/plan", "src/meshwright/model", "tests/parity"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def known(version: str) -> dict[str, Result]:
    """Results of these sources that hold."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    found = [json.loads(line) for line in lines]
    return {each["name"]: Result(**each["result"]) for each in found if each["sources"] == version}


_pools: list[Pools] = []


def _run(name: str) -> Result:
    """In a runner: one case."""
    if not _pools:
        _pools.append(Pools())
        util.Finalize(_pools[0], _pools[0].__exit__, args=(None, None, None), exitpriority=10)
    case, refused = case_named(name)
    started = time.monotonic()
    try:
        proven = prove_case(_pools[0], case)
    except MeshwrightError as error:
        return Result(name, False, 1.0, f"{type(error).__name__}: {error}", time.monotonic() - started, dict(refused))
    return Result(name, proven.holds, proven.error, proven.says, time.monotonic() - started, dict(refused))


def run_all(wanted: Iterable[str], version: str) -> tuple[list[Result], Result | None]:
    """Run cases over runners, and keep what holds. Ends with the first red one."""
    wanted = list(wanted)
    RESULTS.parent.mkdir(exist_ok=True)
    found: list[Result] = []
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), context) as runners, RESULTS.open("a") as kept:
        waiting = [runners.submit(_run, name) for name in wanted]
        for done in as_completed(waiting):
            result = done.result()
            if not result.holds:
                runners.shutdown(wait=False, cancel_futures=True)
                return found, result
            found.append(result)
            kept.write(json.dumps({"name": result.name, "sources": version, "result": vars(result)}) + "\n")
            kept.flush()
            _progress(len(found), len(wanted), result)
    return found, None


def _progress(done: int, count: int, result: Result) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == count else ""
        sys.stderr.write(f"\r{done} of {count} cases, {result.name} {result.error:.0e} {end}")
        sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="make parity", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--case", help="run this one alone")
    parser.add_argument("--limit", type=int, help="run so many that are not known, and write no document")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # the rules' warnings, once for each case
    if chosen.case:
        return _one(chosen.case)
    if chosen.limit is None or not ARRAY.exists():
        make_array()
    version = sources()
    have = known(version)
    left = [name for name in names() if name not in have][: chosen.limit]
    found, red = run_all(left, version)
    if red is not None:
        sys.stderr.write(f"\n{red.name} is red: {red.says}\nrun it again with: make parity CASE={red.name}\n")
        return 1
    if chosen.limit is None:
        results = {**have, **{each.name: each for each in found}}
        refused: list[list[Any]] = json.loads(ARRAY.read_text())["refused"]
        DOCUMENT.write_text(written([results[name] for name in names()], refused))
    return 0


def _one(name: str) -> int:
    case, _ = case_named(name)
    sys.stdout.write(f"{case}\n")
    with Pools() as pools:
        proven = prove_case(pools, case)
    sys.stdout.write(f"{name} {'holds' if proven.holds else 'is red'}: {proven.error:.1e} {proven.says}\n")
    return 0 if proven.holds else 1


if __name__ == "__main__":
    sys.exit(main())
