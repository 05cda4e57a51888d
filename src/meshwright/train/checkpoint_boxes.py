"""What DCP is told: which boxes of which whole tensors a rank has, and that nothing is executed when it reads."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from meshwright.errors import MeshwrightError, did_you_mean
from meshwright.train.parts import Piece

METADATA = ".metadata"
"""DCP's own file, which says where each box is."""


class CheckpointError(MeshwrightError):
    """A checkpoint that cannot be written or read. What was whole before is whole still."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: its whole shape, and what this rank has of it."""

    shape: torch.Size
    pieces: tuple[Piece, ...]

    def copied(self) -> "Stored":
        """The same in memory of its own, on the host."""
        copies = (Piece(each.offsets, each.tensor.to("cpu", copy=True)) for each in self.pieces)
        return Stored(self.shape, tuple(copies))


class SavePlanner(DefaultSavePlanner):
    """Tells DCP of this rank's boxes. What several ranks hold, one of them writes."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._stored = stored
        self._boxes = {(name, box.offsets): box.tensor for name, each in stored.items() for box in each.pieces}

    def create_local_plan(self) -> SavePlan:
        """A write for every box."""
        items = [_write_item(name, each.shape, box) for name, each in self._stored.items() for box in each.pieces]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The memory of a box."""
        return self._boxes[index.fqn, tuple(index.offset or ())]


def _write_item(name: str, shape: torch.Size, box: Piece) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(box.offsets), box.tensor.shape)
    properties = TensorProperties(dtype=box.tensor.dtype)
    data = TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(shape))
    return WriteItem(MetadataIndex(name, torch.Size(box.offsets)), WriteItemType.SHARD, tensor_data=data)


class LoadPlanner(DefaultLoadPlanner):
    """Tells DCP which boxes this rank wants."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._stored = stored
        self._boxes = {(name, box.offsets): box.tensor for name, each in stored.items() for box in each.pieces}
        self._known: Mapping[str, Any] = {}

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Take what the checkpoint has."""
        assert metadata is not None
        self._known, self.is_coordinator = metadata.state_dict_metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """The reads that fill every box."""
        return LoadPlan([item for name, each in self._stored.items() for item in self._reads(name, each)])

    def _reads(self, name: str, wanted: Stored) -> list[Any]:
        known = self._known.get(name)
        if known is None:
            raise CheckpointError(f"it has no '{name}'; {did_you_mean(name, self._known)}")
        if known.size != wanted.shape:
            raise CheckpointError(f"'{name}' is {tuple(known.size)} there, and {tuple(wanted.shape)} here")
        boxes = [ChunkStorageMetadata(torch.Size(box.offsets), box.tensor.shape) for box in wanted.pieces]
        return create_read_items_for_chunk_list(name, known, boxes)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The memory of a box."""
        return self._boxes[index.fqn, tuple(index.offset or ())]


class Reader(FileSystemReader):
    """DCP's reader, which takes no code from the metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata, of which only DCP's own records are made."""
        with (Path(self.path) / METADATA).open("rb") as file:
            metadata: Metadata = _Records(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_HARMLESS = {("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"), ("pathlib", "WindowsPath")}
"""What else metadata has: the checkpoint's own path, and how tensors of it lie."""


class _Records(pickle.Unpickler):
    """An unpickler of records of DCP and torch's sizes and types; all else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """A class that metadata is made of."""
        if module in _MODULES or (module, name) in _HARMLESS:
            return super().find_class(module, name)
        found = getattr(torch, name, None) if module == "torch" else None
        if found is torch.Size or isinstance(found, torch.dtype | torch.layout | torch.memory_format):
            return found
        raise pickle.UnpicklingError(f"a checkpoint has no business with {module}.{name}")
