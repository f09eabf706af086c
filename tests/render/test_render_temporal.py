from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartosql.render import values

MAX = 2**63 - 1


@given(st.dates())
def test_dates_are_those_of_python(date):
    assert values.texts(pa.array([date])) == [date.isoformat()]


@given(st.datetimes())
def test_timestamps_are_those_of_python(moment):
    assert values.timestamps(pa.array([moment], pa.timestamp("us"))) == [str(moment)]
    assert values.timestamps(pa.array([moment], pa.timestamp("us")), "T") == [moment.isoformat()]


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-719_163, "0001-12-31 (BC)"),
        (-719_528, "0001-01-01 (BC)"),
        (-719_529, "0002-12-31 (BC)"),
        (2_932_897, "10000-01-01"),
        (2**31 - 1, "infinity"),
        (-(2**31 - 1), "-infinity"),
    ],
)
def test_dates_beyond_the_range_of_python(days, text):
    assert values.texts(pa.array([days, None], pa.int32()).cast(pa.date32())) == [text, None]


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (pa.timestamp("s"), 0, "1970-01-01 00:00:00"),
        (pa.timestamp("ms"), 1500, "1970-01-01 00:00:01.500000"),
        (pa.timestamp("us"), -1, "1969-12-31 23:59:59.999999"),
        (pa.timestamp("ns"), 1, "1970-01-01 00:00:00.000000001"),
        (pa.timestamp("us"), MAX, "infinity"),
        (pa.timestamp("us"), -MAX, "-infinity"),
        (pa.timestamp("s"), 253_402_300_800, "10000-01-01 00:00:00"),
        (pa.timestamp("s"), -62_135_596_801, "0001-12-31 23:59:59 (BC)"),
        (pa.timestamp("s", "UTC"), 0, "1970-01-01 00:00:00+00:00"),
        (pa.timestamp("s", "+05:30"), 0, "1970-01-01 05:30:00+05:30"),
        (pa.timestamp("s", "-02:30"), 0, "1969-12-31 21:30:00-02:30"),
        (pa.timestamp("s", "No/Zone"), 0, "1970-01-01 00:00:00+00:00"),
        (pa.timestamp("s", "UTC"), 253_402_300_800, "10000-01-01 00:00:00+00:00"),
    ],
)
def test_timestamps_of_each_unit_and_zone(type_, value, text):
    assert values.timestamps(pa.array([value, None], pa.int64()).cast(type_)) == [text, None]


def test_offsets_follow_the_zone_of_the_moment():
    moments = [dt.datetime(2026, 1, 1), dt.datetime(2026, 7, 1)]
    array = (
        pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Europe/Berlin"))
    )
    assert values.timestamps(array) == ["2026-01-01 01:00:00+01:00", "2026-07-01 02:00:00+02:00"]


def test_the_end_of_a_day_is_a_time():
    array = pa.array([86_400_000_000, 1, None], pa.int64()).cast(pa.time64("us"))
    assert values.texts(array) == ["24:00:00", "00:00:00.000001", None]
    assert values.texts(pa.array([3661], pa.int32()).cast(pa.time32("s"))) == ["01:01:01"]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((0, 0, 0), "00:00:00"),
        ((14, 3, 0), "1 year 2 months 3 days"),
        ((-14, -1, 0), "-1 year -2 months -1 day"),
        ((0, 0, -3_723_500_000_000), "-01:02:03.500000"),
    ],
)
def test_intervals_read_as_in_duckdb(parts, text):
    assert values.texts(pa.array([parts, None], pa.month_day_nano_interval())) == [text, None]


def test_durations_are_intervals_of_time():
    assert values.texts(pa.array([90_061, None], pa.duration("s"))) == ["25:01:01", None]
