"""What this machine has, and what Meshwright can do on it. Runs without torch, and says so."""

import importlib
import platform
import re
import sys
from importlib import metadata
from typing import Any, NamedTuple

from meshwright.cluster.local import usable_cores
from meshwright.model.hf_config import FAMILIES
from meshwright.plan import rules_families
from meshwright.plan.rules_runtime import PROVEN, PROVEN_SPLITS, PROVEN_STATES
from meshwright.version import __version__

INSTALL_TRAIN = 'pip install "meshwright[train]"'


class Need(NamedTuple):
    """A package that ours asks for, and the extra that asks for it; empty for the base."""

    package: str
    extra: str


def examine() -> dict[str, Any]:
    """Versions, cores, backends, devices, what the runtime can do here, and what is missing with what installs it."""
    versions = {need.package: version_of(need.package) for need in needs()}
    torch = torch_facts() if versions.get("torch") else None
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": usable_cores(),
        "meshwright": __version__,
        "packages": [
            {"name": need.package, "extra": need.extra, "version": versions[need.package]} for need in needs()
        ],
        "torch": torch,
        "runtime": runtime_facts(torch),
        "planning": {"families": sorted(FAMILIES)},
        "missing": missing(versions, torch),
    }


def needs() -> list[Need]:
    """The packages that Meshwright asks for, by its own metadata; those for development left out."""
    found = []
    for requirement in metadata.requires("meshwright") or ():
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if name and (extra is None or extra.group(1) not in ("dev", "benchmark")):
            found.append(Need(name.group(), extra.group(1) if extra else ""))
    return found


def version_of(package: str) -> str | None:
    """The version that is installed; none where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_facts() -> dict[str, Any]:
    """What torch says of itself: version, CUDA, devices, backends; or why it does not import."""
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:
        return {"error": " ".join(str(error).split())}
    backends = {name: bool(getattr(distributed, f"is_{name}_available")()) for name in ("gloo", "nccl", "mpi")}
    devices = [_device(torch, index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if devices and backends["nccl"] else None,
        "backends": backends,
        "devices": devices,
        "threads": torch.get_num_threads(),
    }


def _device(torch: Any, index: int) -> dict[str, Any]:
    facts = torch.cuda.get_device_properties(index)
    return {"name": facts.name, "memory": facts.total_memory}


def runtime_facts(torch: dict[str, Any] | None) -> dict[str, Any]:
    """What our runtime is proven to run, read from its rules; `ready` where torch is here to run it."""
    return {
        "ready": torch is not None and "error" not in torch,
        "stages": [f"several: {', '.join(name for name, proof in rules_families.FAMILIES.items() if proof.stages)}"],
        "roles": [*PROVEN_SPLITS, *(f"dp/{state}" for state in PROVEN_STATES)],
        "families": [*rules_families.FAMILIES, "traced decoders of one's own"],
        **{name: list(PROVEN[field]) for name, field in _SETTINGS.items()},
    }


_SETTINGS = {
    "schedules": "plan.schedule",
    "dtypes": "recipe.precision.compute",
    "optimizers": "recipe.optimizer.name",
}


def missing(versions: dict[str, str | None], torch: dict[str, Any] | None) -> list[dict[str, str]]:
    """What is not here: what it is, what goes without it, and the command that mends it."""
    absent = [need for need in needs() if versions[need.package] is None]
    found = []
    base = [need.package for need in absent if not need.extra]
    if base:
        found.append({"what": ", ".join(base), "for": "planning", "command": f"pip install {' '.join(base)}"})
    extra = [need.package for need in absent if need.extra]
    if extra:
        found.append({"what": ", ".join(extra), "for": "training", "command": INSTALL_TRAIN})
    if torch is not None and "error" in torch:
        found.append(
            {"what": "a torch that imports", "for": "training", "command": "pip install --force-reinstall torch"}
        )
    return found
