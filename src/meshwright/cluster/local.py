"""The machine it runs on as a cluster: its GPUs as nvidia-smi says, or else a CPU process on each core. No torch."""

import datetime as dt
import os
import platform
import shutil
import subprocess

from meshwright.cluster import facts
from meshwright.cluster.spec import Cluster, Device, Host, Level, Origin, Pool
from meshwright.errors import MeshwrightError

_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_PATIENCE = 30.0  # seconds; the driver of an idle machine takes some to wake


def local_cluster() -> Cluster:
    """This machine. Raises MeshwrightError where its GPUs are unknown, unlike, or do not answer."""
    gpus = _gpus()
    return _of_gpus(gpus) if gpus else _of_cores()


def usable_cores() -> int:
    """The cores that this process may run on; all of the machine where the system does not say (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> float:
    """Bytes of the machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _gpus() -> list[tuple[str, float]]:
    """The name and the bytes of each GPU; none where there is no driver. Raises MeshwrightError."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        ran = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeshwrightError(f"local: nvidia-smi does not answer: {error}") from None
    if ran.returncode:
        if "no devices were found" in (ran.stdout + ran.stderr).lower():
            return []
        said = (ran.stderr or ran.stdout).strip()[:200]
        raise MeshwrightError(f"local: nvidia-smi failed: {said}")
    return [_gpu(line) for line in ran.stdout.splitlines() if line.strip()]


def _gpu(line: str) -> tuple[str, float]:
    name, _, mebibytes = line.rpartition(",")
    try:
        return name.strip(), float(mebibytes) * 2**20
    except ValueError:
        raise MeshwrightError(f"local: cannot read what nvidia-smi says of a GPU: '{line.strip()[:80]}'") from None


def _of_gpus(gpus: list[tuple[str, float]]) -> Cluster:
    kinds = sorted({name for name, _ in gpus})
    if len(kinds) > 1:
        raise MeshwrightError(
            f"local: this machine has unlike GPUs ({', '.join(kinds)}): describe it in a cluster file"
        )
    name = facts.reported_device(kinds[0])
    usual = facts.node(name)
    host = usual.host and Host(
        memory=machine_memory(),
        link=usual.host.link,
        source=f"the operating system of {platform.node()}; the link as a {name} usually has it",
        date=_today(),
    )
    levels = (Level(name="node", size=len(gpus), link=usual.inside),)
    memory = min(size for _, size in gpus)
    return Cluster(
        name="local",
        devices={name: _with_memory(facts.device(name), memory, "nvidia-smi")},
        links={link: facts.link(link) for link in sorted({usual.inside, host.link if host else usual.inside})},
        pools=(Pool(name=name, device=name, levels=levels, host=host),),
    )


def _of_cores() -> Cluster:
    cores = usable_cores()
    device = _with_memory(facts.device("cpu"), float(int(machine_memory() / cores)), "the operating system")
    pool = Pool(name="cpu", device="cpu", levels=(Level(name="machine", size=cores, link="loopback"),))
    return Cluster(name="local", devices={"cpu": device}, links={"loopback": facts.link("loopback")}, pools=(pool,))


def _with_memory(device: Device, memory: float, teller: str) -> Device:
    """A device of the catalogue with the memory that this one has."""
    said = Origin(source=f"{teller} on {platform.node()}", date=_today())
    return device.model_copy(update={"memory": memory, "origins": device.origins | {"memory": said}})


def _today() -> str:
    return dt.date.today().isoformat()
