import math
import statistics
from dataclasses import replace

import pytest

from meshwright.cost.calibration import public_calibration
from meshwright.cost.estimate import estimate_plan
from meshwright.errors import MeshwrightError
from meshwright.report.calibrate import base_of
from meshwright.validation.calibrate import calibrate, unrelated
from meshwright.validation.constants import CLOCKED, apply, constants_for, guessed, kin_of
from meshwright.validation.frameworks import framework_of
from meshwright.validation.predictor import Job, Predictor
from meshwright.validation.rows import read_rows
from meshwright.validation.setting import setting_of

ROWS = [row for row in read_rows() if row.source == "llm_foundry" and row.text("gpu").startswith("A100-80GB")][:30:3]


def with_constants(**changes: float):
    """The guesses for an A100, some of them changed."""
    constants = constants_for(["a100-80gb"])
    values = [changes.get(each.name, each.guess) for each in constants]
    return apply(public_calibration(), constants, values, ["a100-80gb"])


def seconds(row, calibration):
    return estimate_plan(setting_of(row), calibration).step_time_s


def test_a_fit_comes_near_the_times_that_it_was_given() -> None:
    true, guessed = with_constants(matmul=0.74, memory=0.6), with_constants()
    rows = [replace(row, fields=row.fields | {"measured_iter_time_s": str(seconds(row, true))}) for row in ROWS]
    before = statistics.median(abs(seconds(row, guessed) / row.seconds - 1) for row in rows)
    found = calibrate(rows, public_calibration(), name="again")
    assert found.rows == {"llm_foundry": len(ROWS)}
    assert found.errors["llm_foundry"] < before / 2
    fitted = found.calibration
    assert fitted.name == "again"
    assert fitted.devices["a100-80gb"].matmul < 0.84  # the first guess is 0.86
    assert fitted.devices["a100-80gb"].memory < 0.74  # the first guess is 0.75
    assert fitted.devices["h100"].matmul == public_calibration().devices["h100"].matmul  # nothing ran there
    for row in rows:
        predicted = seconds(row, fitted) * fitted.software["pytorch-fsdp"]
        assert predicted == pytest.approx(row.seconds, rel=0.10)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(MeshwrightError, match="8 timed rows or more; 3 can be used"):
        calibrate(ROWS[:3], public_calibration(), name="few")


def test_a_blind_fit_leaves_out_the_lab_and_the_framework_family() -> None:
    rows = read_rows()
    for source in ("megatron_sc21", "llm_foundry", "internevo"):
        own = [framework_of(row) for row in rows if row.source == source]
        left = [framework_of(row) for row in unrelated(source, rows)]
        assert left
        assert not {each.lab for each in own} & {each.lab for each in left}
        assert not {each.family for each in own} & {each.family for each in left}


def test_processes_time_rows_as_an_estimate_does() -> None:
    inputs, calibration = [setting_of(row) for row in ROWS[:4]], with_constants()
    with Predictor(inputs) as predictor:
        first, second = predictor.times([Job(calibration, [0, 1, 2, 3]), Job(calibration, [2])])
    expected = [math.log(seconds(row, calibration)) for row in ROWS[:4]]
    assert first.tolist() == pytest.approx(expected, rel=1e-12)
    assert [math.isnan(each) for each in second] == [True, True, False, True]


def test_a_blind_fit_begins_from_guesses_and_not_from_what_the_left_out_runs_said() -> None:
    """NVIDIA alone measured on B200: without its runs, what is known is what matrices alone reach."""
    known = public_calibration()
    blind, seen = (base_of(None, without).device("b200") for without in ("mlperf", None))
    guesses = {each.name: each.guess for each in constants_for(["b200"])}
    assert (blind.matmul, blind.own_flash, blind.memory) == tuple(
        guesses[name] for name in ("matmul", "own_flash", "memory")
    )
    assert seen == known.device("b200")
    assert base_of(None, "mlperf").device("cpu") == known.device("cpu")


def test_each_constant_says_where_its_guess_is_from() -> None:
    said = {each.name: each.source for each in constants_for(["h100"])}
    assert "issue 147971" in said["by_rows"]
    assert "Shah 2024" in said["own_flash"]
    assert not said["contention"]
    for chip in ("v100", "b200", "mi300x"):  # nobody's readings of another chip
        said = {each.name: each.source for each in constants_for([chip])}
        assert not any(said.get(name) for name in ("flash", "own_flash", "inner"))


def test_packages_of_one_chip_share_its_constants() -> None:
    assert kin_of("a100-40gb") == kin_of("a800") == "a100"
    assert kin_of("t4") == "t4"
    devices = ["h100", "h100-500w", "a100-80gb"]
    constants = constants_for(devices)
    fitted = apply(public_calibration(), constants, [each.guess for each in constants], devices).devices
    assert fitted["h100-500w"].matmul == pytest.approx(fitted["h100"].matmul * CLOCKED["h100-500w"], abs=1e-4)
    assert fitted["h100-500w"].memory == fitted["h100"].memory
    assert fitted["a100-80gb"].own_flash is None


def test_devices_that_nothing_is_known_of_have_what_is_fitted_for_all_and_guesses() -> None:
    constants = constants_for(["a100-80gb"])
    values = [each.guess * 0.9 for each in constants]
    others = apply(guessed(public_calibration()), constants, values, ["a100-80gb"]).others
    assert others.edge == pytest.approx(270)
    assert (others.matmul, others.memory, others.softmax) == (0.60, 0.75, 32.0)
