"""Folders that are written whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright.errors import MeshwrightError


def write_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write to a new folder, which then gets its name at once. Where several processes do it at a time, the
    first one's stays. Raises MeshwrightError where it cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-", ignore_cleanup_errors=True) as partial:
            inside = Path(partial, "whole")
            inside.mkdir()
            fill(inside)
            _rename(inside, folder)
    except OSError as error:
        said = error.strerror or f"{error}; is the disk full?"  # as numpy says it
        raise MeshwrightError(f"cannot write {folder}: {said}") from None


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
