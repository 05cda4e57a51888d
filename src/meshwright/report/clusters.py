"""The devices and links that are known by name, as a list to search."""

import re
from typing import Any

from meshwright.cluster import facts
from meshwright.report.blocks import Block, Lines, table
from meshwright.report.cluster import links_table, numbers, origins_table, peaks_table
from meshwright.units import show_bytes, show_rate


def clusters_data(pattern: str = "") -> dict[str, Any]:
    """Every known device and link that all words of the pattern occur in, by any of its names."""
    words = pattern.lower().split()
    return {
        "devices": [_device(name) for name in facts.table("devices") if _matches(words, name, _other_names(name))],
        "links": [_link(name) for name in facts.table("links") if _matches(words, name, _short_names(name))],
    }


def clusters_blocks(pattern: str = "") -> list[Block]:
    """The same for a person."""
    data = clusters_data(pattern)
    devices = {row["name"]: facts.device(row["name"]) for row in data["devices"]}
    links = {row["name"]: facts.link(row["name"]) for row in data["links"]}
    if not devices and not links:
        return [Lines("", (f"no known device or link has '{pattern}' in its name",), "warning")]
    blocks: list[Block | None] = []
    if devices:
        blocks += [_devices(data["devices"]), peaks_table(devices)]
    if links:
        short = {row["name"]: ", ".join(row["other_names"]) for row in data["links"]}
        blocks += [links_table({f"{name} ({short[name]})" if short[name] else name: links[name] for name in links})]
    blocks.append(origins_table([*devices.items(), *links.items()]))
    return [block for block in blocks if block is not None]


def _matches(words: list[str], name: str, others: list[str]) -> bool:
    """True where each word begins some part of a name: 'h100' is in 'h100-pcie', not in 'eth100'."""
    return all(re.search(rf"\b{re.escape(word)}", " ".join((name, *others))) for word in words)


def _other_names(device: str) -> list[str]:
    return list(facts.table("names")["devices"].get(device, ()))


def _short_names(link: str) -> list[str]:
    return [short for short, given in facts.table("names")["links"].items() if given["link"] == link]


def _device(name: str) -> dict[str, Any]:
    usual = numbers(facts.node(name)) if name in facts.table("nodes") else None
    return {"name": name, "other_names": _other_names(name)} | numbers(facts.device(name)) | {"node": usual}


def _link(name: str) -> dict[str, Any]:
    return {"name": name, "other_names": _short_names(name)} | numbers(facts.link(name))


def _devices(devices: list[dict[str, Any]]) -> Block:
    rows: list[tuple[str, ...]] = []
    for row in devices:
        sizes = (show_bytes(row["memory"]), show_rate(row["memory_bandwidth"]))
        rows.append((row["name"], *sizes, *_usual(row["node"])))
    return table("devices", "device | >memory | >memory bandwidth | usual node | >USD an hour | of", rows)


def _usual(node: dict[str, Any] | None) -> tuple[str, str, str]:
    """How a device comes, and for what price of when."""
    if node is None:
        return "", "", ""
    domain = f", {node['domain']} nodes together" if node["domain"] > 1 else ""
    comes = f"{node['size']} by {node['inside']}{domain}, out by {node['cards']} {node['outside']}"
    price = node["price"]
    return comes, f"{price['per_device_hour']:,.2f}" if price else "", price["date"] if price else ""
