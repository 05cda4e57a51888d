"""Names of layers: `embed`, `decoder.7`, and the span `decoder.0-11` that stands for twelve of them."""

import re
from collections.abc import Iterable

MAX_LAYERS = 10_000
"""Layers are numbered below this; the deepest models that are trained have some hundreds."""
SPAN_PATTERN = r"^([a-z][a-z0-9_]*)(?:\.([0-9]{1,4})(?:-([0-9]{1,4}))?)?$"
_SPAN = re.compile(r"([a-z][a-z0-9_]*)(?:\.([0-9]+)(?:-([0-9]+))?)?")


def parse_span(span: str) -> tuple[str, range | None]:
    """'decoder.0-11' → ('decoder', range(0, 12)); 'embed' → ('embed', None). Raises ValueError."""
    match = _SPAN.fullmatch(span)
    if match is None:
        raise ValueError(f"'{span[:40]}' is no layer or span of layers; write 'embed', 'decoder.7' or 'decoder.0-11'")
    base, first, last = match.groups()
    if first is None:
        return base, None
    if max(len(first), len(last or "")) > len(str(MAX_LAYERS - 1)):
        raise ValueError(f"'{span[:40]}': layers are numbered from 0 to {MAX_LAYERS - 1}")
    numbers = range(int(first), int(last if last is not None else first) + 1)
    if not numbers:
        raise ValueError(f"span '{span}' runs backwards; write '{base}.{last}-{first}'")
    return base, numbers


def checked_span(span: str) -> str:
    """The span itself. Raises ValueError where it is none."""
    parse_span(span)
    return span


def span_names(span: str) -> list[str]:
    """'decoder.0-2' → ['decoder.0', 'decoder.1', 'decoder.2']."""
    base, numbers = parse_span(span)
    return [base] if numbers is None else [f"{base}.{index}" for index in numbers]


def format_spans(names: Iterable[str]) -> list[str]:
    """['decoder.0', 'decoder.1', 'head'] → ['decoder.0-1', 'head']: the fewest spans in the same order."""
    runs: list[tuple[str, int | None, int | None]] = []
    for name in names:
        base, numbers = parse_span(name)
        index = numbers[0] if numbers is not None else None
        if runs and index is not None and runs[-1][0] == base and runs[-1][2] is not None and runs[-1][2] + 1 == index:
            runs[-1] = (base, runs[-1][1], index)
        else:
            runs.append((base, index, index))
    return [
        base if first is None else f"{base}.{first}" if first == last else f"{base}.{first}-{last}"
        for base, first, last in runs
    ]
