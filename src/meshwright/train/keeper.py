"""The keeper of a crew: a small process that ends what a parent leaves behind, however the parent ended.

It leads the process group of the crew, so that one signal ends all workers and what they started, and so that the
group's number is nobody else's as long as it lives.
"""

import os
import shutil
import signal
import time
from pathlib import Path

_LOOK = 0.2  # seconds between looks at the parent
_FILES = 4096  # descriptors that a parent may have handed down
_TRIES = 10  # a worker may make a file while its folder is being removed


def keep(parent: int, scratch: Path) -> None:
    """Wait until the process `parent` is gone; remove the scratch directory, then kill the group, oneself included."""
    os.setpgid(0, 0)  # the parent does so too; whoever comes first, the group at the end is not the parent's
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the parent, which may need us next
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, _FILES)  # pipes of the parent whose end others wait for
    while os.getppid() == parent:
        time.sleep(_LOOK)
    for _ in range(_TRIES):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            break
    os.killpg(0, signal.SIGKILL)
