"""The documents that Meshwright reads and writes as YAML: one base class, one reader, one way to say what is wrong.
YAML itself is imported with the first text: a model of the catalogue needs none.

An unknown key is an error that names the nearest known one. Every error names the file, the line and the field.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from meshwright.errors import DocumentError, did_you_mean
from meshwright.explain import Lines, explain, kind_of, misplaced, shown

_MAX_BYTES = 4 * 2**20


class Record(BaseModel):
    """A frozen piece of a document. An unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", allow_inf_nan=False, ignored_types=(cached_property,)
    )

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            known = cls.model_fields  # once: pydantic looks them up anew each time
            for key in data:
                if key not in known:
                    hint = did_you_mean(str(key), known)
                    raise misplaced((str(key),), f"unknown key '{str(key)[:80]}'; {hint}", hidden=True)
        return data

    def as_data(self) -> dict[str, Any]:
        """Plain lists, dictionaries and scalars, without what is left at its default."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Document(Record):
    """A record that is a file of its own: versioned, fingerprinted, read from and written to YAML."""

    noun: ClassVar[str] = "document"

    provenance: ClassVar[frozenset[str]] = frozenset()
    """Fields of its records that say where a fact comes from. A fingerprint sees neither them nor the document's name;
    it sees every name that a user chose, a stream called 'source' too.
    """

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over all content but provenance, defaults included: equal content, equal digits."""
        content = json.dumps(self.content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def content(self) -> dict[str, Any]:
        """What the fingerprint covers, as plain data; mappings count without their order."""
        data = self.model_dump(mode="json")
        if not self.provenance:
            return data
        data.pop("name", None)
        content: dict[str, Any] = _without(data, self, self.provenance)
        return content

    def to_yaml(self) -> str:
        """The document as YAML, defaults left out; `parse` gives an equal one back."""
        version = f"meshwright_{self.noun}"
        from meshwright.yaml12 import dump

        return dump({version: getattr(self, version)} | self.as_data())

    def write(self, path: str | Path) -> None:
        """Write the YAML, whole or not at all."""
        write_text(path, self.to_yaml())

    @classmethod
    def parse(cls, text: str, source: str = "<text>") -> Self:
        """Read one from YAML text. Raises DocumentError with `source`, line, field and the nearest thing that works."""
        from meshwright.yaml12 import load

        data, lines = load(text, source)
        return cls.from_data(data, source, lines)

    @classmethod
    def from_data(cls, data: Any, source: str = "<data>", lines: Lines | None = None) -> Self:
        """Make one from plain data. Raises DocumentError."""
        version = f"meshwright_{cls.noun}"
        if not isinstance(data, dict):
            raise DocumentError(
                f"{source}: a {cls.noun} is a mapping that starts with '{version}: 1', not {kind_of(data)}"
            )
        if version not in data:
            raise DocumentError(
                f"{source}: this is no {cls.noun}: the key '{version}: 1' is missing{_other_kind(data)}"
            )
        if type(data[version]) is not int or data[version] != 1:
            line = f":{lines[version,]}" if lines else ""
            raise DocumentError(
                f"{source}{line}: {version}: this Meshwright reads version 1 (got {shown(data[version])})"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise DocumentError(explain(error, source, lines, data)) from None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read one from a file. Raises DocumentError."""
        return cls.parse(read_text(path), str(path))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema (2020-12) of the document, for editors and other programs."""
        schema = cls.model_json_schema()
        required = [f"meshwright_{cls.noun}", *schema.get("required", ())]
        return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"required": required}


def _without(data: Any, of: Any, fields: frozenset[str]) -> Any:
    """The plain data `of` records, without some of their fields at every depth; keys that a user chose all stay."""
    if isinstance(of, Record):
        return {key: _without(value, getattr(of, key), fields) for key, value in data.items() if key not in fields}
    if isinstance(data, dict) and isinstance(of, dict):
        return {
            key: _without(value, inside, fields) for (key, value), inside in zip(data.items(), of.values(), strict=True)
        }
    if isinstance(data, list) and isinstance(of, list | tuple):
        return [_without(value, inside, fields) for value, inside in zip(data, of, strict=True)]
    return data


def _other_kind(data: dict[Any, Any]) -> str:
    other = next((str(key) for key in data if str(key).startswith("meshwright_")), None)
    return f" (it says '{other}')" if other else ""


def read_text(path: str | Path) -> str:
    """The text of a file. Raises DocumentError where there is none, or it is no text."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise DocumentError(f"{path}: larger than {_MAX_BYTES // 2**20} MiB, which is no document of ours")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: not a text file (UTF-8)") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a file, whole or not at all. Raises DocumentError."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # a terminal or a pipe; a folder says so itself
            target.write_text(text, encoding="utf-8")
            return
        partial = target.with_name(target.name + ".partial")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
