"""A checkpoint: every parameter and optimizer state as one whole tensor by its name, whoever held what of it.

torch's distributed checkpoint (DCP) writes and reads; the planners here tell it which boxes of which tensors a rank
has (`train.parts`), so that a checkpoint of one plan loads under any other. A folder is written beside its place,
brought to the disk, and renamed when it is whole; `checkpoint.json` has the step, what the run was, and a checksum of
every file. Nothing in it is executed when it is read.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from meshwright.errors import MeshwrightError
from meshwright.runtime.parallel_model import ParallelModel
from meshwright.train.agreement import Group, on_all, on_first
from meshwright.train.checkpoint_boxes import METADATA, CheckpointError, LoadPlanner, Reader, SavePlanner, Stored
from meshwright.train.files import checksum, sync_folder, write_synced
from meshwright.train.optimizers import Keeps
from meshwright.train.parts import Piece, pieces

FACTS = "checkpoint.json"
PARAMETERS, OPTIMIZER = "parameters", "optimizer"


def contents(parallel: ParallelModel, stepper: Keeps) -> dict[str, Stored]:
    """What this rank holds of a run, by the tensors' names in a checkpoint. Views: to load is to write into them."""
    found: dict[str, Stored] = {}
    for held, layout in parallel.layouts.items():
        shape = parallel.shapes[layout.name]
        parts = pieces(parallel.module.get_parameter(held), layout, shape)
        found[f"{PARAMETERS}/{layout.name}"] = Stored(shape, tuple(parts))
    for state in stepper.states():
        layout = parallel.layouts[state.parameter]
        shape = state.tensor.shape if state.whole else parallel.shapes[layout.name]
        parts = [Piece((0,) * len(shape), state.tensor)] if state.whole else pieces(state.tensor, layout, shape)
        found[f"{OPTIMIZER}/{layout.name}/{state.name}"] = Stored(shape, tuple(parts))
    return found


def _nothing() -> None:
    pass


def write(
    place: Path,
    stored: Mapping[str, Stored],
    facts: Mapping[str, Any],
    group: Group = None,
    *,
    then: Callable[[], None] = _nothing,
) -> None:
    """Write a checkpoint at `place`, whole or not at all; rank 0 does `then` what follows. Every rank of the group must
    call it.

    Raises CheckpointError on all ranks where one cannot write its part.
    """
    partial = place.with_name(f".{place.name}.partial")
    try:
        on_first(lambda: _empty_folder(partial), group)
        writer = FileSystemWriter(partial, sync_files=True)
        save({}, storage_writer=writer, planner=SavePlanner(stored), process_group=group)
        files = on_all(lambda: {each.name: checksum(each) for each in _written_by(dist.get_rank(), partial)}, group)
        every = {name: known for each in files for name, known in each.items()}
        on_first(lambda: _complete(partial, place, facts, every), group)
        on_first(then, group)
    except (CheckpointException, MeshwrightError, OSError) as error:
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"cannot write the checkpoint {place}: {_first_cause(error)}") from None


def read(place: Path, stored: Mapping[str, Stored], group: Group = None) -> None:
    """Fill what this rank holds from a checkpoint. Every rank of the group must call it, and `check` it before.

    Raises CheckpointError on all ranks where a tensor is missing, or of another shape.
    """
    try:
        load({}, storage_reader=Reader(place), planner=LoadPlanner(stored), process_group=group)
    except (CheckpointException, OSError) as error:
        raise CheckpointError(f"cannot read the checkpoint {place}: {_first_cause(error)}") from None


def read_whole(place: Path, prefix: str = PARAMETERS) -> dict[str, Tensor]:
    """The whole tensors under a prefix, by their names without it, on one process. Raises CheckpointError."""
    facts = read_facts(place)
    _raise_first(_faults(place, facts["files"]), place)
    metadata = Reader(place).read_metadata()
    sizes = {
        name: known
        for name, known in metadata.state_dict_metadata.items()
        if name.startswith(f"{prefix}/") and isinstance(known, TensorStorageMetadata)
    }
    tensors = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in sizes.items()}
    wanted = {name: Stored(each.shape, (Piece((0,) * each.dim(), each),)) for name, each in tensors.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as it should be
        load({}, storage_reader=Reader(place), planner=LoadPlanner(wanted), no_dist=True)
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items()}


def read_facts(place: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises CheckpointError where the folder is none."""
    try:
        facts = json.loads((place / FACTS).read_text(encoding="utf-8"))
        if facts["meshwright_checkpoint"] != 1:
            raise CheckpointError(f"{place}: this Meshwright reads version 1 of checkpoints")
        return dict(facts)
    except OSError as error:
        raise CheckpointError(f"{place} is no checkpoint: cannot read {FACTS} ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"the checkpoint {place} is corrupt: {FACTS} cannot be read; resume from another"
        ) from None


def check(place: Path, group: Group = None) -> dict[str, Any]:
    """The facts of a checkpoint whose files are as they were written; ranks divide the reading. Raises CheckpointError
    on all ranks.
    """
    facts = on_first(lambda: read_facts(place), group)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own = {name: wanted for number, (name, wanted) in enumerate(facts["files"].items()) if number % size == rank}
    for faults in on_all(lambda: _faults(place, own), group):
        _raise_first(faults, place)
    return facts


def _faults(place: Path, files: Mapping[str, Any]) -> list[str]:
    found = []
    for name, wanted in files.items():
        try:
            there = checksum(place / name)
        except OSError as error:
            found.append(f"{name} cannot be read ({error.strerror})")
            continue
        if there != list(wanted):
            found.append(f"{name} is not what was written ({there[0]:,} bytes of {wanted[0]:,}, or other ones)")
    return found


def _raise_first(faults: Iterable[str], place: Path) -> None:
    for fault in faults:
        raise CheckpointError(f"the checkpoint {place} is corrupt: {fault}; resume from another")


def _written_by(rank: int, folder: Path) -> list[Path]:
    own = sorted(folder.glob(f"__{rank}_*.distcp"))
    return [*own, folder / METADATA] if rank == 0 else own


def _empty_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def _complete(partial: Path, place: Path, facts: Mapping[str, Any], files: Mapping[str, list[int]]) -> None:
    """Write the facts, bring all to the disk, and give the folder its name."""
    data = {"meshwright_checkpoint": 1, **facts, "files": files}
    write_synced(partial / FACTS, json.dumps(data, indent=1))
    sync_folder(partial)
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
    sync_folder(place.parent)


def _first_cause(error: BaseException) -> str:
    """What went wrong in a few words: of DCP's collected errors the first."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (failure, _) = next(iter(sorted(error.failures.items())))
        return f"on rank {rank}: {failure}"
    return str(error)
