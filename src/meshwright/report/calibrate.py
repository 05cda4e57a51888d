"""What `calibrate` does: rows chosen, constants fitted with a bar on a terminal, and what was found shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.cost.calibration import Calibration, public_calibration, read_calibration
from meshwright.errors import MeshwrightError, UnknownNameError, did_you_mean
from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.report.progress import progress
from meshwright.validation.calibrate import Calibrated, calibrate, unrelated
from meshwright.validation.constants import unfitted
from meshwright.validation.fit import STEPS
from meshwright.validation.rows import Measured, read_rows


def rows_to_fit(what: Sequence[str], without: str | None) -> list[Measured]:
    """The rows of files and of sources by name, of all that come with the package where none is named; `without`: less
    all of a source's lab and framework family. Raises DocumentError, UnknownNameError.
    """
    kept = read_rows()
    known = {row.source for row in kept}
    files = [name for name in what if Path(name).suffix == ".csv"]
    names = [name for name in what if name not in files]
    for name in [*names, *([without] if without else [])]:
        if name not in known:
            raise UnknownNameError(f"no row is of '{name}'; {did_you_mean(name, known)}")
    rows = [*(row for row in kept if row.source in names or not what), *(read_rows(files) if files else [])]
    if without is None:
        return rows
    left = set(map(id, unrelated(without, kept)))
    return [row for row in rows if id(row) in left]


def base_of(path: str | None, without: str | None) -> Calibration:
    """What is not fitted is from here: a file, or the public one; where a source is left out, less what runs have said,
    since those were of that source too. Raises DocumentError.
    """
    base = read_calibration(path) if path else public_calibration()
    return unfitted(base) if without else base


def fit_constants(rows: Sequence[Measured], base: Calibration, name: str) -> Calibrated:
    """With a bar on a terminal."""
    with progress("fit", STEPS) as advance:
        return calibrate(rows, base, name=name, told=lambda step, cost: advance())


def write_calibration(found: Calibrated, path: str) -> None:
    """As a document. Raises MeshwrightError where the file is not YAML by its name."""
    if Path(path).suffix not in (".yaml", ".yml"):
        raise MeshwrightError(f"{path}: a calibration is a YAML file; call it {Path(path).stem}.yaml")
    found.calibration.write(path)


def calibration_data(found: Calibrated) -> dict[str, Any]:
    """For `--json`."""
    return {
        "calibration": found.calibration.as_data(),
        "rows": found.rows,
        "median_abs_error": found.errors,
        "constants": {
            each.label: {
                "value": value,
                "guess": each.guess,
                "spread": each.spread,
                "source": each.source,
                "at_bound": each.label in found.fit.at_bound,
            }
            for each, value in zip(found.parameters, found.fit.values, strict=True)
        },
    }


def calibration_blocks(found: Calibrated) -> list[Block]:
    """Constants with their guesses, and how well they do on what they were fitted to."""
    rows = sum(found.rows.values())
    constants = [
        (
            each.label,
            f"{each.guess:.3g}",
            f"{value:.3g}",
            "at its bound" if each.label in found.fit.at_bound else "",
            each.source,
        )
        for each, value in zip(found.parameters, found.fit.values, strict=True)
    ]
    sources = [(source, str(count), f"{found.errors[source]:.1%}") for source, count in sorted(found.rows.items())]
    bounds = f"{len(found.fit.at_bound)} at a bound: {', '.join(found.fit.at_bound)}" if found.fit.at_bound else "none"
    return [
        Facts(
            "calibration",
            (
                ("name", found.calibration.name),
                ("fitted", f"{len(found.parameters)} constants to {rows} step times of {len(found.rows)} sources"),
                ("touched bounds", bounds),
            ),
        ),
        table("constants", "constant | >first guess | >fitted | | guess from", constants),
        table("error of what it was fitted to, family factors included", "source | >rows | >median", sources),
        Lines("", ("times that this calibration predicts leave the factors of framework families out",)),
    ]
