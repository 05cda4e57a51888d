"""How blind a prediction is: with what it was fitted to, and whether one row of the source may set a factor.

blind      each source is scored with a calibration that was fitted without it, all sources of the same lab and all
           of the same framework family; the factor is 1
anchored   of each source and kind of device one row, the first by hash, sets a factor (measured over predicted);
           the others are scored
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.errors import DocumentError
from meshwright.validation.rows import Measured
from meshwright.validation.score import Scored, Task

FOLDS = Path(__file__).parent / "folds"
"""Calibrations that a lab, a framework family or both were left out of (`meshwright calibrate --without SOURCE`)."""
FOLD_OF: dict[str, str] = {
    **dict.fromkeys(("vtrain_single", "vtrain_multi", "bigscience", "hagemann2023", "zero_bubble"), "megatron-2022"),
    **dict.fromkeys(
        ("megatron_sc21", "korthikanti2022", "megatron_readme_2020", "megatron_readme_jan2021"),
        "megatron-2022-and-nvidia",
    ),
    **dict.fromkeys(
        ("dgxc_bench", "nemo_docs", "megatron_bridge", "megatron_moe_zoo", "mlperf", "primus_amd"), "nvidia"
    ),
    **dict.fromkeys(("llm_foundry", "fms_fsdp", "torchtitan", "pytorch_blogs"), "pytorch-fsdp"),
    "internevo": "internevo",
    "nanotron": "nanotron",
}
"""A source → the fold that neither its lab nor its framework family is in. Sources of one family whose labs have
nothing else share one."""


class Anchor(NamedTuple):
    """The row that sets a factor, and the factor."""

    row: Measured
    factor: float


def read_folds(sources: Iterable[str], folder: Path = FOLDS) -> dict[str, Calibration]:
    """The calibration of each source's fold. Raises DocumentError where one is missing."""
    files = {name: folder / f"{FOLD_OF.get(name, name)}.yaml" for name in sources}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        raise DocumentError(f"{folder}: there is no calibration without {', '.join(missing)}")
    read = {file: Calibration.read(file) for file in dict.fromkeys(files.values())}
    return {name: read[file] for name, file in files.items()}


def fold_tasks(rows: Iterable[Measured], folds: Mapping[str, Calibration]) -> list[Task]:
    """Each row with the calibration of its source's fold."""
    return [Task(row, folds[row.source]) for row in rows]


def first_by_hash(rows: Iterable[Measured]) -> Measured:
    """The row whose identity has the least SHA-256: a choice that nobody makes."""
    return min(rows, key=lambda row: hashlib.sha256(row.identity.encode()).hexdigest())


def anchors(scored: Iterable[Scored]) -> dict[tuple[str, str], Anchor]:
    """(source, device) → the row that sets its factor: of the timed rows of the best grade the first by hash."""
    kinds: dict[tuple[str, str], dict[str, list[Scored]]] = {}
    for each in scored:
        if each.timed:
            kinds.setdefault((each.row.source, each.device), {}).setdefault(each.row.grade, []).append(each)
    return {kind: _anchor(grades[min(grades)]) for kind, grades in kinds.items()}


def _anchor(scored: Sequence[Scored]) -> Anchor:
    chosen = first_by_hash(each.row for each in scored)
    error = next(each.error for each in scored if each.row is chosen)
    assert error is not None
    return Anchor(chosen, 1 / (1 + error))


def anchored(scored: Sequence[Scored]) -> list[Scored]:
    """Every row but the anchors, times multiplied by the factor of its source and device."""
    found = anchors(scored)
    taken = {id(anchor.row) for anchor in found.values()}
    left = [each for each in scored if id(each.row) not in taken]
    return [
        each.scaled(found[each.row.source, each.device].factor) if (each.row.source, each.device) in found else each
        for each in left
    ]
