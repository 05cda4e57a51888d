"""Numbers with limits, and bytes, seconds and rates: read from text with a unit, printed with one.

Everything inside is in bytes, seconds, FLOP/s. The limits are far beyond any machine, and keep every product finite.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

MAX_COUNT = 10**15
PositiveInt = Annotated[int, Field(strict=True, gt=0, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
PositiveFloat = Annotated[float, Field(strict=True, ge=1e-15, le=1e15)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0, le=1e15)]
Flag = Annotated[bool, Field(strict=True)]
"""true or false, and no word or number that stands for one."""

_DECIMAL = {"": Decimal(1), **{prefix: Decimal(10) ** (3 * power) for power, prefix in enumerate("kMGTP", start=1)}}
_BINARY = {f"{prefix}i": Decimal(2) ** (10 * power) for power, prefix in enumerate("KMGT", start=1)}
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9")}
_NUMBER = r"[-+]?[0-9][0-9_]{0,30}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,2})?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ/]*)\s*")


def _number_and_unit(text: str) -> tuple[Decimal, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text[:40]}' is not a number with a unit")
    return Decimal(match.group(1)), match.group(2)


def _scaled(text: str, suffixes: tuple[str, ...], scales: dict[str, Decimal], example: str) -> float:
    number, unit = _number_and_unit(text)
    if not unit:
        return float(number)
    for suffix in suffixes:
        if unit.endswith(suffix) and unit.removesuffix(suffix) in scales:
            return float(number * scales[unit.removesuffix(suffix)])
    raise ValueError(f"'{text[:40]}': unit '{unit[:20]}' is not known here; write for example '{example}'")


def parse_bytes(text: str) -> float:
    """'80 GiB' → 85899345920.0; '80 GB' → 8e10; a bare number is bytes."""
    return _scaled(text, ("B",), _DECIMAL | _BINARY, "80 GiB")


def parse_bandwidth(text: str) -> float:
    """'450 GB/s' → 4.5e11 bytes per second; '400 Gbit/s' → 5e10; a bare number is bytes per second."""
    if text.strip().endswith(("bit/s", "bps")):
        return _scaled(text, ("bit/s", "bps"), _DECIMAL, "400 Gbit/s") / 8
    return _scaled(text, ("B/s",), _DECIMAL | _BINARY, "450 GB/s")


def parse_seconds(text: str) -> float:
    """'5 us' → 5e-06; a bare number is seconds."""
    return _scaled(text, ("",), _SECONDS, "5 us")


def parse_rate(text: str) -> float:
    """'989 TFLOP/s' → 9.89e14; a bare number is FLOP per second."""
    return _scaled(text, ("FLOP/s", "FLOPs", "FLOPS"), _DECIMAL, "989 TFLOP/s")


def _quantity(
    parse: Callable[[str], float],
    units: tuple[tuple[float, str], ...],
    least: float,
    most: float,
    others: tuple[tuple[float, str], ...] = (),
) -> tuple[Any, ...]:
    """Read as text with a unit; written so too, where that loses nothing. The markers of an annotated float.
    `others`: units to write with where that is shorter.
    """

    def read(value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    def write(value: float) -> str | float:
        usual = next((unit for unit in units if value >= unit[0]), units[-1])
        texts = [f"{value / scale:.12g} {name}" for scale, name in (usual, *others)]
        exact = [text for text in texts if _QUANTITY.fullmatch(text) and parse(text) == value]
        return min(exact, key=len, default=value)

    text = {
        "type": "string",
        "pattern": rf"^\s*{_NUMBER}\s*[A-Za-zµ/]*\s*$",
        "examples": [f"5 {name}" for _, name in units[:3]],
    }
    schema = {"anyOf": [{"type": "number", "minimum": least, "maximum": most}, text]}
    limits = Field(strict=True, ge=least, le=most, allow_inf_nan=False)
    return limits, BeforeValidator(read), PlainSerializer(write), WithJsonSchema(schema)


def _units(suffix: str) -> tuple[tuple[float, str], ...]:
    return tuple((float(_DECIMAL[prefix]), f"{prefix}{suffix}") for prefix in ("T", "G", "M", "k", ""))


_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BINARIES = tuple((float(scale), f"{prefix}B") for prefix, scale in reversed(_BINARY.items()))
Bytes = Annotated[float, *_quantity(parse_bytes, _units("B"), 0, 1e24, _BINARIES)]
Bandwidth = Annotated[float, *_quantity(parse_bandwidth, _units("B/s"), 1, 1e24)]
Seconds = Annotated[float, *_quantity(parse_seconds, _TIMES, 0, 1e9)]
Rate = Annotated[float, *_quantity(parse_rate, _units("FLOP/s"), 1, 1e30)]


def _show(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    """Three digits, in the smallest unit that keeps them under one of the next; `steps` begin with the largest."""
    scale, name = steps[-1]
    for wider, wider_name in steps[-2::-1]:
        if abs(_rounded(value / scale)) < wider / scale:
            break
        scale, name = wider, wider_name
    number = _rounded(value / scale)
    return f"{number:.3g} {name}" if abs(number) < 1000 else f"{number:,.0f} {name}"


def _rounded(number: float) -> float:
    return float(f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}")


def show_bytes(value: float) -> str:
    """1610612736 → '1.5 GiB'."""
    return _show(value, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


def show_seconds(value: float) -> str:
    """0.00123 → '1.23 ms'."""
    return _show(value, ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def show_count(value: float) -> str:
    """8030261248 → '8.03 B'; the counts of parameters, tokens and FLOPs."""
    return _show(value, ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1, ""))).strip()


def show_rate(value: float) -> str:
    """4.5e11 → '450 GB/s'."""
    return _show(value, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


def show_flops(value: float) -> str:
    """9.89e14 → '989 TFLOP/s'."""
    return _show(value, ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1, "FLOP/s")))
