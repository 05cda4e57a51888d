"""Numbers with units: read exactly, written without loss, shown in three digits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from meshwright.units import (
    Bandwidth,
    Bytes,
    Flag,
    PositiveFloat,
    PositiveInt,
    Rate,
    Seconds,
    parse_bandwidth,
    parse_bytes,
    parse_rate,
    parse_seconds,
    show_bytes,
    show_count,
    show_flops,
    show_rate,
    show_seconds,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "80 GiB", 80 * 2**30),
        (parse_bytes, "80 GB", 80e9),
        (parse_bytes, "80GB", 80e9),
        (parse_bytes, " 1.5 TiB ", 1.5 * 2**40),
        (parse_bytes, "512", 512),
        (parse_bytes, "1_000 B", 1000),
        (parse_bytes, "1e3 kB", 1e6),
        (parse_bandwidth, "450 GB/s", 450e9),
        (parse_bandwidth, "400 Gbit/s", 50e9),
        (parse_bandwidth, "100 Gbps", 12.5e9),
        (parse_bandwidth, "1 MiB/s", 2**20),
        (parse_seconds, "5 us", 5e-6),
        (parse_seconds, "5 µs", 5e-6),
        (parse_seconds, "250 ms", 0.25),
        (parse_seconds, "2", 2),
        (parse_rate, "989 TFLOP/s", 989e12),
        (parse_rate, "1 PFLOPS", 1e15),
        (parse_rate, "40 GFLOPs", 40e9),
    ],
)
def test_a_quantity_is_read_with_its_unit(parse: object, text: str, value: float) -> None:
    assert callable(parse)
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, ""),
        (parse_bytes, "GB"),
        (parse_bytes, "80 GB/s"),
        (parse_bytes, "80 Gbit"),
        (parse_bytes, "80 gb"),
        (parse_bytes, "80 GB GB"),
        (parse_bytes, "1e999999999 GB"),
        (parse_bytes, "9" * 5000),
        (parse_bytes, "٣ GB"),
        (parse_bandwidth, "450 GB"),
        (parse_bandwidth, "400 Xbit/s"),
        (parse_seconds, "5 m"),
        (parse_seconds, "5 GB"),
        (parse_rate, "989 TFLOP/h"),
        (parse_rate, "inf"),
        (parse_rate, "nan"),
    ],
)
def test_what_is_no_quantity_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match=r"is not a number with a unit|is not known here; write for example"):
        parse(text)


@pytest.mark.parametrize("kind", [Bytes, Bandwidth, Seconds, Rate])
@given(value=st.floats(min_value=1, max_value=1e9) | st.integers(1, 10**9).map(float))
def test_what_is_written_is_read_back_equal(kind: object, value: float) -> None:
    adapter = TypeAdapter[float](kind)
    assert adapter.validate_python(adapter.dump_python(value)) == value


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Bytes, 80e9, "80 GB"),
        (Bandwidth, 450e9, "450 GB/s"),
        (Seconds, 5e-6, "5 us"),
        (Rate, 989.4e12, "989.4 TFLOP/s"),
    ],
)
def test_a_round_quantity_is_written_as_a_person_would(kind: object, value: float, text: str) -> None:
    assert TypeAdapter[float](kind).dump_python(value) == text


@pytest.mark.parametrize("kind", [Bytes, Bandwidth, Seconds, Rate, PositiveFloat])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e300, True, None, [], {}])
def test_no_quantity_is_negative_endless_or_of_another_kind(kind: object, value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("value", [0, -1, 10**16, True, 1.0, "1", None])
def test_a_positive_whole_number_is_no_other_kind(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PositiveInt).validate_python(value)


@pytest.mark.parametrize("value", ["on", "yes", "true", 1, 0, None])
def test_only_true_and_false_are_flags(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Flag).validate_python(value)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (show_bytes, 0, "0 B"),
        (show_bytes, 1023, "1,023 B"),
        (show_bytes, 1.5 * 2**30, "1.5 GiB"),
        (show_bytes, 80e9, "74.5 GiB"),
        (show_bytes, 2**60, "1,048,576 TiB"),
        (show_seconds, 0, "0 ns"),
        (show_seconds, 0.00123, "1.23 ms"),
        (show_seconds, 0.9999, "1 s"),
        (show_seconds, 12345, "12,345 s"),
        (show_count, 0, "0"),
        (show_count, 8030261248, "8.03 B"),
        (show_count, 999_999, "1 M"),
        (show_rate, 4.5e11, "450 GB/s"),
        (show_flops, 9.89e14, "989 TFLOP/s"),
        (show_flops, 1.9789e15, "1.98 PFLOP/s"),
    ],
)
def test_a_quantity_is_shown_in_three_digits(show: object, value: float, text: str) -> None:
    assert callable(show)
    assert show(value) == text
