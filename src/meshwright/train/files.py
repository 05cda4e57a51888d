"""Files that are whole, or not there: written, brought to the disk, and only then given their name."""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

_READ_AT_ONCE = 2**24  # bytes


def checksums(folder: Path, files: Iterable[Path]) -> list[tuple[str, list[int]]]:
    """(name, [bytes, CRC-32]) of each file."""
    found = []
    for path in files:
        size = checksum = 0
        with path.open("rb") as file:
            while piece := file.read(_READ_AT_ONCE):
                size, checksum = size + len(piece), zlib.crc32(piece, checksum)
        found.append((str(path.relative_to(folder)), [size, checksum]))
    return found


def write_synced(path: Path, text: str) -> None:
    """Write a file, bring it to the disk, and give it its name."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
