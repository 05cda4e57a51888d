"""Initial values of a module on the meta device: what its own initialisation would do, told once and done later.

The module's initialisation runs as it is, on tensors without memory, and every operator that writes one is noted. A
tensor's values are then made by replaying, on real memory, the notes that they follow from. Draws start from the seed
and the name of the tensor that they fill, so a tensor has the same values whoever makes it, in whatever order; those of
a tied parameter are made once. On devices of one kind they are the same under every plan and number of processes.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from meshwright.errors import PlanError
from meshwright.runtime.torch_private import SkippedOnMeta, storage_of, written_by

_RESETS = ("reset_parameters", "_reset_parameters")
"""Methods with which a plain module initialises itself: torch's convention for modules built on meta."""
_ROOT = "initialize_weights"
"""The method with which a transformers model initialises all of its modules, anew where its marks are gone."""
_DONE = "_is_hf_initialized"
"""transformers' mark on modules and tensors that are not to be initialised (again)."""
_FILLS = {"normal_", "uniform_", "zero_", "fill_", "copy_", "exponential_", "log_normal_", "cauchy_", "bernoulli_"}
"""Operators that write all of their tensor and read none of it."""


class Note(NamedTuple):
    """One operator of an initialisation, with the storages that it takes part in."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    reads: frozenset[int]
    writes: frozenset[int]
    fills: frozenset[int]
    """Of what it writes: what it writes whole, whatever was there."""
    draws: bool


class Notebook(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that write tensors on meta while active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes: list[Note] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let it run, and note it where it wrote."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        reads = frozenset(storage_of(each) for each in _on_meta((args, kwargs)))
        made = frozenset(storage_of(each) for each in _on_meta(out)) - reads
        written = [each for each in written_by(func, args, kwargs) if each.is_meta]
        writes = made | {storage_of(each) for each in written}
        if writes:
            fills = made | (_filled(written) if func._overloadpacket.__name__ in _FILLS else frozenset())
            draws = torch.Tag.nondeterministic_seeded in func.tags
            self.notes.append(Note(func, args, kwargs, out, reads - fills, writes, fills, draws))
        return out

    def note_call(self, function: Any, args: list[Any]) -> None:
        """Note a function of torch.nn.init that does nothing on meta: it would write all of its first argument."""
        tensor: Tensor = args[0]
        if tensor.is_meta:
            written, fills = frozenset((storage_of(tensor),)), _filled([tensor])
            self.notes.append(Note(function, tuple(args), {}, None, written - fills, written, fills, True))


def _on_meta(values: Any) -> Iterator[Tensor]:
    return (each for each in tree_flatten(values)[0] if isinstance(each, Tensor) and each.is_meta)


def _filled(written: list[Tensor]) -> frozenset[int]:
    whole = (each for each in written if each.nbytes == each.untyped_storage().nbytes())
    return frozenset(storage_of(each) for each in whole)


class InitialValues:
    """What a module on meta starts from. Raises PlanError where its own initialisation leaves a tensor without values.

    >>> linear = nn.Linear(4, 8, device="meta")
    >>> values = InitialValues(linear, seed=1)
    >>> weight = values.make("weight", torch.device("cpu"))
    >>> weight.shape, bool(weight.abs().max() <= 0.5)  # kaiming: at most 1/sqrt(4)
    (torch.Size([8, 4]), True)
    """

    def __init__(self, module: nn.Module, seed: int) -> None:
        self._seed = seed
        self._tensors: dict[str, Tensor] = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        self._names = {storage_of(each): name for name, each in reversed(self._tensors.items()) if each.is_meta}
        with torch.no_grad(), Notebook() as notebook, SkippedOnMeta(notebook.note_call):
            _initialise(module)
        self._notes = notebook.notes
        written = {storage for note in self._notes for storage in note.writes}
        bare = next((name for storage, name in self._names.items() if storage not in written), None)
        if bare is not None:
            raise PlanError(
                f"'{bare}' has no values (it is on meta), and the module's own initialisation gives it none: let a "
                "method reset_parameters of its module write it, or build the module on a real device"
            )

    def make(self, name: str, device: torch.device) -> Tensor:
        """The whole values of a parameter or buffer, by the first of its names: a new tensor."""
        like = self._tensors[name]
        memory = _Memory(device)
        devices = [] if device.type == "cpu" else [device]
        with torch.no_grad(), torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            memory.room(like)
            draws: Counter[str] = Counter()
            for note in self._needed(storage_of(like)):
                if note.draws:
                    site = next((self._names[each] for each in note.writes if each in self._names), name)
                    _seed(device, self._start(site, draws[site]))
                    draws[site] += 1
                memory.replay(note)
            return memory.real(like)

    def _start(self, site: str, draw: int) -> int:
        """What a draw starts from. (torch's generator for CPUs takes 32 bits of it.)"""
        digest = hashlib.blake2b(f"{self._seed}/initial/{site}/{draw}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _needed(self, storage: int) -> list[Note]:
        """The notes that a storage's values follow from, in order: found from the last one back."""
        wanted, found = {storage}, []
        for note in reversed(self._notes):
            if not wanted.isdisjoint(note.writes):
                found.append(note)
                wanted = (wanted - note.fills) | note.reads
                if not wanted:
                    break
        return found[::-1]


class _Memory:
    """Real storages in the place of those on meta."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages: dict[int, torch.UntypedStorage] = {}

    def room(self, like: Tensor) -> None:
        """Memory for a tensor's storage."""
        size = like.untyped_storage().nbytes()
        self._storages[storage_of(like)] = torch.UntypedStorage(size, device=self._device)  # type: ignore[no-untyped-call]

    def real(self, like: Tensor) -> Tensor:
        """The tensor, or the view, on real memory."""
        if storage_of(like) not in self._storages:
            self.room(like)
        empty = torch.empty(0, dtype=like.dtype, device=self._device)
        return empty.set_(self._storages[storage_of(like)], like.storage_offset(), like.size(), like.stride())

    def replay(self, note: Note) -> None:
        """Do on real memory what was noted; keep what came out anew."""
        out = note.operator(*tree_map(self._real, note.args), **tree_map(self._real, note.kwargs))
        for meta, real in zip(tree_flatten(note.out)[0], tree_flatten(out)[0], strict=False):
            if isinstance(meta, Tensor) and meta.is_meta:
                self._storages.setdefault(storage_of(meta), real.untyped_storage())

    def _real(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.real(value) if value.is_meta else value
        return self._device if value == torch.device("meta") else value


def _seed(device: torch.device, start: int) -> None:
    """Let what is drawn next start here. (`torch.manual_seed` seeds every kind of device there is, at 3 ms a call.)"""
    torch.default_generator.manual_seed(start)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(start)


def _initialise(module: nn.Module) -> None:
    """Run a module's own initialisation, the innermost modules' first, as `nn.Module.apply` goes."""
    _reset(module)
    root = getattr(module, _ROOT, None)
    if root is None:
        return
    marked: list[Any] = [*module.modules(), *module.parameters(), *module.buffers()]
    marked = [each for each in marked if vars(each).pop(_DONE, None)]
    root()
    for each in marked:
        setattr(each, _DONE, True)


def _reset(module: nn.Module) -> None:
    for child in module.children():
        _reset(child)
    reset = next((getattr(module, name) for name in _RESETS if hasattr(module, name)), None)
    if reset is not None:
        reset()
    elif hasattr(module, "_init_weights") and not hasattr(module, _ROOT):
        raise PlanError(
            f"{type(module).__name__} has a method _init_weights, which says nothing of when it is called: let a "
            "method reset_parameters do its work, or build the module on a real device"
        )
