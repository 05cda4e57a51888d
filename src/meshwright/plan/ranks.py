"""Lists of ranks in short: `0-7`, `0,2,4-7`, `0-14:2`, and blocks that repeat: `0-127*8+2048` is 0-127, 2048-2175, …

The notation keeps order and loses nothing, so that 16,384 devices stand on one line.
"""

import re
from collections.abc import Sequence

from meshwright.cluster.spec import MAX_DEVICES

_TERM = re.compile(r"([0-9]+)(?:-([0-9]+))?(?::([0-9]+))?((?:\*[0-9]+\+[0-9]+)*)")
_REPEAT = re.compile(r"\*([0-9]+)\+([0-9]+)")
_PLAIN = r"\s*[0-9]+(?:-[0-9]+)?(?::[0-9]+)?(?:\*[0-9]+\+[0-9]+)*\s*"
RANKS_PATTERN = f"^{_PLAIN}(?:,{_PLAIN})*$"
"""What `parse_ranks` reads, for a JSON Schema."""


def parse_ranks(text: str) -> tuple[int, ...]:
    """'0-3,8' → (0, 1, 2, 3, 8). Raises ValueError."""
    ranks: list[int] = []
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise ValueError(f"'{term[:40]}' is no list of devices; write '0-7', '0,2,4', '0-14:2' or '0-3*4+8'")
        if any(len(number) > len(str(MAX_DEVICES)) for number in re.findall("[0-9]+", term)):
            raise ValueError(f"'{term[:40]}': devices are numbered from 0 to {MAX_DEVICES - 1}")
        ranks += _block(*match.groups())
        if len(ranks) > MAX_DEVICES:
            raise ValueError(f"'{text[:40]}' names more than {MAX_DEVICES} devices")
    return tuple(ranks)


def _block(first: str, last: str | None, step: str | None, repeats: str) -> list[int]:
    start, stop, stride = int(first), int(last if last is not None else first), int(step or 1)
    if stop < start or stride < 1:
        raise ValueError(f"'{first}-{last}{':' + step if step else ''}' is empty; write the smaller device first")
    if (stop - start) // stride >= MAX_DEVICES:
        raise ValueError(f"'{first}-{last}' names more than {MAX_DEVICES} devices")
    block = list(range(start, stop + 1, stride))
    for count, shift in _REPEAT.findall(repeats):
        if not 1 <= len(block) * int(count) <= MAX_DEVICES:
            raise ValueError(
                f"'*{count}' names {'no devices' if int(count) == 0 else f'more than {MAX_DEVICES} devices'}"
            )
        block = [rank + turn * int(shift) for turn in range(int(count)) for rank in block]
    return block


def format_ranks(ranks: Sequence[int]) -> str:
    """(0, 1, 2, 3, 8) → '0-3,8': short, and `parse_ranks` gives the same list back."""
    whole = _as_block(list(ranks))
    if whole is not None:
        return whole
    terms, place = [], 0
    while place < len(ranks):
        end = place + 1
        while end < len(ranks) and ranks[end] == ranks[end - 1] + 1:
            end += 1
        terms.append(str(ranks[place]) if end - place == 1 else f"{ranks[place]}-{ranks[end - 1]}")
        place = end
    return ",".join(terms)


def _as_block(ranks: list[int]) -> str | None:
    """The list as one repeated block, where it is one."""
    if len(ranks) == 1:
        return str(ranks[0])
    if len(ranks) < 2 or ranks[1] <= ranks[0]:
        return None
    stride = ranks[1] - ranks[0]
    run = 2
    while run < len(ranks) and ranks[run] - ranks[run - 1] == stride:
        run += 1
    if run == 2 and len(ranks) > 2 and stride > 1:
        return None
    text = f"{ranks[0]}-{ranks[run - 1]}" + (f":{stride}" if stride > 1 else "")
    return _repeated(ranks, run, text)


def _repeated(ranks: list[int], size: int, text: str) -> str | None:
    while size < len(ranks):
        shift = ranks[size] - ranks[0]
        count = 1
        while ranks[count * size : (count + 1) * size] == [rank + count * shift for rank in ranks[:size]]:
            count += 1
        if count == 1 or shift <= 0:
            return None
        text, size = f"{text}*{count}+{shift}", size * count
    return text if size == len(ranks) else None
