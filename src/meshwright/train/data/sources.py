"""Where rows come from: a built-in set, or files by their names."""

import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from meshwright.errors import MeshwrightError, did_you_mean, first_line
from meshwright.recipe.data import Data, Format
from meshwright.train.data.rows import HubRows, JsonLines, Listed, Parquet, Rows, Taken, TextFiles

_ENDINGS: dict[str, Format] = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst", ".py"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"), "images"),
}
_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")
"""What `datasets` leaves in a folder that it saved."""


def standard_library_files() -> list[Path]:
    """The modules of Python's own standard library, by name: real text, always at hand. Raises MeshwrightError where
    this Python comes without its source.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if sum(file.stat().st_size for file in files) < 2**16:
        raise MeshwrightError(f"{sysconfig.get_path('stdlib')} holds no source of the standard library to train on")
    return files


def standard_library_text(limit: int = 4_000_000) -> bytes:
    """These modules as one text, file after file, up to `limit` bytes. Raises MeshwrightError."""
    text = bytearray()
    for file in standard_library_files():
        text += file.read_bytes()
        if len(text) >= limit:
            break
    return bytes(text[:limit])


def read_rows(data: Data) -> Rows:
    """All rows of a source, `data.limit` at most. Raises MeshwrightError where there is none, or no way to read it."""
    if data.source in _BUILT_IN:
        rows = _BUILT_IN[data.source]()
    else:
        files = _files(data.source)
        kind = data.format or _format_of(data.source, files)
        rows = _READERS[kind](data, _of_format(kind, files))
    if not len(rows):
        raise MeshwrightError(f"data.source '{data.source}' holds nothing to learn from")
    return rows if data.limit is None or data.limit >= len(rows) else Taken(rows, range(data.limit))


def _files(source: str) -> list[Path]:
    """The files that a path or a pattern names, by name; of a folder all that are not hidden."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        inside = (file for file in path.rglob("*") if file.is_file())
        found = sorted(file for file in inside if not any(part[0] in "._" for part in file.relative_to(path).parts))
        if found:
            return found
        raise MeshwrightError(f"data.source '{source}' is a folder without files")
    if any(letter in source for letter in "*?["):
        found = sorted(
            file for file in Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))) if file.is_file()
        )
        if found:
            return found
        raise MeshwrightError(f"data.source: no file is named like '{source}'")
    raise MeshwrightError(f"data.source: there is no file or folder '{source}'; {did_you_mean(source, _BUILT_IN)}")


def _format_of(source: str, files: Sequence[Path]) -> Format:
    """What the names say, of a folder what most say. Raises MeshwrightError where they say nothing, or two things."""
    if _is_saved(source):
        return "huggingface"
    found = {_ENDINGS[file.suffix.lower()] for file in files if file.suffix.lower() in _ENDINGS}
    strict = found - {"text"} or found  # a README beside the data is none of it
    if len(strict) == 1:
        return strict.pop()
    said = (
        f"holds files of several formats ({', '.join(sorted(strict))})"
        if strict
        else "has no name that tells its format"
    )
    raise MeshwrightError(
        f"data.source '{source}' {said}; write data.format: text, jsonl, parquet, huggingface or images"
    )


def _is_saved(source: str) -> bool:
    """Whether `datasets` saved this folder."""
    return any((Path(source).expanduser() / name).is_file() for name in _SAVED)


def _of_format(kind: Format, files: Sequence[Path]) -> list[Path]:
    """Of several files those whose names fit the format, if any does."""
    return [file for file in files if _ENDINGS.get(file.suffix.lower()) == kind] or list(files)


def _hugging_face(data: Data, _: Sequence[Path]) -> Rows:
    """A folder that `datasets` saved, or one of files in a layout that it knows. Its own code alone is run."""
    import datasets

    try:
        place = str(Path(data.source).expanduser())
        found = datasets.load_from_disk(place) if _is_saved(place) else datasets.load_dataset(place)
    except Exception as error:  # noqa: BLE001  its readers raise whatever theirs do
        raise MeshwrightError(f"data.source '{data.source}' cannot be read by datasets: {first_line(error)}") from None
    if isinstance(found, datasets.DatasetDict):
        wanted = data.split or "train"
        if wanted not in found:
            raise MeshwrightError(f"data.source '{data.source}' has no split '{wanted}'; {did_you_mean(wanted, found)}")
        found = found[wanted]
    return HubRows(found)


def _images(data: Data, files: Sequence[Path]) -> Rows:
    """Images in a folder for each class, which are numbered by their names."""
    names = sorted({file.parent.name for file in files})
    columns = data.columns
    return Listed([{columns.image: file, columns.label: names.index(file.parent.name)} for file in files])


def _digits() -> Rows:
    """1,797 images of 8 x 8 pixels from 0 to 16 (Alpaydin and Kaynak 1998), which scikit-learn ships."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MeshwrightError("data.source 'digits' comes with scikit-learn: pip install scikit-learn") from None
    found = load_digits()
    images = (found.images * (255 / 16)).round().astype("uint8")
    return Listed([{"image": image, "label": int(label)} for image, label in zip(images, found.target, strict=True)])


_BUILT_IN: dict[str, Callable[[], Rows]] = {
    "stdlib": lambda: TextFiles(standard_library_files(), errors="replace"),
    "digits": _digits,
}
_READERS: dict[Format, Callable[[Data, Sequence[Path]], Rows]] = {
    "text": lambda _, files: TextFiles(files),
    "jsonl": lambda _, files: JsonLines(files),
    "parquet": lambda _, files: Parquet(files),
    "huggingface": _hugging_face,
    "images": _images,
}
