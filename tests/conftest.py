"""One thread a process, set before any test module can import torch; one pool of workers for all tests."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs ignore Ctrl-C, and so would every child that the tests send one.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from meshwright.train.launch import WorkerPool


@pytest.fixture(scope="session")
def pool() -> "Iterator[WorkerPool]":
    """Four forked workers, torch and transformers imported before the fork."""
    from meshwright.train.launch import WorkerPool, preload

    preload()
    with WorkerPool(4) as workers:
        yield workers
