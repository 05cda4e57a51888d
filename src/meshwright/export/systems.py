"""The systems that plans are handed over to, and taken in from."""

from meshwright.errors import PlanError, did_you_mean
from meshwright.export.accelerate import ACCELERATE
from meshwright.export.deepspeed import DEEPSPEED
from meshwright.export.megatron import MEGATRON
from meshwright.export.megatron_deepspeed import MEGATRON_DEEPSPEED
from meshwright.export.neox import NEOX
from meshwright.export.system import System
from meshwright.export.torchtitan import TORCHTITAN

SYSTEMS: dict[str, System] = {
    system.name: system for system in (MEGATRON, MEGATRON_DEEPSPEED, NEOX, TORCHTITAN, DEEPSPEED, ACCELERATE)
}
"""Name → system; those with files can be written."""
TARGETS_OF_EXPORT = tuple(name for name, system in SYSTEMS.items() if system.files is not None)


def find_system(name: str, *, written: bool) -> System:
    """A system by its name. Raises PlanError with the nearest."""
    known = TARGETS_OF_EXPORT if written else tuple(SYSTEMS)
    if name not in known:
        what = "--to: no system that plans are written for" if written else "--from: no system that is read"
        raise PlanError(f"{what} is called '{name}'; {did_you_mean(name, known)}")
    return SYSTEMS[name]
