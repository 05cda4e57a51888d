"""One thread a process, set before any test module can import torch; one pool of workers for all tests."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs ignore Ctrl-C, and so would every child that the tests send one.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A neighbour on the same cores makes any example slow: what must be quick is measured by tests of its own.
# The suite draws the same examples every time, so that what passes here passes elsewhere; `make hunt` draws others.
settings.register_profile("suite", settings(deadline=None, derandomize=True))
settings.register_profile("hunt", settings(deadline=None))
settings.load_profile("suite")

if TYPE_CHECKING:
    from meshwright.train.launch import WorkerPool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, so that no process is left alone with it at the end."""
    items.sort(key=lambda item: item.path.name != "test_demo.py")


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end: the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def pool() -> "Iterator[WorkerPool]":
    """Four forked workers, torch and transformers imported before the fork."""
    from meshwright.train.launch import WorkerPool, preload

    preload()
    with WorkerPool(4) as workers:
        yield workers
