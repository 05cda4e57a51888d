"""A system's keys as a table: the name of each, the field that it says, and both ways between their values.

One table is read to write files and to read them, so that the two cannot drift apart.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.errors import DocumentError
from meshwright.explain import shown
from meshwright.export.fields import Fields

Values = dict[str, Any]
"""What a file or a launch line says, by the system's own names; a flag without a value says True."""


class Nothing:
    """In place of a value: the key is not written."""


NOTHING = Nothing()


class Codec(NamedTuple):
    """From the system's value to ours, and back."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (
        not isinstance(value, int | str) and not (isinstance(value, float) and value % 1 == 0)
    ):
        raise ValueError("a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def _count(value: Any) -> int:
    found = _whole(value)
    if found < 1:
        raise ValueError("a whole number from 1 on")
    return found


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a number")
    try:
        return float(value)
    except ValueError:
        raise ValueError("a number") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a word")
    return value


def _truth(value: Any) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() in known:
        return known[str(value).lower()]
    raise ValueError("true or false")


WHOLE = Codec(_whole, lambda value: value)
COUNT = Codec(_count, lambda value: value)
REAL = Codec(_real, lambda value: value)
TEXT = Codec(_text, lambda value: value)
TRUTH = Codec(_truth, bool)
SETS = Codec(_truth, lambda value: True if value else NOTHING)
"""A flag that is there or not."""


def says(on: Any) -> Codec:
    """A flag whose presence says one value of a field."""

    def read(value: Any) -> Any:
        return on if _truth(value) else NOTHING

    return Codec(read, lambda value: True if value == on else NOTHING)


def words(known: Mapping[Any, Any]) -> Codec:
    """The system's words and ours. Of several for the same value, the first is written."""

    def read(value: Any) -> Any:
        if not isinstance(value, Hashable) or value not in known:
            raise ValueError(f"one of {', '.join(map(str, known))}")
        return known[value]

    def write(value: Any) -> Any:
        return next((theirs for theirs, ours in known.items() if ours == value), NOTHING)

    return Codec(read, write)


@dataclass(frozen=True)
class Key:
    """One key of a system: its name, our field, and how values go from one to the other."""

    name: str
    field: str
    codec: Codec = COUNT
    default: Any = NOTHING
    """What the field is where the key is left out; the key is not written for it."""
    others: tuple[str, ...] = ()
    """Older names, which are read and not written."""
    old: bool = False
    """Whether it is an older or another system's word, which is read and not written."""
    always: bool = False
    """Whether it is written for its default too."""


def plain(name: str) -> str:
    """A name in the one spelling in which all are compared: systems take `-` and `_` for the same.

    >>> plain("--tensor_model-parallel_size")
    'tensor-model-parallel-size'
    """
    return name.lstrip("-").replace("_", "-")


def spelled(values: Values, name: str) -> str | None:
    """How some values spell a name; none where they have it not.

    >>> spelled({"--micro_batch-size": 1}, "micro-batch-size")
    '--micro_batch-size'
    """
    return next((known for known in values if plain(known) == plain(name)), None)


def write_keys(keys: Iterable[Key], fields: Fields) -> Values:
    """What the keys say of some fields; fields that no key names are left out."""
    values: Values = {}
    for key in keys:
        if key.old:
            continue
        if fields.get(key.field, NOTHING) is not NOTHING and (key.always or fields[key.field] != key.default):
            value = key.codec.write(fields[key.field])
            if value is not NOTHING:
                values[key.name] = value
    return values


def read_keys(keys: Iterable[Key], values: Values, source: str) -> tuple[Fields, list[str]]:
    """The fields that some values say, and the names that no key has. Raises DocumentError for a value that is none,
    and where two keys say different things of one field.
    """
    by_name = {plain(name): key for key in keys for name in (key.name, *key.others)}
    fields: Fields = {}
    said: dict[str, str] = {}
    unknown = [name for name in values if plain(name) not in by_name]
    for name, key, value in _known(values, by_name):
        if value == "auto":  # transformers' Trainer fills it in
            unknown.append(f"{name}: auto")
            continue
        try:
            read = key.codec.read(value)
        except ValueError as error:
            raise DocumentError(f"{source}: {name}: must be {error} (got {shown(value)})") from None
        if read is NOTHING:
            continue
        if key.field in said and fields[key.field] != read:
            both = f"{said[key.field]} and {name}"
            what = f"{key.field} is {shown(fields[key.field])} by the one and {shown(read)} by the other"
            raise DocumentError(f"{source}: {both} contradict each other: {what}; leave one of them out")
        fields[key.field], said[key.field] = read, name
    for key in by_name.values():
        if key.default is not NOTHING:
            fields.setdefault(key.field, key.default)
    return fields, unknown


def _known(values: Values, by_name: Mapping[str, Key]) -> Iterator[tuple[str, Key, Any]]:
    for name, value in values.items():
        if plain(name) in by_name:
            yield name, by_name[plain(name)], value
