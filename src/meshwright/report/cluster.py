"""A cluster: its pools, devices, links, hosts and prices, with where each figure is from."""

from collections.abc import Iterable
from typing import Any

from meshwright.cluster.spec import Cluster, Device, Facts, Level, Link, Pool
from meshwright.document import Record
from meshwright.report import blocks
from meshwright.report.blocks import Block, table
from meshwright.units import show_bytes, show_flops, show_rate, show_seconds


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plain data, in bytes, seconds, FLOP per second and US dollars."""
    return {
        "name": cluster.name,
        "size": cluster.size,
        "pools": [numbers(pool) | {"size": pool.size} for pool in cluster.pools],
        "devices": {name: numbers(device) for name, device in cluster.devices.items()},
        "links": {name: numbers(link) for name, link in cluster.links.items()},
        "across": [across.model_dump() for across in cluster.across],
        "regions": numbers(cluster.regions) if cluster.regions else None,
        "price_per_hour": price_per_hour(cluster),
        "fingerprint": cluster.fingerprint,
    }


def numbers(record: Record) -> dict[str, Any]:
    """A record as plain data, with numbers where a document would have a text with a unit."""
    return {name: _plain(getattr(record, name)) for name in type(record).model_fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return numbers(value)
    if isinstance(value, dict):
        return {key: _plain(inside) for key, inside in value.items()}
    return [_plain(inside) for inside in value] if isinstance(value, tuple) else value


def price_per_hour(cluster: Cluster) -> float | None:
    """US dollars for all devices; none where a pool has no price."""
    prices = [pool.price_per_device_hour and pool.price_per_device_hour * pool.size for pool in cluster.pools]
    return sum(filter(None, prices)) if all(prices) else None


def cluster_blocks(cluster: Cluster) -> list[Block]:
    """The same for a person."""
    price = price_per_hour(cluster)
    facts = (
        ("devices", f"{cluster.size:,}"),
        *([("price", f"{price:,.2f} USD an hour")] if price else []),
        ("fingerprint", cluster.fingerprint),
    )
    shown: list[Block | None] = [blocks.Facts(cluster.name, facts), _pools(cluster), _devices(cluster)]
    shown += [peaks_table(cluster.devices), _engines(cluster), links_table(cluster.links), _regions(cluster)]
    shown += [_hosts(cluster), _prices(cluster), origins_table(_records(cluster))]
    return [block for block in shown if block is not None]


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
        rows.append((name, *sizes, device.backend))
    return table("devices", "device | >count | >memory | >memory bandwidth | backend", rows)


def peaks_table(devices: dict[str, Device]) -> Block:
    """Dense peaks, a column for each dtype that any of the devices has."""
    dtypes = list(dict.fromkeys(dtype for device in devices.values() for dtype in device.peak))
    rows: list[tuple[str, ...]] = []
    for name, device in devices.items():
        rows.append((name, *(show_flops(device.peak[dtype]) if dtype in device.peak else "-" for dtype in dtypes)))
    return table("dense peaks", " | ".join(["device", *(f">{dtype}" for dtype in dtypes)]), rows)


def _engines(cluster: Cluster) -> Block | None:
    rows: list[tuple[str, ...]] = []
    for name, device in cluster.devices.items():
        for engine in device.engines:
            flops = ", ".join(f"{dtype} {count:,}" for dtype, count in engine.flops_per_clock.items())
            rows.append((name, f"{engine.units:,}", f"{engine.clock / 1e6:,.0f} MHz", flops))
    columns = "device | >units | >clock | FLOP of a unit in a clock"
    return table("what peaks are made of", columns, rows) if rows else None


def links_table(links: dict[str, Link]) -> Block:
    """Bandwidth, latency and kind of links."""
    rows: list[tuple[str, ...]] = []
    for name, link in links.items():
        rows.append((name, f"{show_rate(link.bandwidth)} each way", show_seconds(link.latency), _kind(link)))
    return table("links", "link | >bandwidth | >latency | kind", rows)


def _kind(link: Link) -> str:
    lines = f"{link.lines} lines straight to peers" if link.lines else ""
    return ", ".join(text for text in (lines, "reduces in the switch" if link.reduces else "") if text)


def _regions(cluster: Cluster) -> Block | None:
    regions = cluster.regions
    if regions is None:
        return None
    rows: list[tuple[str, ...]] = []
    for name, bandwidths, latencies in zip(regions.names, regions.bandwidth, regions.latency, strict=True):
        rows.append((name, *(_way(*way) for way in zip(bandwidths, latencies, strict=True))))
    each = "for all nodes together" if regions.shared else "for each node"
    columns = " | ".join(["from", *(f">to {name}" for name in regions.names)])
    return table(f"between regions, {each}", columns, rows)


def _way(bandwidth: float | None, latency: float | None) -> str:
    return "-" if bandwidth is None or latency is None else f"{show_rate(bandwidth)}, {show_seconds(latency)}"


def _hosts(cluster: Cluster) -> Block | None:
    rows: list[tuple[str, ...]] = []
    for pool in cluster.pools:
        if pool.host is not None:
            rate = show_rate(pool.host.memory_bandwidth) if pool.host.memory_bandwidth else "-"
            ways = f"{pool.host.cards} for each node" if pool.host.cards else "one for each device"
            rows.append((pool.name, show_bytes(pool.host.memory), rate, pool.host.link, ways))
    columns = "pool | >memory of a node | >its bandwidth | link to devices | ways"
    return table("hosts", columns, rows) if rows else None


def _prices(cluster: Cluster) -> Block | None:
    rows: list[tuple[str, ...]] = []
    for pool in cluster.pools:
        if pool.price_per_device_hour is not None:
            price = f"{pool.price_per_device_hour:,.2f} USD"
            rows.append((pool.name, price, pool.price_source, pool.price_date))
    return table("prices", "pool | >of a device and hour | source | date", rows) if rows else None


def _records(cluster: Cluster) -> list[tuple[str, Facts]]:
    records: list[tuple[str, Facts]] = [*cluster.devices.items(), *cluster.links.items()]
    records += [(f"host of {pool.name}", pool.host) for pool in cluster.pools if pool.host]
    return [*records, ("regions", cluster.regions)] if cluster.regions else records


def origins_table(records: Iterable[tuple[str, Facts]]) -> Block | None:
    """Where figures are from: of each record first most of them, then the fields that are from elsewhere."""
    rows: list[tuple[str, ...]] = []
    for name, record in records:
        if record.source or record.date:
            rows.append((name, "", record.source, record.date))
        rows += [(name, field.replace("_", " "), at.source, at.date) for field, at in record.origins.items()]
    return table("where figures are from", "of | figure | source | date", rows) if rows else None
