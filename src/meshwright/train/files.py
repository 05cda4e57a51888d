"""Files that are whole, or not there: written, brought to the disk, and only then given their name."""

import os
import zlib
from pathlib import Path

_READ_AT_ONCE = 2**24  # bytes


def checksum(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file."""
    size = found = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_AT_ONCE):
            size, found = size + len(piece), zlib.crc32(piece, found)
    return [size, found]


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
