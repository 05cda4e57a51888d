"""YAML text to plain data and back: the part of YAML 1.2 that our documents use.

`on`, `yes` and `1:30` are words, `1e9` is a number. A key twice, an alias, a tag of one's own, or nesting without end
is an error that names the line.
"""

import json
import re
from typing import Any, ClassVar

import yaml

from meshwright.errors import DocumentError
from meshwright.explain import Lines

_DEPTH = 32  # the deepest document of ours has 9 levels
_DIGITS = 400  # Python itself refuses to read whole numbers of more than 4,300
_TAG = "tag:yaml.org,2002:"

# YAML 1.2's scalars. PyYAML's own are YAML 1.1's, where `on` is true, `1e9` is text and `1:30` is ninety.
_SCALARS: dict[str, tuple[re.Pattern[str], list[str]]] = {
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "int": (re.compile(r"[-+]?[0-9]+\Z"), list("-+0123456789")),
    "float": (
        re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"),
        list("-+.0123456789"),
    ),
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return float(node.value)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)
_Loader.add_constructor(_TAG + "int", _Loader.construct_yaml_int)
_Loader.add_constructor(_TAG + "float", _Loader.construct_yaml_float)
_Dumper.add_representer(float, lambda dumper, value: dumper.represent_scalar(_TAG + "float", repr(value)))


def load(text: str, source: str = "<text>") -> tuple[Any, Lines]:
    """YAML text → plain data, and the line of every field. Raises DocumentError."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, {}
            survey = _Survey(source)
            survey.visit(node, ())
            return loader.construct_document(node), survey.lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DocumentError(f"{source}{line}: not YAML: {error.problem or error}") from None
    except yaml.reader.ReaderError as error:
        line = str(1 + text[: error.position].count("\n"))
        raise DocumentError(
            f"{source}:{line}: not YAML: character #x{error.character:04x} may not stand in it"
        ) from None
    except RecursionError:
        raise DocumentError(f"{source}: nested more than {_DEPTH} deep") from None


class _Survey:
    """Notes the line of each field, and refuses what our documents do without."""

    def __init__(self, source: str) -> None:
        self.source, self.lines = source, Lines()
        self._seen: set[int] = set()

    def visit(self, node: yaml.Node, place: tuple[str | int, ...]) -> None:
        """One node with all below it. Raises DocumentError."""
        self.lines[place] = node.start_mark.line + 1
        if id(node) in self._seen:
            raise self._error(node, "aliases (*name) are not part of this format: write the value out")
        self._seen.add(id(node))
        if len(place) > _DEPTH:
            raise self._error(node, f"nested more than {_DEPTH} deep")
        if isinstance(node, yaml.ScalarNode):
            self._check_scalar(node)
        elif node.tag not in (_TAG + "map", _TAG + "seq"):
            raise self._error(node, f"the tag {_shown_tag(node)} is not part of this format")
        elif isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, place)
        else:
            for index, item in enumerate(node.value):
                self.visit(item, (*place, index))

    def _visit_mapping(self, node: yaml.MappingNode, place: tuple[str | int, ...]) -> None:
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key must be a word")
            self._check_scalar(key)
            if (*place, key.value) in self.lines:
                raise self._error(key, f"key '{key.value}' stands twice")
            self.visit(value, (*place, key.value))
            self.lines[(*place, key.value)] = key.start_mark.line + 1

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        name = node.tag.removeprefix(_TAG)
        if name != "str" and (name not in _SCALARS or not _SCALARS[name][0].match(node.value)):
            raise self._error(
                node, f"the tag {_shown_tag(node)} is not part of this format, or does not suit its value"
            )
        if name == "int" and len(node.value) > _DIGITS:
            raise self._error(node, f"a number of {len(node.value)} digits is larger than anything here can be")

    def _error(self, node: yaml.Node, message: str) -> DocumentError:
        return DocumentError(f"{self.source}:{node.start_mark.line + 1}: {message}")


def _shown_tag(node: yaml.Node) -> str:
    return f"'!!{node.tag.removeprefix(_TAG)}'" if node.tag.startswith(_TAG) else f"'{node.tag}'"


class _Flow(dict[str, Any]):
    """A mapping that is written on one line."""


class _FlowList(list[Any]):
    """A list that is written on one line."""


_Dumper.add_representer(_Flow, lambda dumper, value: dumper.represent_mapping(_TAG + "map", value.items(), True))
_Dumper.add_representer(_FlowList, lambda dumper, value: dumper.represent_sequence(_TAG + "seq", value, True))
_LINE = 118


def _folded(data: Any, room: int) -> Any:
    """Small mappings and lists go on one line, as a person would write them."""
    if isinstance(data, dict):
        fits = len(json.dumps(data)) <= room and all(
            len(json.dumps(v)) < 90 for v in data.values() if isinstance(v, dict | list)
        )
        return _flow(data) if fits else {key: _folded(value, room - 2) for key, value in data.items()}
    if isinstance(data, list):
        flat = not any(isinstance(value, dict | list) for value in data)
        return _FlowList(data) if flat else [_folded(value, room - 2) for value in data]
    return data


def _flow(data: Any) -> Any:
    if isinstance(data, dict):
        return _Flow({key: _flow(value) for key, value in data.items()})
    return _FlowList([_flow(value) for value in data]) if isinstance(data, list) else data


def dump(data: dict[str, Any]) -> str:
    """Plain data → YAML that a person would write: order kept, small things on one line."""
    top = {
        key: _folded(value, _LINE - len(str(key))) if isinstance(value, dict | list) else value
        for key, value in data.items()
    }
    return str(yaml.dump(top, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000))
