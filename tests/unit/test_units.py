"""Durations and byte counts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.errors import EXIT_USAGE, UsageError
from tasuki.units import Duration, format_bytes, format_seconds, parse_bytes

HOUR, DAY = 3600.0, 86400.0
quick = settings(max_examples=60)

# -- durations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 90 * 60),
        ("250ms", 0.25),
        ("1h30m", 1.5 * HOUR),
        ("1d2h3m4s", DAY + 2 * HOUR + 184),
        ("1.5h", 1.5 * HOUR),
        (" 1H 30M ", 1.5 * HOUR),
        ("12:00:00", 12 * HOUR),
        ("1-12:00:00", 36 * HOUR),
        ("1-12", 36 * HOUR),
        (0, 0),
        (Duration(5), 5),
    ],
)
def test_a_duration_is_read_as_people_write_it(text, seconds):
    assert Duration.parse(text).seconds == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "h", "8", "0", "-5s", "5 hours", "1e3s", "1.5.5h", "12:00", "12:60:00", "1-", "5s!",
     "٣h", "nan", "inf", "1,5h", "--", "8h-", "9" * 5000 + ":00:00", "9" * 400 + "-1"],
)  # fmt: skip
def test_text_that_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(UsageError) as caught:
        Duration.parse(text)
    assert "is not a duration" in caught.value.message
    assert "1h30m" in caught.value.hint
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("number", [8, 8.5, -1, True, False, None, [], float("nan")])
def test_a_bare_number_is_refused_because_its_unit_is_missing(number):
    with pytest.raises(UsageError, match="its unit is missing") as caught:
        Duration.parse(number)
    assert "8h" in caught.value.hint


@quick
@given(st.floats(0, 1e9))
def test_what_is_printed_reads_back_as_about_the_same_duration(seconds):
    back = Duration.parse(format_seconds(seconds)).seconds
    # Two parts at most: what is left out is less than the smaller one.
    allowed = next(
        error
        for below, error in [
            (0.9995, 0.00051), (59.95, 0.051), (HOUR - 0.5, 0.51), (DAY - 0.5, 60.5), (1e10, 3600.5)
        ]
        if seconds < below
    )  # fmt: skip
    assert abs(back - seconds) <= allowed


@quick
@given(st.just(0.0) | st.floats(0.0006, 1e9))
def test_a_printed_duration_prints_the_same_again(seconds):
    printed = format_seconds(seconds)
    assert format_seconds(Duration.parse(printed).seconds) == printed


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        (0.085, "85ms"),
        (0.9994, "999ms"),
        (0.9996, "1s"),
        (4.2, "4.2s"),
        (59.96, "1m"),
        (200, "3m20s"),
        (3599.6, "1h"),
        (34800, "9h40m"),
        (1.5 * DAY, "1d12h"),
        (-200, "-3m20s"),
    ],
)
def test_a_duration_prints_the_way_people_say_it(seconds, printed):
    assert str(Duration(seconds)) == printed


@quick
@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_usage_error(text):
    try:
        assert Duration.parse(text).seconds >= 0
    except UsageError as error:
        assert error.hint


# -- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("96G", 96 * 2**30),
        ("2.5GiB", 5 * 2**29),
        ("500M", 500 * 2**20),
        ("1 kB", 1000),
        ("1.8 GB", 1_800_000_000),
        ("1P", 2**50),
        ("7b", 7),
        (7, 7),
        (0, 0),
    ],
)
def test_a_number_of_bytes_is_read_as_people_write_it(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1e9", "٣G", -1, None, "9" * 400])
def test_what_is_no_number_of_bytes_is_refused_with_examples(text):
    with pytest.raises(UsageError, match="is not a number of bytes") as caught:
        parse_bytes(text)
    assert "96G" in caught.value.hint


@quick
@given(st.integers(0, 10**15 - 10**12))
def test_printed_bytes_read_back_within_half_a_percent(count):
    assert abs(parse_bytes(format_bytes(count)) - count) <= 0.5 + count * 0.00501


@quick
@given(st.integers(0, 2**53), st.sampled_from("KMGTP"))
def test_binary_prefixes_are_powers_of_1024_and_decimal_ones_of_1000(n, prefix):
    small, power = n % 1000, "KMGTP".index(prefix) + 1
    assert parse_bytes(f"{small}{prefix}") == parse_bytes(f"{small}{prefix}iB")
    assert parse_bytes(f"{small}{prefix}") == small * 1024**power
    assert parse_bytes(f"{small}{prefix}B") == small * 1000**power


@pytest.mark.parametrize(
    ("count", "printed"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1.8e9, "1.8 GB"),
        (5e12, "5 TB"),
    ],
)
def test_bytes_print_as_disks_are_sold(count, printed):
    assert format_bytes(count) == printed


@quick
@given(st.text(max_size=12))
def test_any_text_is_a_number_of_bytes_or_a_usage_error(text):
    try:
        assert parse_bytes(text) >= 0
    except UsageError as error:
        assert error.hint
