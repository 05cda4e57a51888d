"""The forms in which systems keep their settings: flags of a launch line or shell script, JSON, YAML, TOML."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.errors import DocumentError
from meshwright.explain import kind_of
from meshwright.export.keys import Values, plain, spelled

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:\[@\]|:-([^}]*))?\}|(\w+))")
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-[0-9.]")
_CHOICE = re.compile(r"activation[_-]checkpoint:([\w-]+)")
"""torchtitan's way to choose a kind of configuration, which tyro has between arguments."""
_ENDS = {";", "|", "&&", "||", "&", ")", "2>&1", ">", ">>"}
LAUNCH = {"nproc-per-node": "devices_a_node", "nnodes": "nodes", "ntasks-per-node": "devices_a_node", "nodes": "nodes"}
"""Options of torchrun and Slurm that say how many devices there are."""
_ASKED = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_OF_SLURM = (
    ("nodes", re.compile(r"(?:^|\s)(?:--nodes[= ]|-N ?)(\d+)(?![-\d])")),
    ("devices_a_node", re.compile(r"(?:^|\s)--ntasks-per-node[= ]([2-9]|\d\d+)\b")),  # one task starts torchrun
    ("devices_a_node", re.compile(r"(?:^|\s)(?:--gpus-per-node[= ]|--gres[= ]gpu:)(?:[\w.-]+:)?(\d+)\b")),
)
"""What a script asks Slurm for (sbatch's manual), the later of two for the same."""


def write_flags(values: Values) -> str:
    """Flags, one a line, so that a shell's `$(cat FILE)` hands them over."""
    return "".join(f"{' '.join(_words(name, value))}\n" for name, value in values.items())


def _words(name: str, value: Any) -> Iterator[str]:
    yield name
    if value is not True:
        yield from map(str, value if isinstance(value, list | tuple) else [value])


def read_flags(tokens: list[str], source: str) -> Values:
    """Flags and what follows each → values. Raises DocumentError for a flag twice with different values."""
    values: Values = {}
    name = None
    for token in tokens:
        if choice := _CHOICE.fullmatch(token):
            _note(values, "activation_checkpoint.mode", [choice[1]], source)
        elif token.startswith("-") and not _NUMBER.match(token):
            name, equals, value = token.partition("=")
            _note(values, name, [value] if equals else [], source)
        elif name is not None:
            values[name] = [*values[name], token]
        elif token not in ("/", "\\"):
            values.setdefault("", []).append(token)
    for flag, found in values.items():
        values[flag] = True if not found else found[0] if len(found) == 1 and flag else found
    return values


def _note(values: Values, name: str, value: list[str], source: str) -> None:
    if spelled(values, name) is not None:
        raise DocumentError(f"{source}: {name} is given twice; leave one of them out")
    values[name] = value


def launch_tokens(text: str, source: str) -> tuple[list[str], dict[str, int]]:
    """The arguments of the program that a shell script starts, with its variables put in, and how many devices its
    launcher is told of. Raises DocumentError where quotes do not close.
    """
    known: dict[str, list[str]] = {}
    line: list[str] = []
    for words in _commands(text, source):
        assigned = _ASSIGNED.fullmatch(words[0])
        if assigned and len(words) == 1:
            known[assigned[1]] = _expanded([assigned[2]], known)
        elif words[0].endswith("=(") or (assigned and assigned[2].startswith("(")):
            name = words[0].partition("=")[0]
            known[name] = _expanded([word.strip("()") for word in [words[0].partition("=")[2], *words[1:]]], known)
        else:
            line = _better(line, _expanded(words, known))
    for value in known.values() if not _flags(line) else ():
        line = _better(line, value)
    return _arguments(line), _asked_of_slurm(text) | _devices(line)


def _commands(text: str, source: str) -> Iterator[list[str]]:
    """Words of each command; a command ends with its line where no quote or bracket is open."""
    joined = re.sub(r"\\\r?\n|(?<=\s)/\r?\n", " ", text)
    pending = ""
    for line in joined.splitlines():
        pending = f"{pending}\n{line}" if pending else line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        if words and re.match(r"\w+=\(", words[0]) and not pending.rstrip().endswith(")"):
            continue
        pending = ""
        if words:
            yield [word for word in words if word != "export"] or [""]
    if pending.strip():
        raise DocumentError(f"{source}: a quote or bracket is not closed")


def _expanded(words: list[str], known: Mapping[str, list[str]]) -> list[str]:
    """Words with variables put in; those that are not set stay as they are."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return " ".join(known[name]) if name in known else match[2] if match[2] is not None else match[0]

    found: list[str] = []
    for word in words:
        put = _VARIABLE.sub(value, word)
        found += put.split() if put != word or " " in put else [put]
    return [word.strip("\"'") for word in found if word]


def _flags(words: list[str]) -> int:
    return sum(word.startswith("--") for word in words)


def _better(line: list[str], other: list[str]) -> list[str]:
    """The command with more flags is the one that trains."""
    return other if _flags(other) > _flags(line) else line


def _program(line: list[str]) -> int:
    """Where the arguments of a script begin: after the first word that is one, or at the first flag."""
    scripts = [place for place, word in enumerate(line) if word.endswith((".py", "torchtitan.train"))]
    return scripts[0] + 1 if scripts else 0


def _arguments(line: list[str]) -> list[str]:
    words = line[_program(line) :]
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    return words[: ends[0]] if ends else words


def _asked_of_slurm(text: str) -> dict[str, int]:
    """Of a script's `#SBATCH` lines. What its launcher is told counts before it."""
    asked = " ".join(_ASKED.findall(text))
    return {field: int(found[-1]) for field, option in _OF_SLURM if (found := option.findall(asked))}


def _devices(line: list[str]) -> dict[str, int]:
    before = line[: _program(line)]
    found: dict[str, int] = {}
    for place, word in enumerate(before):
        name, equals, value = plain(word).partition("=") if word.startswith("--") else ("", "", "")
        value = value if equals else before[place + 1] if place + 1 < len(before) else ""
        if name in LAUNCH and value.isdecimal():
            found[LAUNCH[name]] = int(value)
    return found


def flattened(data: Any, at: str = "") -> Values:
    """Nested mappings as one, with dotted names; lists and scalars are values."""
    values: Values = {}
    for name, value in data.items():
        if isinstance(value, dict) and value:
            values |= flattened(value, f"{at}{name}.")
        else:
            values[f"{at}{name}"] = value
    return values


def nested(values: Values) -> dict[str, Any]:
    """The opposite of `flattened`."""
    data: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        place = data
        for step in outer:
            place = place.setdefault(step, {})
        place[last] = value
    return data


def write_json(values: Values) -> str:
    """Dotted names as a JSON document."""
    return json.dumps(nested(values), indent=2) + "\n"


def write_yaml(values: Values) -> str:
    """Dotted names as a YAML document, in YAML 1.1's spelling, which these systems read."""
    import yaml

    return yaml.safe_dump(nested(values), sort_keys=False)


def read_settings(name: str | Path, text: str) -> tuple[Values, dict[str, int]]:
    """What a text says by the system's names, with how many devices a launcher is told of: JSON, YAML or TOML by the
    file's name, flags alone, or a shell script. Raises DocumentError with its line where it is none.
    """
    if Path(name).suffix in DOCUMENTS:
        return flattened(_mapping(_load(Path(name), text), str(name))), {}
    if text.lstrip().startswith("-"):
        return read_flags(shlex.split(text), str(name)), {}
    tokens, devices = launch_tokens(text, str(name))
    return read_flags(tokens, str(name)), devices


def _load(path: Path, text: str) -> Any:
    import yaml

    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text.replace("\t", " "))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        kind = _KIND.get(path.suffix, "not YAML")
        raise DocumentError(f"{path}{line}: {kind}: {getattr(error, 'msg', error)}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DocumentError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from None


DOCUMENTS = (".json", ".yaml", ".yml", ".toml")
_KIND = {".toml": "not TOML", ".json": "not JSON"}


def _mapping(data: Any, source: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise DocumentError(f"{source}: settings are a mapping of names to values, not {kind_of(data)}")
    return {str(name): value for name, value in data.items()}
