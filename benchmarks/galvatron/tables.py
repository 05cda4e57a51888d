"""What Galvatron's search engine was given and what it answered (`benchmarks/data/galvatron/SOURCE.md`)."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

DATA = Path(__file__).parents[1] / "data" / "galvatron"
SETTINGS = tuple(sorted(file.name.removesuffix(".tables.json.gz") for file in DATA.glob("*.tables.json.gz")))
INFLATION = 1e-7 * 1024 * 1024 / 1e-3
"""Bytes by milliseconds per MB are seconds when they are multiplied by 1e-3 / 1024 ** 2; Galvatron multiplies by 1e-7,
to make changes between neighbours rare (`dynamic_programming.py`, "Expand communication cost")."""
TIE_BREAK = 1e-8
"""Its costs of changes below this break ties and stand for nothing that moves."""


@dataclass(frozen=True, eq=False)
class Task:
    """One dynamic programme of Galvatron: S strategies for layers, E for embedding and head, P stages."""

    batch: int
    micro_batches: int
    stages: tuple[int, ...]
    """Layers of each stage."""
    budget: int
    """MB."""
    names: tuple[str, ...]
    """Of the strategies, as pipeline-tensor-data degrees: `*` for a split of tensors or sequence, `f` for zero3, `c`
    for recompute."""
    recompute: NDArray[np.bool_]
    """[S]"""
    sync: Floats
    """Seconds of a layer and micro-batch with the reduction of gradients [S]."""
    nosync: Floats
    """The same without it [S]."""
    change: Floats
    """Seconds from a layer's strategy to the next layer's, as Galvatron counts them [S, S]."""
    memory: Integers
    """MB of a layer at each stage [P, S]."""
    embed_sync: Floats
    """Seconds of embedding and head, with the reduction of gradients [E, P]."""
    embed_nosync: Floats
    """The same without it [E, P]."""
    other: Integers
    """MB beside the layers [E, P]."""
    costs: Floats
    """What Galvatron's dynamic programme found for the layers: the least seconds [E, P], infinite where nothing
    fits."""
    steps: tuple[float, ...]
    """Galvatron's seconds of a step for each embedding strategy that fits."""

    @property
    def moved(self) -> Floats:
        """Physical seconds of a change [S, S]."""
        return np.where(self.change > TIE_BREAK, self.change / INFLATION, 0.0)


def load(setting: str) -> list[Task]:
    """The tasks of a setting."""
    with gzip.open(DATA / f"{setting}.tables.json.gz", "rt", encoding="utf-8") as file:
        return [_task(row) for row in json.load(file)]


def published(setting: str) -> dict[str, Any]:
    """Galvatron's answer to a setting."""
    answer: dict[str, Any] = json.loads((DATA / f"{setting}.result.json").read_text(encoding="utf-8"))
    return answer


def _task(row: dict[str, Any]) -> Task:
    shape = len(row["embed_strategies"]), row["pp"]
    calls: Sequence[dict[str, Any]] = row["dp_calls"]
    return Task(
        batch=row["gbsz"],
        micro_batches=row["chunks"],
        stages=tuple(row["stages"]),
        budget=row["budget_mb"],
        names=tuple(_name(strategy) for strategy in row["strategies"]),
        recompute=np.array([strategy["ckpt"] for strategy in row["strategies"]]),
        sync=np.array(row["layer_time_sync_s"]),
        nosync=np.array(row["layer_time_nosync_s"]),
        change=np.array(row["inter_cost_s"]),
        memory=np.array(row["layer_mem_mb_by_stage"]),
        embed_sync=np.array([each["sync"] for each in row["embed_time_s"]]),
        embed_nosync=np.array([each["nosync"] for each in row["embed_time_s"]]),
        other=np.array([call["other_mem"] for call in calls]).reshape(shape),
        costs=np.array([call["cost"] - call["other_time"] for call in calls]).reshape(shape),
        steps=tuple(row["pipeline_costs"]),
    )


def _name(strategy: dict[str, Any]) -> str:
    """
    >>> _name({"pp": 4, "tp": 2, "sp": 1, "dp": 2, "dp_type": "zero3", "ckpt": True})
    '4-2*-2f-c'
    >>> _name({"pp": 1, "tp": 1, "sp": 4, "dp": 2, "dp_type": "zero2", "ckpt": False})
    '1-sp4*-2'
    """
    split = f"sp{strategy['sp']}*" if strategy["sp"] > 1 else f"{strategy['tp']}{'*' if strategy['tp'] > 1 else ''}"
    sharded = "f" if strategy["dp_type"] == "zero3" else ""
    return f"{strategy['pp']}-{split}-{strategy['dp']}{sharded}{'-c' if strategy['ckpt'] else ''}"
