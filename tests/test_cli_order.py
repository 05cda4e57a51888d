"""`meshwright estimate --order`: any order of a pipeline's actions, from the table that torch writes."""

from pathlib import Path
from typing import Any

import pytest

from meshwright.plan.orders import orders
from meshwright.plan.words import Schedule
from tests.test_broken_files import run
from tests.test_cli import as_json

MICRO_BATCHES = 4
PLACES: dict[Schedule, tuple[int, ...]] = {"1f1b": (0, 1), "interleaved": (0, 1, 0, 1), "zbv": (0, 1, 1, 0)}
PIPELINE = ("--model", "gpt2", "--cluster", "2xh100", "--seq", "256", "--global-batch", "16", "--pp", "2")


def written(folder: Path, schedule: Schedule) -> str:
    """The path of a plan of two groups under a schedule."""
    path = str(folder / "plan.yaml")
    more = ("--virtual", "2") if schedule == "interleaved" else ("--schedule", schedule)
    code, _, err = run("estimate", *PIPELINE, "--micro-batches", str(MICRO_BATCHES), *more, "-o", path)
    assert (code, err) == (0, "")
    return path


def dumped(folder: Path, schedule: Schedule, form: str) -> str:
    """The path of the table that torch dumps for the schedule."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    found = orders(schedule, PLACES[schedule], MICRO_BATCHES)
    actions = {
        rank: [schedules._Action.from_str(str(action)) for action in str(order).split()]
        for rank, order in enumerate(found)
    }
    runtime = object.__new__(schedules._PipelineScheduleRuntime)
    runtime.pipeline_order = actions
    gathered = {rank: schedules._add_unshard_reshard(each) for rank, each in actions.items()}
    runtime.pipeline_order_with_comms = schedules._add_send_recv(
        gathered, lambda stage: PLACES[schedule][stage], len(PLACES[schedule])
    )
    path = folder / f"{form}.csv"
    runtime._dump_csv(path, format=form)
    assert ("SEND_F" in path.read_text()) == (form == "compute_comms")
    return str(path)


def without_notes(data: dict[str, Any]) -> dict[str, Any]:
    """An estimate as JSON, but for its notes."""
    return {name: value for name, value in data.items() if name != "notes"}


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
@pytest.mark.parametrize("schedule", list(PLACES))
def test_the_table_that_torch_dumps_of_a_schedule_is_estimated_as_that_schedule(
    schedule: Schedule, form: str, tmp_path: Path
) -> None:
    plan = written(tmp_path, schedule)
    alone, read = as_json("estimate", plan), as_json("estimate", plan, "--order", dumped(tmp_path, schedule, form))
    assert without_notes(read) == without_notes(alone)
    said = f"actions are in the order that was given: the schedule '{schedule}' has no effect"
    assert said in read["notes"]
    assert said not in alone["notes"]


def test_another_order_is_another_estimate(tmp_path: Path) -> None:
    """All forwards of both of a group's stages before any backward keep more than interleaved turns do."""
    plan, table = written(tmp_path, "interleaved"), tmp_path / "order.csv"
    lines = [
        [f"{stage}{letter}{number}" for letter, mine in (("F", (low, high)), ("B", (high, low))) for stage in mine
         for number in range(MICRO_BATCHES)]
        for low, high in ((0, 2), (1, 3))
    ]  # fmt: skip
    table.write_text("\n".join(map(",".join, lines)))
    alone, read = as_json("estimate", plan), as_json("estimate", plan, "--order", str(table))
    assert read["memory_peak_bytes"] > alone["memory_peak_bytes"]
    assert read["step_time_s"] != alone["step_time_s"]


def test_an_order_may_be_one_that_no_schedule_of_ours_allows(tmp_path: Path) -> None:
    """Stages 0 and 1 lie in turns on two groups, which 1f1b refuses, and the order gives them their place."""
    path, table = Path(written(tmp_path, "interleaved")), tmp_path / "order.csv"
    path.write_text(path.read_text().replace("schedule: interleaved", "schedule: 1f1b"))
    table.write_text("\n".join(str(o).replace(" ", ",") for o in orders("interleaved", (0, 1, 0, 1), MICRO_BATCHES)))
    assert "stages-lie-as-the-schedule-needs" in run("estimate", str(path))[2]
    assert as_json("estimate", str(path), "--order", str(table))["step_time_s"] > 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, "cannot read {path}: No such file or directory"),
        ("0F0,0X0", "schedule table, line 1: '0X0' is no action; write it like '0F1'"),
        ("0F0,0B0\n1F0,1B0", "{path}: stage 0 has micro-batches 0; the plan has 0-3"),
        ("0F0,2F0,2B0,0B0\n1F0,1B0", "{path}: its lines have stages 0 2 | 1; the groups of the plan have 0 | 1"),
        (
            "0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3",
            "stages 0, 1 wait for each other in a circle",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_plan_is_refused(table: str | None, said: str, tmp_path: Path) -> None:
    plan, path = written(tmp_path, "1f1b"), tmp_path / "order.csv"
    if table is not None:
        path.write_text(table)
    code, out, err = run("estimate", plan, "--order", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(said.format(path=path))
