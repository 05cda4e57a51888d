"""Real rows, predicted."""

import pytest

from meshwright.cost.calibration import IDEAL
from meshwright.cost.estimate import estimate_plan
from meshwright.validation import score as module
from meshwright.validation.rows import DATA, Measured, read_rows
from meshwright.validation.score import Scored, Task, score, score_rows
from meshwright.validation.setting import setting_of
from tests.validation.build import measured


@pytest.fixture(scope="module")
def rows() -> list[Measured]:
    return read_rows([DATA / "korthikanti2022.csv"])


def test_a_prediction_is_the_estimate_of_the_rows_setting(rows: list[Measured]) -> None:
    found = score(Task(rows[0], IDEAL))
    estimate = estimate_plan(setting_of(rows[0]), IDEAL)
    assert found.predicted is not None
    assert found.predicted.seconds == estimate.step_time_s
    assert sum(found.predicted.parts.values()) == pytest.approx(estimate.step_time_s)
    assert found.predicted.running_out == max(each.out_of_memory for each in estimate.memory)
    assert (found.device, found.lab) == ("a100-80gb", "nvidia")
    assert found.predicted.full_recompute is None
    assert "tp 8" in found.predicted.plan


def test_a_row_that_cannot_be_said_is_skipped_with_the_reason(rows: list[Measured]) -> None:
    computed = next(row for row in rows if row.text("status") == "memory_estimate")
    found = score(Task(computed))
    assert (found.used, found.error) == (False, None)
    assert "memory_estimate" in found.reason


def test_full_recompute_is_predicted_beside_where_the_row_says_nothing() -> None:
    row = next(row for row in read_rows([DATA / "nemo_docs.csv"]) if score(Task(row, IDEAL)).used)
    found = score(Task(row, IDEAL))
    assert row.text("recompute") == ""
    assert found.predicted is not None
    assert found.predicted.full_recompute is not None
    assert 1.1 < found.predicted.full_recompute / found.predicted.seconds < 1.5


def test_many_processes_give_what_one_gives_in_the_order_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in read_rows([DATA / "vtrain_single.csv"]) if row.count("n_layers") <= 12][:20]
    tasks = [Task(row, IDEAL) for row in rows]
    monkeypatch.setattr(module, "_ALONE", 5)
    monkeypatch.setattr(module, "_AT_ONCE", 3)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert [_figures(each) for each in score_rows(tasks)] == [_figures(score(task)) for task in tasks]


def _figures(found: Scored) -> tuple[object, ...]:
    return found.row.place, found.predicted, found.reason


def test_a_fault_of_ours_names_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(row: Measured) -> None:
        raise ZeroDivisionError(row.source)

    monkeypatch.setattr(module, "setting_of", broken)
    with pytest.raises(ZeroDivisionError) as found:
        score(Task(measured()))
    assert found.value.__notes__ == ["while scoring rows.csv:2"]


def test_the_chance_of_running_out_is_that_of_devices_and_hosts() -> None:
    """A trillion parameters, with what layers keep, rest on the hosts of 128 A100, which are fuller than these."""
    rows = read_rows([DATA / "pytorch_blogs.csv"])
    [row] = [
        row
        for row in rows
        if row.text("model_name") == "GPT-1T" and "CPU offload" in row.text("zero_stage_or_sharding")
    ]
    estimate, found = estimate_plan(setting_of(row)), score(Task(row)).predicted
    assert found is not None
    [host] = estimate.hosts
    assert host.capacity == 1152 * 2**30  # Amazon's p4d, which its network tells
    assert found.running_out == host.out_of_memory > max(each.out_of_memory for each in estimate.memory)
