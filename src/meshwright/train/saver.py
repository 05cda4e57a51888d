"""When a run saves: at once, or beside its next steps from a copy on the host."""

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed as dist

from meshwright.recipe.run import Checkpoints as Policy
from meshwright.train import checkpoint
from meshwright.train.checkpoint_boxes import Stored
from meshwright.train.checkpoints import Checkpoints


class Saver:
    """Saves the checkpoints of a run. `facts` tells what a checkpoint says of itself at a step; `last` is the step of
    the one that the run goes on from.
    """

    def __init__(
        self, folder: Path, policy: Policy, facts: Callable[[int], Mapping[str, Any]], *, last: int | None
    ) -> None:
        self._places, self._policy, self._facts = Checkpoints(folder), policy, facts
        # Of its own: what is written beside the steps talks while they do.
        self._group = dist.new_group(backend="gloo")
        self._thread: Thread | None = None
        self._fault: BaseException | None = None
        self.last = last
        """The step of the last checkpoint."""

    def due(self, step: int) -> bool:
        """Whether a step's checkpoint is wanted by the policy."""
        return self._policy.every is not None and step % self._policy.every == 0

    def save(self, step: int, contents: Mapping[str, Stored], *, wait: bool = False) -> Path:
        """Save what this rank holds after so many steps; every rank must. Raises CheckpointError on all ranks, where it
        is written in the background at the next call.
        """
        self.finish()
        self.last = step
        if wait or not self._policy.background:
            return self._write(step, contents)
        copies = {name: each.copied() for name, each in contents.items()}
        self._thread = Thread(target=self._try, args=(step, copies), name="checkpoint")
        self._thread.start()
        return self._places.place(step)

    def finish(self) -> None:
        """Wait until what is being written is whole. Raises CheckpointError on all ranks where it cannot be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _try(self, step: int, contents: Mapping[str, Stored]) -> None:
        try:
            self._write(step, contents)
        except BaseException as error:  # noqa: BLE001  it is raised where the step is
            self._fault = error

    def _write(self, step: int, contents: Mapping[str, Stored]) -> Path:
        place = self._places.place(step)

        def then() -> None:
            self._places.name_latest(place)
            self._places.keep(self._policy.keep)

        checkpoint.write(place, contents, self._facts(step), self._group, then=then)
        return place
