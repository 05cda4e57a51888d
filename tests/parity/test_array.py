"""A share of what `make parity` proves: another with each commit, once the whole has been proven (docs/parity.md)."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.parity.proof import Pools, prove_case
from tests.parity.run import DOCUMENT, ROOT, case_named, names

SHARES = 6


def _turn() -> int:
    """Which share it is: the commit's; the first without git, or while the whole has not been proven once."""
    if not DOCUMENT.exists():
        return 0
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(told.stdout, 16) % SHARES if told.returncode == 0 else 0


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Ranks of any number."""
    with Pools() as made:
        yield made


@pytest.mark.parametrize("name", names()[_turn() :: SHARES])
def test_many_processes_equal_one(pools: Pools, name: str) -> None:
    case, _ = case_named(name)
    proven = prove_case(pools, case)
    assert proven.holds, f"{proven.says}; make parity CASE={name}"
