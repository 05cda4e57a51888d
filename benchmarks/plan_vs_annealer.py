"""Our plans beside those of an annealer that knows nothing of the search: random moves, and `mw.estimate` alone.

Run `.venv/bin/python benchmarks/plan_vs_annealer.py [--seconds 60] [--seed N] [--wide]`, for 8 layers and 8 devices.
Axes lie in any order, stages are cut anywhere, each layer has a recompute of its own, and with `--wide` a state of its
own too, which the search tries near its best plans. Exits with 1 where a better plan is found. Seconds are those of
the processor.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import meshwright as mw
from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError
from meshwright.model.hf_config import from_config
from meshwright.model.spec import ModelSpec
from meshwright.plan.spec import ClusterRef, Group, ModelRef, Plan, RecipeRef, Role, Row, Stage
from meshwright.recipe.spec import Recipe

LAYERS, DEVICES = 8, 8
STATES = (None, "zero1", "zero2", "zero3")
RECOMPUTES = ("none", "selective", "full")
HOT, COLD = 0.2, 0.002
"""Temperatures at the beginning and at the end of a round, on the logarithm of a step."""
ROUNDS = 6
GAP = 0.001
"""Within which the search proves its answer here; by default it ends at 0.01, and may leave a plan within that."""
console = Console(width=150)


class Setting(NamedTuple):
    """What is planned."""

    name: str
    width: int
    rows: int
    cluster: str
    batch: int
    sequence: int


SETTINGS = (
    Setting("wide layers, little memory", 6144, 32000, "8xa100-40gb", 32, 4096),
    Setting("a large vocabulary over two nodes", 4096, 128256, "2x4xa100-40gb", 32, 4096),
    Setting("narrow layers, small batch", 2048, 32000, "8xh100", 16, 8192),
)


@dataclass(frozen=True)
class Genome:
    """A plan in the annealer's own terms."""

    pp: int
    axes: tuple[tuple[str, int], ...]
    """Split and size, slowest first."""
    micro_batches: int
    cuts: tuple[int, ...]
    """Layers before each stage but the first."""
    virtual: int
    states: tuple[str | None, ...]
    """Of embedding, layers and head."""
    recomputes: tuple[str, ...]


def model_of(setting: Setting) -> ModelSpec:
    """A Llama of eight layers."""
    sizes = {
        "hidden_size": setting.width,
        "intermediate_size": 11 * setting.width // 4,
        "vocab_size": setting.rows,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": setting.width // 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 16384,
    }
    return from_config({"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | sizes)


Move = Callable[[Genome, random.Random], Genome]


def plan_of(genome: Genome, model: ModelSpec, cluster: Cluster, recipe: Recipe) -> Plan:
    """The plan that a genome stands for. Raises ValueError where it stands for none."""
    names = [f"g{place}" for place in range(genome.pp)]
    size = DEVICES // genome.pp
    mesh = {f"{split.replace('+', '_')}{place}": ways for place, (split, ways) in enumerate(genome.axes)} or {"dp": 1}
    splits = dict(zip(mesh, (split for split, _ in genome.axes), strict=False)) or {"dp": "dp"}
    layers = ["embed", *(f"decoder.{place}" for place in range(LAYERS)), "head"]
    bounds = [0, *(1 + cut for cut in genome.cuts), len(layers)]

    def row(place: int) -> Row:
        roles = {
            axis: Role(split, genome.states[place] if not split.startswith("tp") else None)
            for axis, split in splits.items()
        }
        numbered = 1 <= place <= LAYERS
        return Row(span=layers[place], roles=roles, recompute=genome.recomputes[place - 1] if numbered else "none")

    return Plan(
        model=ModelRef(name=model.name, fingerprint=model.fingerprint),
        cluster=ClusterRef(name=cluster.name, fingerprint=cluster.fingerprint),
        recipe=RecipeRef(global_batch=recipe.global_batch, sequence=recipe.sequence, fingerprint=recipe.fingerprint),
        micro_batches=genome.micro_batches,
        schedule="interleaved" if genome.virtual > 1 else "1f1b",
        groups={
            name: Group(devices=tuple(range(place * size, (place + 1) * size)), mesh=mesh)
            for place, name in enumerate(names)
        },
        stages=tuple(
            Stage(on=names[stage % genome.pp], layers=tuple(row(place) for place in range(first, after)))
            for stage, (first, after) in enumerate(pairwise(bounds))
        ),
    )


def shapes() -> Iterator[tuple[int, tuple[tuple[str, int], ...]]]:
    """Every number of stages with every list of axes."""
    for pp in (1, 2, 4, 8):
        for factors in factorings(DEVICES // pp):
            for splits in choices(len(factors)):
                yield pp, tuple(zip(splits, factors, strict=True))


def factorings(number: int) -> Iterator[tuple[int, ...]]:
    """Ordered factors over 1."""
    if number == 1:
        yield ()
    for factor in (each for each in (2, 4, 8) if number % each == 0):
        yield from ((factor, *rest) for rest in factorings(number // factor))


def choices(count: int) -> Iterator[tuple[str, ...]]:
    """Splits for so many axes."""
    if count == 0:
        yield ()
        return
    for rest in choices(count - 1):
        yield from ((split, *rest) for split in ("dp", "cp", "ulysses", "tp+sp"))


def even(stages: int) -> tuple[int, ...]:
    """Cuts into stages of as many layers."""
    return tuple(LAYERS * stage // stages for stage in range(1, stages))


def reshaped(genome: Genome, chance: random.Random) -> Genome:
    """Another mesh."""
    pp, axes = chance.choice(EVERY)
    virtual = genome.virtual if pp > 1 and pp * genome.virtual <= LAYERS else 1
    return replace(genome, pp=pp, axes=axes, virtual=virtual, cuts=even(pp * virtual))


def rebatched(genome: Genome, chance: random.Random) -> Genome:
    """Another number of micro-batches."""
    return replace(genome, micro_batches=chance.choice([1, 2, 4, 8, 16, 32]))


def restated(genome: Genome, chance: random.Random) -> Genome:
    """Another state of all layers."""
    return replace(genome, states=(chance.choice(STATES),) * (LAYERS + 2))


def one_restated(genome: Genome, chance: random.Random) -> Genome:
    """Another state of one layer."""
    place, state = chance.randrange(LAYERS + 2), chance.choice(STATES)
    return replace(genome, states=(*genome.states[:place], state, *genome.states[place + 1 :]))


def recomputed(genome: Genome, chance: random.Random) -> Genome:
    """Another recompute of all layers."""
    return replace(genome, recomputes=(chance.choice(RECOMPUTES),) * LAYERS)


def one_recomputed(genome: Genome, chance: random.Random) -> Genome:
    """Another recompute of one layer."""
    place, word = chance.randrange(LAYERS), chance.choice(RECOMPUTES)
    return replace(genome, recomputes=(*genome.recomputes[:place], word, *genome.recomputes[place + 1 :]))


def cut_elsewhere(genome: Genome, chance: random.Random) -> Genome:
    """A cut that is shifted by a layer, where there is one to shift."""
    if not genome.cuts:
        return genome
    shifted, place = list(genome.cuts), chance.randrange(len(genome.cuts))
    shifted[place] += chance.choice([-1, 1])
    bounds = [0, *shifted, LAYERS]
    return replace(genome, cuts=tuple(shifted)) if sorted(set(bounds)) == bounds else genome


def interleaved(genome: Genome, chance: random.Random) -> Genome:
    """Another number of stages on each group."""
    virtual = chance.choice([each for each in (1, 2, 4) if genome.pp > 1 and genome.pp * each <= LAYERS] or [1])
    return replace(genome, virtual=virtual, cuts=even(genome.pp * virtual))


MOVES = (reshaped, rebatched, restated, recomputed, one_recomputed, cut_elsewhere, interleaved)
"""Within the search's space, but for the order of the axes."""
WIDER = (*MOVES, one_restated)
"""Beyond it."""
EVERY = list(shapes())


class Best(NamedTuple):
    """The annealer's best."""

    seconds: float
    genome: Genome | None
    tried: int


def anneal(setting: Setting, seconds: float, seed: int, moves: Sequence[Move] = MOVES) -> Best:
    """Rounds of annealing, each from a new start."""
    model, cluster = model_of(setting), mw.cluster(setting.cluster)
    recipe = mw.recipe(global_batch=setting.batch, sequence=setting.sequence)
    chance = random.Random(seed)
    known: dict[Genome, float] = {}

    def cost(genome: Genome) -> float:
        if genome not in known:
            known[genome] = priced(genome, model, cluster, recipe)
        return known[genome]

    best, best_cost = None, math.inf
    for _ in range(ROUNDS):
        now = Genome(1, (("dp", 8),), 4, (), 1, ("zero3",) * (LAYERS + 2), ("full",) * LAYERS)
        for _ in range(4):
            now = chance.choice(moves)(now, chance)
        at, began = cost(now), time.process_time()
        while (gone := (time.process_time() - began) / (seconds / ROUNDS)) < 1:
            other = chance.choice(moves)(now, chance)
            there = cost(other)
            heat = HOT * (COLD / HOT) ** gone
            if there <= at or (math.isfinite(there) and chance.random() < math.exp(math.log(at / there) / heat)):
                now, at = other, there
            if at < best_cost:
                best, best_cost = now, at
    return Best(best_cost, best, len(known))


def priced(genome: Genome, model: ModelSpec, cluster: Cluster, recipe: Recipe) -> float:
    """Seconds of a step; infinite for what has no meaning or does not fit."""
    try:
        plan = plan_of(genome, model, cluster, recipe)
        found = mw.estimate(plan, model=model, cluster=cluster, recipe=recipe)
    except (PlanError, ValueError):
        return math.inf
    return found.step_time_s if found.fits else math.inf


def main() -> int:
    """Search, anneal, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wide", action="store_true", help="a state for each layer")
    given = parser.parse_args()
    table = Table(title=f"search and annealer, {given.seconds:g} s")
    for name in ("setting", "search, step s", "gap", "search s", "annealer, step s", "plans", "annealer is slower by"):
        table.add_column(name, justify="left" if name == "setting" else "right")
    better, moves = [], WIDER if given.wide else MOVES
    for setting in SETTINGS:
        recipe = mw.recipe(global_batch=setting.batch, sequence=setting.sequence)
        began = time.process_time()
        ours = mw.plan(model_of(setting), setting.cluster, recipe, gap=GAP, time_limit=300.0)
        spent, theirs = time.process_time() - began, anneal(setting, given.seconds, given.seed, moves)
        step = ours.estimate.step_time_s
        if theirs.seconds < step * (1 - 1e-9):
            better.append(f"{setting.name}: {theirs.genome}")
        cells = (f"{step:.6g}", f"{ours.gap:.2%}", f"{spent:.2f}", f"{theirs.seconds:.6g}", f"{theirs.tried:,}")
        table.add_row(f"{setting.name}, {setting.cluster}", *cells, f"{theirs.seconds / step - 1:+.2%}")
    console.print(table)
    for each in better:
        console.print(f"the annealer found a better plan: {each}")
    return 1 if better else 0


if __name__ == "__main__":
    sys.exit(main())
