"""Whether a plan fits: the memory of its groups without the time of its step, in one sentence."""

from typing import Any, NamedTuple

from meshwright.cost.calibration import Calibration
from meshwright.cost.memory import Memory, plan_memory
from meshwright.cost.placement import Placement
from meshwright.plan.rules import Inputs
from meshwright.units import show_bytes


class MemoryVerdict(NamedTuple):
    """Whether a plan fits, by its fullest group."""

    groups: tuple[Memory, ...]

    @property
    def tightest(self) -> Memory:
        """The group that is likeliest to run out of memory; of equals, the one that fills its devices most."""
        return max(self.groups, key=lambda each: (each.out_of_memory, each.footprint.device.middle / each.capacity))

    @property
    def fits(self) -> bool:
        """Whether every group fits, but for a small chance (`memory.ACCEPTED`)."""
        return all(each.fits for each in self.groups)

    @property
    def word(self) -> str:
        """`fits`, `may not fit` or `does not fit`: the last where even the middle of the range is too much."""
        if self.fits:
            return "fits"
        sure = any(each.footprint.device.middle > each.capacity for each in self.groups)
        return "does not fit" if sure else "may not fit"

    @property
    def sentence(self) -> str:
        """What is filled, where, when, and by how much it is too little."""
        tight = self.tightest
        device = tight.footprint.device
        said = f"{device} of {show_bytes(tight.capacity)} on the fullest device ({tight.where}, at {tight.worst.name})"
        if device.middle > tight.capacity:
            name, size = max(tight.worst.parts.items(), key=lambda item: item[1])
            over = show_bytes(device.middle - tight.capacity)
            return f"{said}, {over} too many, the largest part {name} ({show_bytes(size)})"
        chance = tight.out_of_memory
        return f"{said}; out of memory with a probability of {chance:.0%}" if chance >= 0.005 else said

    def as_data(self) -> dict[str, Any]:
        """Plain data, in bytes."""
        return {"fits": self.fits, "verdict": self.sentence, "groups": [each.as_data() for each in self.groups]}


def judge_memory(inputs: Inputs, calibration: Calibration | None = None) -> MemoryVerdict:
    """The verdict on a plan that has a meaning."""
    return MemoryVerdict(plan_memory(Placement(inputs, calibration)))
