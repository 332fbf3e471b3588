from __future__ import annotations

import pytest

from pilotage.language.text.quantities import parse_bytes, parse_seconds


@pytest.mark.parametrize(
    "text, size",
    [
        ("0", 0),
        ("1024", 1024),
        ("2 GiB", 2 * 2**30),
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        ("500 MB", 500 * 10**6),
        ("1.5K", 1536),
        ("2G", 2 * 2**30),
        ("0.1 kB", 100),
        ("  7 B ", 7),
        ("999999999999999999", 999999999999999999),
        ("1.000000001 PB", 1_000_000_001_000_000),
    ],
)
def test_sizes_are_exact(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1e3",
        "two",
        "2 GiBs",
        "1,5 GB",
        "0x10",
        "NaN",
        "1 2",
        "1..2",
        "9" * 19,
        "999999999 PiB",
        "३ GB",
        "1\0",
    ],
)
def test_what_is_no_size_is_none(text: str) -> None:
    assert parse_bytes(text) is None


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 90),
        ("90s", 90),
        ("1.5 min", 90),
        ("10 minutes", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1 week", 604800),
        ("250 ms", 0.25),
        ("1:30:00", 5400),
        ("01:30", 90),
        ("2-12:00:00", 216000),
        ("1-00:30", 86400 + 1800),
        ("1e-05", 1e-5),
        ("7.4074019999999998", 7.4074019999999998),
    ],
)
def test_times_are_read_as_batch_systems_write_them(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds, abs=0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1:60",
        "1:2",
        "1:99:00",
        "forever",
        "1 fortnight",
        "inf",
        "nan",
        "1e999",
        "99999999999999 weeks",
        "1h30m",
        "1\0",
    ],
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert parse_seconds(text) is None


@pytest.mark.parametrize(
    "units, size",
    [
        ("kB KB", 10**3),
        ("MB mb", 10**6),
        ("GB", 10**9),
        ("TB", 10**12),
        ("PB", 10**15),
        ("K KiB k", 2**10),
        ("M MiB", 2**20),
        ("G GiB", 2**30),
        ("T TiB", 2**40),
        ("PiB", 2**50),
    ],
)
def test_every_unit_of_size_has_its_factor(units: str, size: int) -> None:
    assert {parse_bytes(f"3 {unit}") for unit in units.split()} == {3 * size}


@pytest.mark.parametrize(
    "units, seconds",
    [
        ("s sec second seconds", 1),
        ("m min minute minutes", 60),
        ("h hour hours", 3600),
        ("d day days", 86400),
        ("week weeks", 604800),
    ],
)
def test_every_unit_of_time_has_its_factor(units: str, seconds: float) -> None:
    assert {parse_seconds(f"3 {unit}") for unit in units.split()} == {3.0 * seconds}


def test_the_largest_size_and_the_longest_time_are_taken_and_no_more() -> None:
    assert parse_bytes("1000 PB") == 10**18
    assert parse_bytes("1000.000001 PB") is None
    assert parse_seconds("1e15") == 10.0**15
    assert parse_seconds("1.0000001e15") is None
