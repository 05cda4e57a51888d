"""The degrees of a uniform plan: whether they fit the devices and the experts, and the nearest ones that do."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from meshwright.cluster.spec import Cluster
from meshwright.errors import PlanError
from meshwright.model.spec import ModelSpec
from meshwright.plan.numbers import divides, nearest_number
from meshwright.plan.refine import Piece, refine, shard_nearest
from meshwright.plan.spec import STATEFUL

RankOrder = Literal["megatron", "megatron-pp-dp"]
"""Megatron-LM's order of ranks, or that of its `--use-tp-pp-dp-mapping`, where pp varies faster than dp."""

COUNTED = ("tp", "ulysses", "cp", "pp", "ep", "etp")
"""Those that one says; dp is what devices they leave."""


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """How many ways a uniform plan splits by each kind of parallelism."""

    tp: int
    ulysses: int
    cp: int
    pp: int
    ep: int
    etp: int
    dp: int
    rank_order: RankOrder

    @property
    def inner(self) -> int:
        """Ranks that share samples."""
        return self.tp * self.ulysses * self.cp

    @property
    def stage(self) -> int:
        """Ranks of a stage."""
        return self.inner * self.dp

    @property
    def experts_apart(self) -> bool:
        """Whether experts have roles of their own."""
        return self.ep > 1 or self.etp != self.tp

    def mesh(self) -> tuple[Piece, ...]:
        """The axes of a stage, fastest first. Raises ValueError where no mesh serves both layers and experts."""
        dense = {"tp": self.tp, "ulysses": self.ulysses, "cp": self.cp, "dp": self.dp}
        if not self.experts_apart:
            return refine(dense)
        inside = self.etp * self.ep
        if self.stage % inside or (self.rank_order == "megatron-pp-dp" and self.pp > 1 and inside != self.inner):
            raise ValueError("the experts' stages are not the layers'")
        return refine(dense, {"tp": self.etp, "ep": self.ep, "dp": self.stage // inside})

    def devices(self, stage: int) -> tuple[int, ...]:
        """The ranks of a stage, in order."""
        if self.rank_order == "megatron":
            return tuple(range(stage * self.stage, (stage + 1) * self.stage))
        starts = range(stage * self.inner, self.pp * self.stage, self.pp * self.inner)
        return tuple(start + place for start in starts for place in range(self.inner))


def fit_devices(
    degrees: Degrees, cluster: Cluster, dp: int | None, suits: Callable[[Degrees], bool] = lambda _: True
) -> Degrees:
    """With this dp, or else the one that the number of devices leaves. `degrees.dp` is 1; `suits` says which degrees
    the model can take, so that what is proposed is not refused next.

    Raises PlanError where the degrees do not divide the devices, or need more of them.
    """
    for name, size in (*((name, getattr(degrees, name)) for name in COUNTED), ("dp", dp)):
        if size is not None and size < 1:
            raise PlanError(f"{name} counts ranks, from 1 on (got {size})")
    world, without_dp = cluster.size, degrees.stage * degrees.pp
    if without_dp > world or (dp is None and world % without_dp):
        fault = f"{_product(degrees)} does not divide the {world} devices of '{cluster.name}'"
        raise PlanError(f"{fault}; {_mended(degrees, world, suits)}")
    most = world // without_dp
    if dp is not None and dp > most:
        needs = _product(replace(degrees, dp=dp))
        raise PlanError(f"{needs} is more than the {world} devices of '{cluster.name}'; take dp {most}")
    return replace(degrees, dp=most if dp is None else dp)


def _product(degrees: Degrees) -> str:
    named = [(name, getattr(degrees, name)) for name in ("tp", "ulysses", "cp", "pp", "dp")]
    factors = [f"{name} {size}" for name, size in named if size > 1]
    return f"{' x '.join(factors)} = {degrees.stage * degrees.pp}" if len(factors) > 1 else factors[0]


def _mended(degrees: Degrees, world: int, suits: Callable[[Degrees], bool]) -> str:
    """The smallest change to one degree that makes the product divide the world, and suits the model."""
    found: list[tuple[int, str]] = []
    for name in ("tp", "ulysses", "cp", "pp"):
        size = getattr(degrees, name)
        rest = degrees.inner * degrees.pp // size
        if size == 1 or world % rest:
            continue
        if near := nearest_number(size, _working(degrees, name, world // rest, suits), otherwise=0):
            found.append((abs(near - size), f"take {name} {near}"))
    return min(found)[1] if found else f"take degrees whose product divides {world}"


def _working(degrees: Degrees, name: str, ranks: int, suits: Callable[[Degrees], bool]) -> Callable[[int], bool]:
    """Whether this many ways of one degree divide the ranks, and suit the model."""

    def works(size: int) -> bool:
        changed: dict[str, Any] = {name: size}
        return ranks % size == 0 and suits(replace(degrees, **changed))

    return works


def fit_experts(degrees: Degrees, model: ModelSpec) -> tuple[Piece, ...]:
    """The mesh of a stage. Raises PlanError where ep and etp do not fit the model's experts or the other degrees."""
    counts = {part.experts.count for stack in model.stacks for part in stack.parts if part.experts}
    if not degrees.experts_apart:
        return degrees.mesh()
    if not counts:
        raise PlanError(
            f"ep {degrees.ep} and etp {degrees.etp} are for routed experts, and '{model.name}' has none; leave them out"
        )
    if degrees.tp % degrees.etp:
        near = nearest_number(degrees.etp, divides(degrees.tp))
        raise PlanError(f"etp {degrees.etp} does not divide tp {degrees.tp}; take etp {near}")
    fits = _fitting_ep(degrees, math.gcd(*counts))
    if not fits(degrees.ep):
        near = nearest_number(degrees.ep, fits)
        ranks = ", ".join(f"{name} {getattr(degrees, name)}" for name in ("etp", "tp", "ulysses", "cp", "dp"))
        raise PlanError(f"ep {degrees.ep} does not fit {math.gcd(*counts)} experts over {ranks}; take ep {near}")
    return degrees.mesh()


def fit_shard(pieces: tuple[Piece, ...], state: str | None, ranks: int | None) -> tuple[Piece, ...]:
    """The mesh in which so many ranks shard together. Raises PlanError where they are no part of those that can."""
    if ranks is None:
        return pieces
    if state is None:
        fault = f"shard {ranks} says over how many ranks zero shards, and zero is 0"
        raise PlanError(f"{fault}; take zero 3, or leave it out")
    fits = _fitting_shard(pieces)
    if ranks < 2 or not fits(ranks):
        most = math.prod(piece.size for piece in pieces if piece.dense in STATEFUL)
        near = nearest_number(ranks, lambda number: number > 1 and fits(number))
        fix = f"take shard {near}" if near > 1 else "leave shard out"
        raise PlanError(f"shard {ranks} is no part of the {most} ranks of dp, cp and ulysses; {fix}")
    return shard_nearest(pieces, ranks)


def _fitting_shard(pieces: tuple[Piece, ...]) -> Callable[[int], bool]:
    def fits(ranks: int) -> bool:
        try:
            shard_nearest(pieces, ranks)
        except ValueError:
            return False
        return True

    return fits


def _fitting_ep(degrees: Degrees, experts: int) -> Callable[[int], bool]:
    def fits(ep: int) -> bool:
        try:
            replace(degrees, ep=ep).mesh()
        except ValueError:
            return False
        return experts % ep == 0

    return fits
