"""The constants that a calibration is fitted by: few, physical, each within bounds and with a first guess.

A constant may be shared by devices that are one chip in several packages (`KIN`), or by all. The first guess and its
spread are what is known of it without any run: `source` says from where.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.cost.calibration import Calibration, DeviceConstants

KIN: dict[str, str] = {
    "a100-40gb": "a100",
    "a100-80gb": "a100",
    "a800": "a100",
    "h100": "h100",
    "h200": "h100",
    "h800": "h100",
    "h100-500w": "h100",
    "b200": "b200",
    "gb200": "b200",
    "b300": "b300",
    "gb300": "b300",
    "mi300x": "mi300x",
    "mi325x": "mi300x",
}
"""A device → the chip whose constants it shares; others stand alone."""


@dataclass(frozen=True)
class Constant:
    """One number that is fitted, in logarithms."""

    name: str
    """A field of DeviceConstants or of Calibration."""
    kin: str | None
    """The chip that it is of; none: all devices, or the calibration as a whole."""
    guess: float
    spread: float
    """The standard deviation of the guess's logarithm."""
    low: float
    high: float
    source: str = ""

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.kin} {self.name}" if self.kin else self.name

    def touches(self, device: str) -> bool:
        """Whether a run on a device depends on it."""
        return self.kin is None or kin_of(device) == self.kin


def kin_of(device: str) -> str:
    """The chip that a device is."""
    return KIN.get(device, device)


CLOCKED: dict[str, float] = {"h100-500w": (500 / 700) ** (1 / 2.7)}
"""Devices that are held to less power than their kin, with what is left of the clock under load: power grows with about
the 2.7th power of the clock, between voltage times clock and its square (Hong and Kim 2010, section 4)."""

_MEASURED_MATMUL: dict[str, tuple[float, float, str]] = {
    "v100": (0.76, 0.90, "95 of 125 TFLOP/s, stas00/ml-engineering"),
    "a100": (0.84, 0.90, "271 of 312 TFLOP/s at best, stas00/ml-engineering"),
    "h100": (0.72, 0.82, "794 of 989 TFLOP/s at best, stas00/ml-engineering"),
    "b200": (0.70, 0.80, "1,745 of 2,250 TFLOP/s at best, stas00/ml-engineering"),
    "b300": (0.70, 0.80, "1,769 of 2,250 TFLOP/s at best, stas00/ml-engineering"),
    "mi300x": (0.48, 0.55, "668 of 1,300 TFLOP/s at best, stas00/ml-engineering"),
}
"""Of the peak, what large products reach in training, and at most: between what the best shape was measured at and
what long runs leave of it."""
_FLASH: dict[str, tuple[float, float]] = {
    "v100": (0.40, 0.60),
    "a100": (0.60, 0.90),
    "h100": (0.50, 0.90),
    "b200": (0.70, 1.0),
    "b300": (0.70, 1.0),
    "mi300x": (0.35, 0.60),
}
_INNER = {"v100": 150.0, "a100": 250.0, "h100": 400.0, "b200": 600.0, "b300": 600.0, "mi300x": 600.0}
"""The faster the products of a tile, the longer its sums must be to hide the first reads."""


def constants_for(devices: Iterable[str]) -> tuple[Constant, ...]:
    """Those that runs on these devices can say something of."""
    kin = list(dict.fromkeys(kin_of(device) for device in devices))
    found: list[Constant] = []
    for chip in kin:
        guess, most, source = _MEASURED_MATMUL.get(chip, (0.60, 0.90, ""))
        flash, most_flash = _FLASH.get(chip, (0.45, 0.75))
        found += [
            Constant("matmul", chip, guess, 0.10, 0.25, most, source),
            Constant("flash", chip, flash, 0.25, 0.15, most_flash),
            Constant("memory", chip, 0.80, 0.10, 0.40, 0.95),
            Constant("inner", chip, _INNER.get(chip, 300.0), 0.4, 10.0, 2000.0),
        ]
    return (
        *found,
        Constant("batched", None, 0.40, 0.3, 0.10, 0.80),
        Constant("unaligned", None, 0.25, 0.5, 0.02, 1.0),
        Constant("start", None, 5e-6, 0.5, 1e-6, 30e-6),
        Constant("launch", None, 25e-6, 0.5, 3e-6, 100e-6),
        Constant("hidden", None, 0.5, 0.3, 0.05, 1.0),
        Constant("contention", None, 0.10, 0.5, 0.01, 0.5),
    )


FLASH_BACKWARD = 0.85
"""Of what flash attention reaches forward (Dao 2023, figures 5 and 6)."""


def apply(base: Calibration, constants: Sequence[Constant], values: Sequence[float], devices: Iterable[str]) -> Calibration:
    """The base with these values, for these devices."""
    found = {device: base.device(device) for device in devices}
    whole: dict[str, float] = {}
    for constant, value in zip(constants, values, strict=True):
        if constant.name in Calibration.model_fields:
            whole[constant.name] = value
            continue
        for device in found:
            if constant.touches(device):
                found[device] = found[device].model_copy(update=_update(constant.name, value, CLOCKED.get(device, 1.0)))
    return base.model_copy(update={"devices": {**base.devices, **found}, **whole})


def _update(name: str, value: float, clock: float) -> Mapping[str, float]:
    match name:
        case "flash":
            return {"flash": value * clock, "flash_backward": FLASH_BACKWARD * value * clock}
        case "matmul":
            return {"matmul": value * clock}
    return {name: value}
