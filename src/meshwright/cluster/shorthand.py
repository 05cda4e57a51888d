"""Clusters in short: `8xh100`, `4x8xa100-80gb`, `16x8xh100:ib400` (the link between nodes), `2x8xa100-80gb+4x8xv100`,
`72xgb200`, `cpu:4`, `cpu:4/2` (four processes on two cores), `local` (the machine it runs on).
"""

import re
from typing import NamedTuple

from meshwright.cluster import facts
from meshwright.cluster.spec import MAX_DEVICES, MAX_POOLS, Across, Cluster, Host, Level, Pool
from meshwright.errors import UnknownNameError

_POOL = re.compile(
    r"(?:(?P<nodes>[0-9]{1,7})x)?(?P<devices>[0-9]{1,7})x(?P<kind>[a-z0-9][a-z0-9.-]*)"
    r"(?::(?:(?P<cards>[0-9]{1,4})x)?(?P<link>[a-z][a-z0-9-]*))?"
)
_CPU = re.compile(r"cpu:([0-9]{1,4})(?:/([0-9]{1,4}))?")
BETWEEN_POOLS = "ethernet-100"
"""What joins unlike pools, one card a node, where they do not both name one link."""


def parse_cluster(text: str) -> Cluster:
    """A cluster from its shorthand. Raises UnknownNameError with an example, or the nearest device."""
    folded = text.strip().lower()
    if folded == "local":
        from meshwright.cluster.local import local_cluster  # here, since no other cluster asks the machine

        return local_cluster()
    cpu = _CPU.fullmatch(folded)
    if cpu:
        return _cpu_cluster(text, int(cpu.group(1)), int(cpu.group(2) or cpu.group(1)))
    terms = folded.split("+")
    if len(terms) > MAX_POOLS:
        raise UnknownNameError(f"'{text[:40]}...': a cluster can have {MAX_POOLS} pools, not {len(terms)}")
    parsed = [_parse_term(term.strip(), text) for term in terms]
    if sum(term.nodes * term.devices for term in parsed) > MAX_DEVICES:
        raise UnknownNameError(f"'{text[:80]}' has more devices than can be planned for, which is {MAX_DEVICES:,}")
    names = [f"{term.kind}-{place}" if len(parsed) > 1 else term.kind for place, term in enumerate(parsed)]
    pools = tuple(_pool(name, term) for name, term in zip(names, parsed, strict=True))
    across = _joined(parsed, names)
    links = {level.link for pool in pools for level in pool.levels} | {way.link for way in across}
    links |= {pool.host.link for pool in pools if pool.host}
    return Cluster(
        name=text,
        devices={pool.device: facts.device(pool.device) for pool in pools},
        links={name: facts.link(name) for name in sorted(links)},
        pools=pools,
        across=across,
    )


class _Term(NamedTuple):
    """`nodes x devices x kind : cards x link`."""

    nodes: int
    devices: int
    kind: str
    link: str
    cards: int
    named: bool
    """True where the text names the link."""


def _parse_term(term: str, text: str) -> _Term:
    match = _POOL.fullmatch(term)
    if match is None:
        raise UnknownNameError(
            f"'{text[:80]}' is no cluster; write '8xh100', '4x8xa100-80gb:ib200' (nodes x devices x kind : link), "
            "'cpu:4' or 'local'"
        )
    nodes, devices = int(match["nodes"] or 1), int(match["devices"])
    if nodes < 1 or devices < 1:
        raise UnknownNameError(f"'{text[:80]}': a cluster has at least one device")
    kind = facts.device_name(match["kind"])
    usual = facts.node(kind)
    if match["link"] is None:
        return _Term(nodes, devices, kind, usual.outside, min(usual.cards, devices), False)
    link = facts.short_link(match["link"])
    cards = int(match["cards"] or link.cards or min(usual.cards, devices))
    if cards < 1:
        raise UnknownNameError(f"'{text[:80]}': a node has at least one card")
    return _Term(nodes, devices, kind, link.link, cards, True)


def _pool(name: str, term: _Term) -> Pool:
    usual = facts.node(term.kind)
    price = usual.price
    levels = _levels(term, usual)
    return Pool(
        name=name,
        device=term.kind,
        levels=levels,
        host=usual.host and _share(usual.host, levels[0].size / usual.size),
        price_per_device_hour=price and price.per_device_hour,
        price_source=price.source if price else "",
        price_date=price.date if price else "",
    )


def _share(host: Host, part: float) -> Host:
    """What a part of a node has of its host: a rented machine has as much of the memory as of the devices."""
    if part >= 1:
        return host
    rate = host.memory_bandwidth and host.memory_bandwidth * part
    cards = host.cards and max(1, round(host.cards * part))
    return host.model_copy(update={"memory": host.memory * part, "memory_bandwidth": rate, "cards": cards})


def _levels(term: _Term, usual: facts.Node) -> tuple[Level, ...]:
    """Devices in a node, nodes in a domain of the link inside, where there is one, and those in the cluster."""
    size, nodes, domains = _shape(term, usual)
    levels = [Level(name="node", size=size, link=usual.inside)]
    if nodes > 1:
        levels.append(Level(name="domain", size=nodes, link=usual.inside))
    if domains > 1:
        levels.append(Level(name="cluster", size=domains, link=term.link, cards=term.cards * nodes))
    return tuple(levels)


def _shape(term: _Term, usual: facts.Node) -> tuple[int, int, int]:
    """Devices of a node, nodes of a domain, domains. More devices than a node has mean whole domains of them."""
    if usual.domain == 1:
        return term.devices, 1, term.nodes
    if term.devices > usual.size:
        if term.devices % usual.size or term.devices > usual.size * usual.domain:
            raise UnknownNameError(
                f"'{term.devices}x{term.kind}': nodes of {term.kind} have {usual.size} devices, and its link joins "
                f"{usual.size * usual.domain} at most: take {_nearest_multiple(term.devices, usual)}"
            )
        return usual.size, term.devices // usual.size, term.nodes
    domains = next(count for count in range(1, term.nodes + 1) if _divides(count, term.nodes, usual.domain))
    if domains > 1 and term.nodes // domains < usual.domain / 2:
        whole = max(1, round(term.nodes / usual.domain)) * usual.domain
        raise UnknownNameError(
            f"{term.nodes} nodes of {term.kind} make no equal domains of at most {usual.domain} nodes that are more "
            f"than half full; take {whole}"
        )
    return term.devices, term.nodes // domains, domains


def _divides(count: int, nodes: int, most: int) -> bool:
    return nodes % count == 0 and nodes // count <= most


def _nearest_multiple(devices: int, usual: facts.Node) -> int:
    return min(max(1, round(devices / usual.size)), usual.domain) * usual.size


def _joined(terms: list[_Term], names: list[str]) -> tuple[Across, ...]:
    """The links between pools: the one that both name, with the fewer cards; else Ethernet."""
    pairs = [(one, other) for one in range(len(terms)) for other in range(one + 1, len(terms))]
    across = []
    for one, other in pairs:
        link, cards = _between(terms[one], terms[other])
        across.append(Across(between=(names[one], names[other]), link=link, cards=cards))
    return tuple(across)


def _between(one: _Term, other: _Term) -> tuple[str, int]:
    if one.named and other.named and one.link == other.link:
        return one.link, min(one.cards, other.cards)
    return BETWEEN_POOLS, 1


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
        devices={"cpu": facts.device("cpu")},
        links={"loopback": facts.link("loopback")},
        pools=(pool,),
    )
