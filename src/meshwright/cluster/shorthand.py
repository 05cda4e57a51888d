"""Clusters in short: `8xh100`, `4x8xa100-80gb`, `2x8xa100-80gb+4x8xv100`, `cpu:4`, `cpu:4/2` (four processes on two
cores).
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.cluster.spec import MAX_DEVICES, MAX_POOLS, Across, Cluster, Device, Level, Link, Pool
from meshwright.errors import UnknownNameError, did_you_mean
from meshwright.yaml12 import load

_POOL = re.compile(r"(?:([0-9]{1,7})x)?([0-9]{1,7})x([a-z0-9][a-z0-9.-]*)")
_CPU = re.compile(r"cpu:([0-9]{1,4})(?:/([0-9]{1,4}))?")
BETWEEN_POOLS = "ethernet-100"
"""What joins unlike pools where nothing is said."""


@cache
def facts(table: str) -> dict[str, Any]:
    """A table of the catalogue (`devices`, `links`, `nodes`) as plain data."""
    file = Path(__file__).parent / "catalog" / f"{table}.yaml"
    data, _ = load(file.read_text(encoding="utf-8"), f"{table}.yaml")
    return dict(data)


def parse_cluster(text: str) -> Cluster:
    """A cluster from its shorthand. Raises UnknownNameError with an example, or the nearest device."""
    cpu = _CPU.fullmatch(text)
    if cpu:
        return _cpu_cluster(text, int(cpu.group(1)), int(cpu.group(2) or cpu.group(1)))
    terms = text.split("+")
    if len(terms) > MAX_POOLS:
        raise UnknownNameError(f"'{text[:40]}...': a cluster can have {MAX_POOLS} pools, not {len(terms)}")
    pools = [_parse_pool(term, text) for term in terms]
    if sum(pool.size for pool in pools) > MAX_DEVICES:
        raise UnknownNameError(f"'{text}' has more devices than can be planned for, which is {MAX_DEVICES:,}")
    names = [f"{pool.device}-{place}" if len(pools) > 1 else pool.device for place, pool in enumerate(pools)]
    pools = [pool.model_copy(update={"name": name}) for pool, name in zip(pools, names, strict=True)]
    across = tuple(
        Across(between=(one, other), link=BETWEEN_POOLS, cards=1)
        for place, one in enumerate(names)
        for other in names[place + 1 :]
    )
    links = {level.link for pool in pools for level in pool.levels} | {way.link for way in across}
    return Cluster(
        name=text,
        devices={pool.device: Device.model_validate(facts("devices")[pool.device]) for pool in pools},
        links={name: Link.model_validate(facts("links")[name]) for name in sorted(links)},
        pools=tuple(pools),
        across=across,
    )


def _parse_pool(term: str, text: str) -> Pool:
    match = _POOL.fullmatch(term.strip())
    if match is None:
        raise UnknownNameError(
            f"'{text[:80]}' is no cluster; write '8xh100', '4x8xa100-80gb' (nodes x devices x kind) or 'cpu:4'"
        )
    nodes, devices, kind = int(match.group(1) or 1), int(match.group(2)), match.group(3)
    known = facts("nodes")
    if kind not in known:
        raise UnknownNameError(f"'{kind}' is no device that is known; {did_you_mean(kind, known)}")
    if nodes < 1 or devices < 1:
        raise UnknownNameError(f"'{text}': a cluster has at least one device")
    usual = known[kind]
    levels = [Level(name="node", size=devices, link=usual["inside"])]
    if nodes > 1:
        levels.append(Level(name="cluster", size=nodes, link=usual["outside"], cards=min(usual["cards"], devices)))
    return Pool(name=kind, device=kind, levels=tuple(levels))


def _cpu_cluster(text: str, processes: int, cores: int) -> Cluster:
    if processes < 1 or cores < 1:
        raise UnknownNameError(f"'{text}': a cluster has at least one process and one core")
    pool = Pool(
        name="cpu",
        device="cpu",
        levels=(Level(name="machine", size=processes, link="loopback"),),
        compute_units=float(cores) if cores < processes else None,
    )
    return Cluster(
        name=text,
        devices={"cpu": Device.model_validate(facts("devices")["cpu"])},
        links={"loopback": Link.model_validate(facts("links")["loopback"])},
        pools=(pool,),
    )
