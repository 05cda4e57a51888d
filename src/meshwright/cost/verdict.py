"""Whether a plan fits: the memory of its groups and hosts without the time of its step, in one sentence."""

from typing import Any, NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.cost.host import HostMemory, host_memory
from meshwright.cost.memory import Filled, Memory, plan_memory
from meshwright.cost.placement import Placement
from meshwright.plan.rules import Inputs
from meshwright.units import show_bytes


class MemoryVerdict(NamedTuple):
    """Whether a plan fits, by its fullest group and its fullest host."""

    groups: tuple[Memory, ...]
    hosts: tuple[HostMemory, ...] = ()
    """Where something is offloaded."""

    @property
    def tightest(self) -> tuple[Filled, ...]:
        """The group and the host, if any, that are likeliest to run out of memory; of equals, those that are fullest.
        The tighter of both stands first.
        """
        kinds: tuple[tuple[Filled, ...], ...] = (self.groups, self.hosts)
        return tuple(sorted((max(kind, key=_tightness) for kind in kinds if kind), key=_tightness, reverse=True))

    @property
    def fits(self) -> bool:
        """Whether every group and host fits, but for a small chance (`memory.ACCEPTED`)."""
        return all(each.fits for each in self.tightest)

    @property
    def word(self) -> str:
        """`fits`, `may not fit` or `does not fit`: the last where even the middle of the range is too much."""
        if self.fits:
            return "fits"
        sure = any(each.asked.middle > each.capacity for each in self.tightest)
        return "does not fit" if sure else "may not fit"

    @property
    def sentence(self) -> str:
        """What is filled, where, when, and by how much it is too little."""
        return "; and ".join(_sentence(each) for each in self.tightest)

    def as_data(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {
            "fits": self.fits,
            "verdict": self.sentence,
            "groups": [each.as_data() for each in self.groups],
            "hosts": [each.as_data() for each in self.hosts],
        }


def _tightness(each: Filled) -> tuple[float, float]:
    return each.out_of_memory, each.asked.middle / each.capacity


def _sentence(tight: Filled) -> str:
    asked = tight.asked
    said = f"{asked} of {show_bytes(tight.capacity)} on {tight.where}"
    if asked.middle > tight.capacity:
        name, size = max(tight.worst.parts.items(), key=lambda item: item[1])
        over = show_bytes(asked.middle - tight.capacity)
        return f"{said}, {over} too many, the largest part {name} ({show_bytes(size)})"
    chance = tight.out_of_memory
    return f"{said}, out of memory with a probability of {chance:.0%}" if chance >= 0.005 else said


def memory_verdict(placement: Placement) -> MemoryVerdict:
    """The verdict on a plan whose layers have their places."""
    return MemoryVerdict(plan_memory(placement), host_memory(placement))


def judge_memory(inputs: Inputs, calibration: Calibration | None = None) -> MemoryVerdict:
    """The verdict on a plan that has a meaning."""
    return memory_verdict(Placement(inputs, calibration))
