"""The machine it runs on, with and without GPUs. A small script stands in for nvidia-smi."""

import os
from pathlib import Path

import pytest

from meshwright.cluster import local
from meshwright.cluster.resolve import resolve_cluster
from meshwright.cluster.spec import Cluster
from meshwright.errors import MeshwrightError

H100 = "NVIDIA H100 80GB HBM3, 81559"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH; `says` puts an nvidia-smi there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def says(folder: Path, text: str, code: int = 0) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '%s\\n' \"{text}\"\nexit {code}\n")
    tool.chmod(0o755)


def test_without_gpus_it_is_a_process_on_each_core(driver: Path) -> None:
    cluster = resolve_cluster("local")
    cores = local.usable_cores()
    assert (cluster.name, cluster.size) == ("local", cores)
    assert cluster.devices["cpu"].backend == "gloo"
    assert cluster.devices["cpu"].memory * cores == pytest.approx(local.machine_memory(), rel=1e-6)
    assert "operating system" in cluster.devices["cpu"].origin("memory").source
    assert Cluster.parse(cluster.to_yaml()) == cluster


def test_cores_are_counted_where_the_system_knows_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert local.usable_cores() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert local.usable_cores() == 1


def test_gpus_are_those_of_the_catalogue_with_the_memory_that_they_have(driver: Path) -> None:
    says(driver, "\n".join([H100, H100, "NVIDIA H100 80GB HBM3, 81000"]))
    cluster = resolve_cluster("local")
    assert (cluster.size, cluster.pools[0].device) == (3, "h100")
    assert cluster.devices["h100"].memory == 81000 * 2**20
    assert cluster.devices["h100"].peak["bf16"] == 989.4e12
    assert cluster.route([0, 2]).link_name == "nvlink4"
    host = cluster.pools[0].host
    assert host is not None
    assert (host.memory, host.link) == (local.machine_memory(), "pcie5")
    assert Cluster.parse(cluster.to_yaml()) == cluster


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("NVIDIA H100 81GB HBM3, 81559", 0, "did you mean 'NVIDIA H100 80GB HBM3'?"),
        (f"{H100}\nTesla T4, 15360", 0, "unlike GPUs"),
        ("NVIDIA H100 80GB HBM3, lots", 0, "cannot read what nvidia-smi says"),
        ("Driver/library version mismatch", 18, "nvidia-smi failed: Driver/library version mismatch"),
    ],
)
def test_gpus_that_are_not_understood_are_said_so(driver: Path, text: str, code: int, said: str) -> None:
    says(driver, text, code)
    with pytest.raises(MeshwrightError) as caught:
        resolve_cluster("local")
    assert said in str(caught.value)


@pytest.mark.parametrize(("text", "code"), [("No devices were found", 6), ("", 0)])
def test_a_driver_without_gpus_leaves_the_cores(driver: Path, text: str, code: int) -> None:
    says(driver, text, code)
    assert resolve_cluster("local").pools[0].device == "cpu"
