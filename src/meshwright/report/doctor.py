"""What `doctor` found, for a person."""

from typing import Any

from meshwright.report.blocks import Block, Facts, Lines, table
from meshwright.units import show_bytes


def doctor_blocks(found: dict[str, Any]) -> list[Block]:
    """`measure.doctor.examine`'s findings as blocks."""
    machine = (
        ("meshwright", found["meshwright"]),
        ("python", f"{found['python']} ({found['executable']})"),
        ("platform", found["platform"]),
        ("cores", str(found["cores"])),
        *_torch(found["torch"]),
    )
    return [Facts("this machine", machine), _packages(found), _abilities(found), _missing(found)]


def _torch(torch: dict[str, Any] | None) -> list[tuple[str, str]]:
    if torch is None:
        return [("torch", "not installed: plans can be made and checked here, not run")]
    if "error" in torch:
        return [("torch", f"installed, but does not import: {torch['error']}")]
    cuda = f"CUDA {torch['cuda']}" if torch["cuda"] else "a CPU build"
    nccl = f" {torch['nccl']}" if torch["nccl"] else ""
    backends = [f"{name}{nccl * (name == 'nccl')}" for name, there in torch["backends"].items() if there]
    devices = [f"{device['name']} ({show_bytes(device['memory'])})" for device in torch["devices"]]
    return [
        ("torch", f"{torch['version']}, {cuda}, {torch['threads']} threads"),
        ("backends", ", ".join(backends) or "none"),
        ("devices", ", ".join(devices) or "no GPU that torch can use; processes on the CPU"),
    ]


def _packages(found: dict[str, Any]) -> Block:
    rows = [(each["name"], each["version"] or "not installed", each["extra"] or "base") for each in found["packages"]]
    return table("packages", "package | version | needed by", rows)


def _abilities(found: dict[str, Any]) -> Block:
    runtime = found["runtime"]
    names = ("roles", "stages", "families", "dtypes", "optimizers")
    proven = tuple((name, ", ".join(map(str, runtime[name]))) for name in names)
    ready = "what the runtime can run here" if runtime["ready"] else "what the runtime could run here, with torch"
    return Facts(ready, proven)


def _missing(found: dict[str, Any]) -> Block:
    lines = tuple(f"{each['what']}, for {each['for']}: {each['command']}" for each in found["missing"])
    return Lines("missing", lines, "warning") if lines else Lines("", ("Nothing is missing.",), "good")
