"""The checkpoints of a run: a folder of them, of which `latest` names the last whole one."""

import re
import shutil
from pathlib import Path

from meshwright.train.checkpoint import FACTS
from meshwright.train.checkpoint_boxes import CheckpointError
from meshwright.train.files import sync_folder, write_synced

_NAME = re.compile(r"step-(\d{8})")
_LATEST = "latest"


class Checkpoints:
    """The folder `checkpoints` of a run's folder. Rank 0 alone changes it."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "checkpoints"

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / f"step-{step:08d}"

    def whole(self) -> list[Path]:
        """All whole checkpoints, the oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(each for each in self.folder.iterdir() if _NAME.fullmatch(each.name) and (each / FACTS).exists())

    def latest(self) -> Path | None:
        """The last whole one: what `latest` names, or, where that was lost, the highest step; none where there is
        none.
        """
        try:
            named = self.folder / (self.folder / _LATEST).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            named = None
        found = self.whole()
        return named if named in found else found[-1] if found else None

    def name_latest(self, place: Path) -> None:
        """Let `latest` name a whole checkpoint."""
        write_synced(self.folder / _LATEST, place.name + "\n")
        sync_folder(self.folder)

    def keep(self, newest: int) -> None:
        """Remove all whole checkpoints but the newest few, never what `latest` names; and what a run that was killed
        left half.
        """
        latest = self.latest()
        for old in self.whole()[:-newest]:
            if old != latest:
                old.rename(old.with_name(f".{old.name}.removed"))
        for half in self.folder.glob(".step-*"):
            shutil.rmtree(half, ignore_errors=True)


def step_of(place: Path) -> int:
    """The step of a whole checkpoint, by its name."""
    named = _NAME.fullmatch(place.name)
    assert named is not None, place
    return int(named[1])


def find(resume: str, run_folder: Path) -> Path | None:
    """The checkpoint that a run begins from, by `checkpoints.resume`; none: from its first step.

    Raises CheckpointError where a named one is none, or a run that is not to go on would write over another.
    """
    checkpoints = Checkpoints(run_folder)
    latest = checkpoints.latest()
    if resume == "latest":
        return latest
    if resume == "never":
        if latest is not None:
            raise CheckpointError(
                f"{run_folder} has the checkpoints of a run ({latest.name}): take another folder, or resume: latest"
            )
        return None
    place = Path(resume)
    found = place if (place / FACTS).exists() else Checkpoints(place).latest()
    if found is None:
        known = ", ".join(each.name for each in checkpoints.whole()) or "none"
        raise CheckpointError(f"{resume} is no checkpoint; {run_folder} has: {known}")
    return found
