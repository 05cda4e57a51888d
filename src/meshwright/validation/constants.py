"""The constants that a calibration is fitted by: few, physical, each within bounds and with a first guess.

A constant may be shared by devices that are one chip in several packages (`KIN`), or by all. The first guess and its
spread are what is known of it without any run: `source` says from where.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshwright.cost.calibration import Calibration

KIN: dict[str, str] = {
    "a100-40gb": "a100",
    "a100-80gb": "a100",
    "a800": "a100",
    "h100": "h100",
    "h200": "h100",
    "h800": "h100",
    "h100-500w": "h100",
    "a100-pcie-40gb": "a100",
    "a100-pcie-80gb": "a100",
    "h100-pcie": "h100",
    "h100-nvl": "h100",
    "h20": "h100",
    "b200": "b200",
    "gb200": "b200",
    "b300": "b300",
    "gb300": "b300",
    "v100": "v100",
    "v100-16gb": "v100",
    "v100-pcie": "v100",
    "v100-pcie-16gb": "v100",
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
    """Where the guess is from; empty where it is one."""

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
    "a100": (0.86, 0.90, "271 of 312 TFLOP/s at best, stas00/ml-engineering"),
    "h100": (0.75, 0.82, "794 of 989 TFLOP/s at best, stas00/ml-engineering"),
    "b200": (0.72, 0.80, "1,745 of 2,250 TFLOP/s at best, stas00/ml-engineering"),
    "b300": (0.72, 0.80, "1,769 of 2,250 TFLOP/s at best, stas00/ml-engineering"),
    "mi300x": (0.48, 0.55, "668 of 1,300 TFLOP/s at best, stas00/ml-engineering"),
}
"""Of the peak, what large products reach in training, and at most: between what the best shape was measured at and
what long runs leave of it."""
_FLASH: dict[str, tuple[float, float, str]] = {
    "v100": (0.40, 0.60, ""),
    "a100": (0.72, 1.0, "causal heads of 128, exponentials included: 0.6 of the peak (Dao 2023)"),
    "h100": (0.41, 0.70, "causal heads of 128, exponentials included: 0.34 of the peak (Shah 2024, figure 5)"),
    "b200": (0.41, 1.0, ""),
    "b300": (0.41, 1.0, ""),
    "mi300x": (0.35, 0.60, ""),
}
"""Of the peak, the products of the flash attention package, and at most. Where no reading is named, as on the chip
before it or less."""
_CUDNN = "causal heads of 128 and 64, exponentials included: 539 and 388 TFLOP/s (Shah 2024, figure 5)"
_OWN_FLASH: dict[str, tuple[float, float, float, float, str]] = {
    "h100": (0.70, 0.15, 0.3, 1.0, _CUDNN),
    "b200": (0.80, 0.25, 0.3, 1.0, ""),
    "b300": (0.80, 0.25, 0.3, 1.0, ""),
}
"""The same of cuDNN's attention, with the spread and the bounds."""
_RATES = "the peak over four times the rate of exponentials, 16 a clock and multiprocessor"
_SOFTMAX: dict[str, tuple[float, str]] = {
    "a100": (32.0, f"{_RATES}: 312 and 2.4 TFLOP/s (NVIDIA A100 whitepaper)"),
    "h100": (64.0, f"{_RATES}: 989 and 3.9 TFLOP/s (Shah 2024, section 2.2)"),
    "b200": (128.0, f"{_RATES}: 2,250 and 4.4 TFLOP/s (NVIDIA Blackwell datasheet)"),
    "b300": (64.0, f"{_RATES}, twice as many on Blackwell Ultra (NVIDIA 2025)"),
}
_INNER: dict[str, tuple[float, str]] = {
    "v100": (80.0, ""),
    "a100": (
        100.0,
        "0.55 of the best with sums of 128, 0.9 with 1,024 (NVIDIA, Matrix Multiplication guide, figure 3)",
    ),
    "h100": (220.0, ""),
    "b200": (350.0, ""),
    "b300": (350.0, ""),
    "mi300x": (350.0, ""),
}
"""Read off on one; it grows with the rate of a tile's products: the faster these, the longer its sums must be to hide
the first reads."""


_UNALIGNED = "GPT-2 steps take a fifth less with 50,304 words than with 50,257 (Karpathy 2023, nanoGPT): about a half"
_EARLY = "half the rate of the second version, Triton's 0.4 to 0.8 of it (Dao 2023, section 4.1)"
_BY_ROWS = "0.9 to 1 of scales of tensors for most shapes, 0.5 for some (pytorch/pytorch issue 147971, 2025)"
_EDGE = "191, 260, 298, 319, 335 TFLOP/s in causal sequences of 512 to 16,384 (Shah 2024, figure 5)"


def constants_for(devices: Iterable[str]) -> tuple[Constant, ...]:
    """Those that runs on these devices can say something of."""
    kin = list(dict.fromkeys(kin_of(device) for device in devices))
    found: list[Constant] = []
    for chip in kin:
        guess, most, source = _MEASURED_MATMUL.get(chip, (0.60, 0.90, ""))
        flash, most_flash, package = _FLASH.get(chip, (0.45, 0.75, ""))
        softmax, rates = _SOFTMAX.get(chip, (32.0, ""))
        inner, sums = _INNER.get(chip, (200.0, ""))
        found += [
            Constant("matmul", chip, guess, 0.10, 0.25, most, source),
            Constant("flash", chip, flash, 0.15, 0.15, most_flash, package),
            *([Constant("own_flash", chip, *_OWN_FLASH[chip])] if chip in _OWN_FLASH else ()),
            Constant("softmax", chip, softmax, 0.2, 4.0, 256.0, rates),
            Constant("memory", chip, 0.75, 0.20, 0.40, 0.95),
            Constant("launch", chip, 20e-6, 0.3, 3e-6, 100e-6),  # hosts are as old as the chips that they serve
            Constant("inner", chip, inner, 0.3, 10.0, 2000.0, sums),
        ]
    return (
        *found,
        Constant("batched", None, 0.50, 0.3, 0.10, 0.90),
        Constant("narrow", None, 0.92, 0.1, 0.5, 1.0, "0.71 of the peak in fp8, 0.80 in bf16, stas00/ml-engineering"),
        Constant("by_rows", None, 0.85, 0.15, 0.4, 1.0, _BY_ROWS),
        Constant("early_flash", None, 0.55, 0.2, 0.25, 1.0, _EARLY),
        Constant("edge", None, 300.0, 0.2, 100.0, 600.0, _EDGE),
        Constant("unaligned", None, 0.40, 0.5, 0.02, 1.0, _UNALIGNED),
        Constant("unaligned_batched", None, 0.2, 0.7, 0.02, 1.0),
        Constant("start", None, 5e-6, 0.5, 1e-6, 30e-6),
        Constant("hidden", None, 0.5, 0.3, 0.05, 1.0),
        Constant("contention", None, 0.10, 0.5, 0.01, 0.5),
    )


def unfitted(base: Calibration) -> Calibration:
    """The base with first guesses in place of what runs of any device have said: what is known of one without runs.

    >>> from meshwright.cost.calibration import public_calibration
    >>> unfitted(public_calibration()).device("b200").matmul
    0.72
    """
    tiled = [name for name, reached in base.devices.items() if reached.units > 1]
    known = [name for name in tiled if kin_of(name) in _MEASURED_MATMUL]
    constants = constants_for(known)
    return apply(guessed(base), constants, [each.guess for each in constants], known)


def guessed(base: Calibration) -> Calibration:
    """The base with first guesses for devices that it does not name: those of a chip that nothing is known of."""
    others = base.others
    for constant in constants_for([""]):
        if constant.kin is not None:
            others = others.model_copy(update=_update(constant.name, constant.guess, 1.0))
    return base.model_copy(update={"others": others})


FLASH_BACKWARD = 0.85
"""Of what flash attention reaches forward (Dao 2023, figures 5 and 6)."""


def apply(
    base: Calibration, constants: Sequence[Constant], values: Sequence[float], devices: Iterable[str]
) -> Calibration:
    """The base with these values, for these devices, and for others where a constant is of all devices."""
    found = {device: base.device(device) for device in devices}
    whole: dict[str, float] = {}
    shared: dict[str, float] = {}
    for constant, value in zip(constants, values, strict=True):
        if constant.name in Calibration.model_fields:
            whole[constant.name] = value
            continue
        if constant.kin is None:
            shared |= _update(constant.name, value, 1.0)
        for device, reached in list(found.items()):
            if constant.touches(device):
                changed = _update(constant.name, value, CLOCKED.get(device, 1.0))
                found[device] = reached.model_copy(update=changed)
    others = base.others.model_copy(update=shared)
    return base.model_copy(update={"devices": {**base.devices, **found}, "others": others, **whole})


def _update(name: str, value: float, clock: float) -> Mapping[str, float]:
    match name:
        case "flash":
            return {"flash": round(value * clock, 4), "flash_backward": round(FLASH_BACKWARD * value * clock, 4)}
        case "own_flash":
            return {
                "own_flash": round(value * clock, 4),
                "own_flash_backward": round(FLASH_BACKWARD * value * clock, 4),
            }
        case "matmul":
            return {"matmul": round(value * clock, 4)}
    return {name: value}
