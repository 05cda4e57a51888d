"""What pydantic found wrong with a document, in our words: one line an error, `source:line: field: message`."""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from meshwright.errors import did_you_mean, printable

_MAX_ERRORS = 5
_MAX_SHOWN = 60
_LONG_QUOTE = re.compile(r"'([^']{60})[^']{4,}'")

Place = tuple[str | int, ...]
Lines = dict[Place, int]
"""The place of a field → the line that it stands on."""


class _Fault(NamedTuple):
    """One error: where in the data, which of a union's kinds it speaks of and where that union is, what it says."""

    place: Place
    union: Place | None
    kind: str | None
    detail: ErrorDetails

    @property
    def wrong_kind(self) -> bool:
        """True where the value at the union's place is not even of this kind (a list where a number could stand)."""
        literal = self.detail["type"] == "literal_error" and not isinstance(self.detail["input"], str)
        return self.place == self.union and (literal or self.detail["type"] in _KINDS)

    @property
    def of_other_keys(self) -> bool:
        """True where a record at the union's place has keys that this kind lacks, or lacks some that it has."""
        unknown = self.detail["type"] == "misplaced" and self.detail["ctx"]["hidden"]
        return self.place[:-1] == self.union and (unknown or self.detail["type"] == "missing")


def explain(error: ValidationError, source: str, lines: Lines | None = None, data: Any = None) -> str:
    """pydantic's errors in our words, at most five lines; `data` is what was read, `lines` where its fields stand."""
    found = [_fault(detail, data) for detail in error.errors(include_url=False)]
    said = list(dict.fromkeys(_sentence(fault, source, lines or {}) for fault in _telling(found)))
    if len(said) > _MAX_ERRORS:
        said[_MAX_ERRORS:] = [f"{source}: ... and {len(said) - _MAX_ERRORS} more"]
    return "\n".join(said)


def misplaced(place: Place, message: str, *, hidden: bool = False) -> PydanticCustomError:
    """An error for a validator to raise that is about something further inside: `place`, as seen from the validator.

    The last step of the place shows in the line alone where it is `hidden`, not in the field.
    """
    return PydanticCustomError("misplaced", "{message}", {"message": message, "place": list(place), "hidden": hidden})


def _fault(detail: ErrorDetails, data: Any) -> _Fault:
    """Tell the steps that are in the data from those that name a branch of a union or a validator."""
    place: list[str | int] = []
    union, kind, here = None, None, data
    for step in detail["loc"]:
        known = step in here if isinstance(here, dict) else isinstance(here, list | tuple) and step in range(len(here))
        if known or (data is None and not _is_label(step)):
            place.append(step)
            here = here[step] if known else None
        elif union is None and not str(step).startswith(("function-", "[key]")):
            union, kind = tuple(place), str(step)
    if detail["type"] == "missing" and data is not None:
        union = None if kind == detail["loc"][-1] else union
        place.append(detail["loc"][-1])
    elif detail["type"] == "misplaced":
        place += detail["ctx"]["place"]
    return _Fault(tuple(place), union, kind, detail)


def _is_label(step: str | int) -> bool:
    return str(step).startswith(("function-", "tagged-", "[key]"))


def _telling(found: list[_Fault]) -> Iterator[_Fault]:
    """The errors without those that only follow from another, or speak of a kind that the value plainly is not."""
    hopeless = {(fault.union, fault.kind) for fault in found if fault.wrong_kind or fault.of_other_keys}
    kinds: dict[Place | None, set[str | None]] = {}
    wanted: dict[Place | None, dict[str, None]] = {}
    around: set[Place] = set()
    for fault in found:
        kinds.setdefault(fault.union, set()).add(fault.kind)
        around.update(fault.place[:depth] for depth in range(len(fault.place)))
        if fault.wrong_kind:
            wanted.setdefault(fault.union, {})[_want(fault.detail)] = None
    for fault in found:
        rivals = kinds[fault.union] if fault.union is not None else {fault.kind}
        beaten = (fault.union, fault.kind) in hopeless and any((fault.union, kind) not in hopeless for kind in rivals)
        if beaten or (fault.place in around and fault.detail["type"] == "too_short"):
            continue
        if fault.wrong_kind and len(rivals) > 1:
            words = " or ".join(wanted[fault.union])
            yield fault._replace(detail=fault.detail | {"type": "wrong_kind", "ctx": {"wanted": words}})
        else:
            yield fault


def _sentence(fault: _Fault, source: str, lines: Lines) -> str:
    line = _line(fault.place, lines)
    where = f"{source}:{line}" if line else source
    kind = fault.detail["type"]
    named = ".".join(
        map(str, fault.place[:-1] if kind == "misplaced" and fault.detail["ctx"]["hidden"] else fault.place)
    )
    field = f"{named}: " if named else ""
    value = "" if kind in _SAY_IT_THEMSELVES else f" (got {shown(fault.detail['input'])})"
    words = _LONG_QUOTE.sub(r"'\1...'", _words(fault.detail))
    return printable(f"{where}: {field}{words}{value}")


def _line(place: Place, lines: Lines) -> int | None:
    """The line of a field, or of what it stands in where it is not there."""
    at: Place = ()
    line = lines.get(at)
    for step in place:
        found = next((longer for longer in ((*at, step), (*at, str(step))) if longer in lines), None)
        if found is None:
            break
        at, line = found, lines[found]
    return line


_KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("string_type", "string_unicode"), "text"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "a mapping"),
}
_SAY_IT_THEMSELVES = {"value_error", "misplaced", "missing", "too_short", "union_tag_invalid", "union_tag_not_found"}
_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "required key is missing",
    "finite_number": lambda _: "must be a finite number",
    "greater_than": lambda ctx: f"must be greater than {ctx['gt']:g}",
    "greater_than_equal": lambda ctx: f"must be at least {ctx['ge']:g}",
    "less_than": lambda ctx: f"must be less than {ctx['lt']:g}",
    "less_than_equal": lambda ctx: f"must be at most {_plain(ctx['le'])}",
    "too_short": lambda ctx: f"must have at least {_entries(ctx['min_length'])} (got {ctx['actual_length'] or 'none'})",
    "too_long": lambda ctx: f"must have at most {_entries(ctx['max_length'])}",
    "string_too_long": lambda ctx: f"must have at most {ctx['max_length']} characters",
    "string_pattern_mismatch": lambda ctx: _PATTERNS.get(ctx["pattern"], f"must match {ctx['pattern']}"),
    "union_tag_not_found": lambda ctx: f"required key is missing: {ctx['discriminator']}",
    "union_tag_invalid": lambda ctx: (
        f"no {ctx['discriminator']} is '{ctx['tag']}'; {_hint(ctx['tag'], ctx['expected_tags'])}"
    ),
    "wrong_kind": lambda ctx: f"must be {ctx['wanted']}",
}
WORD_PATTERN = r"^[a-z][a-z0-9_]*$"
LAYER_PATTERN = r"^[a-z][a-z0-9_]*(\.[0-9]{1,4})?$"
_PATTERNS: dict[str, str] = {
    WORD_PATTERN: "must be lower-case letters, digits and _, with a letter first",
    LAYER_PATTERN: "must be the name of one layer, as 'embed' or 'decoder.7'",
}


def _words(detail: ErrorDetails) -> str:
    kind, ctx = detail["type"], detail.get("ctx", {})
    if kind in _WORDS:
        return _WORDS[kind](ctx)
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}"
    if kind == "literal_error":
        guess = _hint(detail["input"], ctx["expected"])
        return f"must be {ctx['expected']}" + (f"; {guess}" if guess.startswith("did") else "")
    message = detail["msg"].removeprefix("Value error, ")
    return f"must {message.removeprefix('Input should ')}" if message.startswith("Input should ") else message


def _want(detail: ErrorDetails) -> str:
    return _KINDS.get(detail["type"]) or str(detail.get("ctx", {}).get("expected", "something else"))


def _hint(given: Any, expected: str) -> str:
    """'did you mean …?' from pydantic's list of the known, which reads `'a', 'b' or 'c'`."""
    return did_you_mean(str(given)[:_MAX_SHOWN], [word for word in expected.split("'")[1::2] if word])


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def shown(value: Any) -> str:
    """A value as an error message quotes it: short, whatever it is."""
    if value is None or isinstance(value, dict | list | tuple):
        return kind_of(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return (
            f"{value:g}"
            if abs(value) < 1
            else str(value)
            if abs(value) < 10**_MAX_SHOWN
            else "a number larger than any here"
        )
    text = printable(str(value))
    return f"'{text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + '...'}'"


def kind_of(value: Any) -> str:
    """What a piece of a document is, for a sentence."""
    names = {
        dict: "a mapping",
        list: "a list",
        tuple: "a list",
        str: "text",
        type(None): "nothing",
        bool: "true or false",
    }
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
