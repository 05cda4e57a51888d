"""The catalogue: devices, links, how nodes usually come, and the names for them. Each figure says where it is from."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

from meshwright.cluster.spec import Device, Facts, Host, Link
from meshwright.document import Record
from meshwright.errors import UnknownNameError, did_you_mean
from meshwright.units import PositiveFloat, PositiveInt
from meshwright.yaml12 import load

Table = Literal["devices", "links", "nodes", "names"]


class Price(Record):
    """What one device costs."""

    per_device_hour: PositiveFloat
    """US dollars."""
    source: str
    date: str


class Node(Facts):
    """How a device usually comes."""

    size: PositiveInt
    """Devices of a node."""
    inside: str
    domain: PositiveInt = 1
    """Nodes that the link inside joins too, at most."""
    outside: str
    cards: PositiveInt
    """Links that lead out of a node."""
    host: Host | None = None
    """Of a whole node."""
    price: Price | None = None


class ShortLink(Record):
    """A link between nodes, by a short name."""

    link: str
    cards: PositiveInt | None = None
    """So many a node, where that is not what the node usually has."""


@cache
def table(name: Table) -> dict[str, Any]:
    """A table of the catalogue as plain data."""
    file = Path(__file__).parent / "catalog" / f"{name}.yaml"
    data, _ = load(file.read_text(encoding="utf-8"), file.name)
    return dict(data)


@cache
def device(name: str) -> Device:
    """A device of the catalogue. Raises KeyError."""
    return Device.model_validate(table("devices")[name])


@cache
def link(name: str) -> Link:
    """A link of the catalogue. Raises KeyError."""
    return Link.model_validate(table("links")[name])


@cache
def node(name: str) -> Node:
    """How a device of the catalogue comes. Raises KeyError."""
    return Node.model_validate(table("nodes")[name])


def device_name(typed: str) -> str:
    """The name of a device from any way to type it. Raises UnknownNameError, which asks where several are meant."""
    known = table("nodes")
    if typed in known:
        return typed
    names = table("names")
    for name, others in names["devices"].items():
        if typed in others:
            return str(name)
    if typed in names["unclear"]:
        raise UnknownNameError(f"'{typed}' can be several devices: say {_either(names['unclear'][typed])}")
    raise UnknownNameError(f"'{typed}' is no device that is known; {did_you_mean(typed, known)}")


def short_link(typed: str) -> ShortLink:
    """A link between nodes from its short or its full name. Raises UnknownNameError, which lists the short ones."""
    names = table("names")["links"]
    for short, given in names.items():
        if typed in (short, given["link"]):
            return ShortLink.model_validate(given)
    if typed in table("links"):
        return ShortLink(link=typed)
    raise UnknownNameError(
        f"'{typed[:80]}' is no link that is known; known: {', '.join(names)}, and full names of links"
    )


def reported_device(name: str) -> str:
    """The device that a driver calls so. Raises UnknownNameError."""
    known = table("names")["reported"]
    if name not in known:
        raise UnknownNameError(
            f"the driver reports '{name}', which is no device that is known; {did_you_mean(name, known)} "
            "Otherwise describe the machine in a cluster file"
        )
    return str(known[name])


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
