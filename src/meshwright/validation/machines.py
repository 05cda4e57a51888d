"""The cluster of a measured row, by tables of what its columns of devices and links contain."""

import re

from meshwright.cluster import facts
from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster
from meshwright.validation.rows import Measured
from meshwright.validation.unusable import Unusable

DEVICES: tuple[tuple[str, str], ...] = (
    (r"A100-40GB", "a100-40gb"),
    (r"A100", "a100-80gb"),
    (r"A800", "a800"),
    (r"H100-96GB", "h100-500w"),
    (r"H100", "h100"),
    (r"H200", "h200"),
    (r"GB200", "gb200"),
    (r"GB300", "gb300"),
    (r"B200", "b200"),
    (r"B300", "b300"),
    (r"V100-32GB", "v100"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI350X", "mi350x"),
    (r"MI355X", "mi355x"),
    (r"L40S", "l40s"),
)
"""Devices of the catalogue; the first that matches."""
NETWORKS: tuple[tuple[str, str], ...] = (
    (r"Omni-Path", "4xopa100"),
    (r"4x 100 Gb/s RoCE", "4xroce100"),
    (r"RoCE 1600 Gb/s per node", "8xroce200"),
    (r"RDMA 400 Gb/s per GPU", "8xroce400"),
    (r"^400 Gbps per node", "4xefa100"),
    (r"^800 Gbps per node", "8xefa100"),
    (r"^EFA 400 Gbps per node", "4xefa100"),
    (r"^800 Gb/s per node", "4xib200"),
    (r"8x HDR 200|HDR InfiniBand 200Gb/s", "8xib200"),
    (r"EFA \(HF", "32xefa100"),
    (r"Storage&Compute: 4x ConnectX-7 IB NDR 400Gb/s", "4xib400"),
    (r"8x MT43244 BlueField-3 200Gb/s", "8xib200"),
    (r"2xBF3 400Gbps for EW", "2xib400"),
    (r"8x NDR 400|8x 400 Gb/s IB|8x (BF3 |NVIDIA )?ConnectX-7", "8xib400"),
    (r"8x ConnectX-8", "8xib800"),
    (r"4x ConnectX-7", "4xib400"),
    (r"4x ConnectX-8", "4xib800"),
    (r"^ROCE2; .*PCIe-NIC: 500", "8xroce400"),
)
"""Links between nodes, in short; where none matches, the device's usual ones."""
_SWITCHED: tuple[tuple[str, str], ...] = ((r"NVSwitch NVLink2", "nvlink2-nvswitch"),)
"""Links inside a node that are not the device's usual ones."""
_TRAYS = {"gb200": 4, "gb300": 4}
"""Devices of a node, whatever sources call one; the rack's link joins 18 of them."""
_HOSTS: tuple[tuple[str, str, float], ...] = ((r"EFA", "a100-40gb", 1152 * 2**30),)
"""Links between nodes and devices that tell whose machine it is, with the memory of its hosts where that is not the
catalogue's: of Amazon EC2's p4d.24xlarge 1,152 GiB (aws.amazon.com/ec2/instance-types/p4, 2026-11)."""


def cluster_of(row: Measured) -> Cluster:
    """As many nodes as the row's devices fill. Raises Unusable; UnknownNameError where they make no equal domains."""
    device = _first(DEVICES, row.text("gpu"))
    if not device:
        raise Unusable(f"device '{row.text('gpu')}' is not in the catalogue")
    count = row.count("n_gpus")
    inside = min(_TRAYS.get(device, row.count("gpus_per_node", 8)), count)
    if count % inside:
        raise Unusable(f"{count} devices do not fill nodes of {inside}")
    network = _first(NETWORKS, row.text("inter_node_link")) if count > inside else ""
    found = parse_cluster(f"{count // inside}x{inside}x{device}{':' * bool(network)}{network}")
    link = _first(_SWITCHED, row.text("intra_node_link"))
    return _as_rented(_rewired(found, link) if link else found, row.text("inter_node_link"))


def network_is_said(row: Measured) -> bool:
    """Whether the row's column names links between nodes that are known, or there are none."""
    return row.count("n_gpus") <= row.count("gpus_per_node", 8) or bool(_first(NETWORKS, row.text("inter_node_link")))


def _first(table: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for pattern, name in table if re.search(pattern, text)), "")


def _as_rented(cluster: Cluster, network: str) -> Cluster:
    """The same with the hosts of the machine that its network tells."""
    (pool,) = cluster.pools
    memory = next((size for text, device, size in _HOSTS if device == pool.device and re.search(text, network)), None)
    if memory is None or pool.host is None:
        return cluster
    host = pool.host.model_copy(update={"memory": memory})
    return cluster.model_copy(update={"pools": (pool.model_copy(update={"host": host}),)})


def _rewired(cluster: Cluster, link: str) -> Cluster:
    """The same with this link inside of nodes."""
    (pool,) = cluster.pools
    levels = (pool.levels[0].model_copy(update={"link": link}), *pool.levels[1:])
    links = cluster.links | {link: facts.link(link)}
    return Cluster(
        name=f"{cluster.name} ({link})",
        devices=cluster.devices,
        links=links,
        pools=(pool.model_copy(update={"levels": levels}),),
    )
