"""What a system is to us: its table of keys, its files, and what follows from several of its keys together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError
from meshwright.export.fields import Fields, equal_experts, parallel
from meshwright.export.keys import Key, Values
from meshwright.model.spec import ModelSpec
from meshwright.plan.rules import Inputs
from meshwright.plan.words import Kernels


class Given(NamedTuple):
    """What settings are read for."""

    model: ModelSpec
    cluster: Cluster

    @property
    def layers(self) -> int:
        """Numbered layers of the model."""
        return sum(layer.index is not None for layer in self.model.layers)


def _same(fields: Fields, _: Any) -> Fields:
    return fields


def _no_model(fields: Fields) -> dict[str, Any] | str | None:
    return None


def _no_notes(inputs: Inputs) -> list[str]:
    return []


@dataclass(frozen=True)
class System:
    """One system. What it can be told of a plan, beyond its keys, is its row of `plan.targets`."""

    name: str
    release: str
    keys: tuple[Key, ...]
    files: Callable[[Values], dict[str, str]] | None = None
    """Values → file names and texts; none where plans are only taken in."""
    finish: Callable[[Fields, Given], Fields] = _same
    """What was read → fields of a plan."""
    prepare: Callable[[Fields, Inputs], Fields] = _same
    """Fields of a plan → what the keys say."""
    model: Callable[[Fields], dict[str, Any] | str | None] = _no_model
    """The model of what was read: a configuration, a name of the catalogue; none where it says too little."""
    notes: Callable[[Inputs], list[str]] = _no_notes
    """What a user has to do beside the files."""
    kernels: Kernels = "hf-sdpa"
    """What it fuses and keeps, where nothing else is known."""
    refers: tuple[str, ...] = ()
    """Flags that name a file with more settings."""


def take(fields: Fields, **others: Any) -> Fields:
    """Fields with some in place of what they were; none: taken out."""
    return {name: value for name, value in (fields | others).items() if value is not None}


def replicas(fields: Fields, given: Given) -> int:
    """How many ranks hold other samples: what the other degrees leave of the devices. Raises PlanError."""
    inner = parallel(fields, "tp", "pp", "cp", "ulysses")
    world = fields.get("world") or given.cluster.size
    if world > given.cluster.size:
        has = f"'{given.cluster.name}' has {given.cluster.size}"
        raise PlanError(f"{world} devices are asked for, and {has}; give another --cluster")
    if world % inner:
        factors = ", ".join(
            f"{name} {fields[name]}" for name in ("tp", "pp", "cp", "ulysses") if (fields.get(name) or 1) > 1
        )
        raise PlanError(f"{factors}: {inner} does not divide {world} devices; give another --cluster")
    return world // inner


def with_replicas(fields: Fields, given: Given) -> Fields:
    """Fields with the dp that the devices leave, and `shard` from the number of replicas that hold whole states."""
    dp = replicas(fields, given)
    equal = dp * parallel(fields, "cp", "ulysses")
    copies = fields.get("copies") or 1
    if equal % copies:
        raise PlanError(f"{copies} replicas do not divide the {equal} ranks that hold equal parameters")
    shard = equal // copies if copies > 1 and fields.get("zero") else None
    shared = equal > copies or (copies == 1 and equal_experts(fields, equal) > 1)
    return take(fields, dp=dp, shard=shard if shard != 1 else None, zero=fields.get("zero") if shared else 0)


def copies_of(fields: Fields) -> int:
    """The opposite: how many replicas hold what `shard` ranks shard together."""
    shard = fields.get("shard")
    return parallel(fields, "dp", "cp", "ulysses") // shard if shard else 1


def offloaded(fields: Fields) -> Fields:
    """What `offloads` says of a system that takes parameters and optimizer states together."""
    return dict.fromkeys(("offload.parameters", "offload.optimizer"), bool(fields.get("offloads")))
