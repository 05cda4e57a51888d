"""A cluster: its pools, devices and links, with where each figure is from."""

from typing import Any

from meshwright.cluster.spec import Cluster, Device, Level, Link, Pool
from meshwright.report.blocks import Block, Facts, table
from meshwright.units import show_bytes, show_flops, show_rate, show_seconds


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plain data, in bytes, seconds and FLOP per second."""
    return {
        "name": cluster.name,
        "size": cluster.size,
        "pools": [pool.model_dump() | {"size": pool.size} for pool in cluster.pools],
        "devices": {name: _numbers(device) for name, device in cluster.devices.items()},
        "links": {name: _numbers(link) for name, link in cluster.links.items()},
        "across": [across.model_dump() for across in cluster.across],
        "fingerprint": cluster.fingerprint,
    }


def _numbers(record: Device | Link) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).model_fields}


def cluster_blocks(cluster: Cluster) -> list[Block]:
    """The same for a person."""
    facts = (("devices", f"{cluster.size:,}"), ("fingerprint", cluster.fingerprint))
    return [Facts(cluster.name, facts), _pools(cluster), _devices(cluster), _peaks(cluster), _links(cluster)]


def _pools(cluster: Cluster) -> Block:
    rows: list[tuple[str, ...]] = []
    for pool, start in zip(cluster.pools, cluster.starts, strict=True):
        below = ["devices", *(f"{level.name}s" for level in pool.levels)]
        for level, inner in zip(pool.levels, below, strict=False):
            rows.append(
                (pool.name, _ranks(start, pool), level.name, f"{level.size:,} {inner}", level.link, _cards(level))
            )
        if pool.compute_units is not None:
            rows[-1] = (*rows[-1][:-1], f"{rows[-1][-1]}, all on {pool.compute_units:g} devices' worth of computing")
    for way in cluster.across:
        cards = "one for each device" if way.cards is None else f"{way.cards} for each unit"
        rows.append((" + ".join(way.between), "", "between pools", "", way.link, cards))
    return table("pools", "pool | ranks | level | size | link | ways out", rows)


def _ranks(start: int, pool: Pool) -> str:
    return f"{start}-{start + pool.size - 1}" if pool.size > 1 else str(start)


def _cards(level: Level) -> str:
    return "one for each device" if level.cards is None else f"{level.cards} for each unit below"


def _devices(cluster: Cluster) -> Block:
    counts = {name: sum(pool.size for pool in cluster.pools if pool.device == name) for name in cluster.devices}
    rows: list[tuple[str, ...]] = []
    for name, device in cluster.devices.items():
        sizes = (f"{counts[name]:,}", show_bytes(device.memory), show_rate(device.memory_bandwidth))
        rows.append((name, *sizes, device.backend, _origin(device)))
    return table("devices", "device | >count | >memory | >memory bandwidth | backend | source", rows)


def _peaks(cluster: Cluster) -> Block:
    dtypes = list(dict.fromkeys(dtype for device in cluster.devices.values() for dtype in device.peak))
    rows: list[tuple[str, ...]] = []
    for name, device in cluster.devices.items():
        rows.append((name, *(show_flops(device.peak[dtype]) if dtype in device.peak else "-" for dtype in dtypes)))
    return table("dense peaks", " | ".join(["device", *(f">{dtype}" for dtype in dtypes)]), rows)


def _links(cluster: Cluster) -> Block:
    rows: list[tuple[str, ...]] = []
    for name, link in cluster.links.items():
        rows.append((name, f"{show_rate(link.bandwidth)} each way", show_seconds(link.latency), _origin(link)))
    return table("links", "link | >bandwidth | >latency | source", rows)


def _origin(record: Device | Link) -> str:
    return ", ".join(text for text in (record.source, record.date) if text)
