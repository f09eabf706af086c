"""Each function of times that Spark claims to answer has DuckDB's values there, around gaps and overlaps of zones."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pyarrow as pa
import pytest
import registry

from kartosql.engines.spark.engine import SETTINGS
from kartosql.engines.spark.session import isolated, keeping_active
from kartosql.errors import KartosqlError, NotPortable
from sparks import Both, rows_of, same, unordered

# Zones and hours, of their own clocks, around which these go forward or back.
ZONES = {
    "Europe/Berlin": ["2020-03-29 02:00", "2020-10-25 02:00", "1893-04-01 00:00"],
    "America/Sao_Paulo": ["2018-11-04 00:00", "2018-02-17 23:00", "1914-01-01 00:00"],
    "Asia/Kathmandu": ["1986-01-01 00:00", "1920-01-01 00:00"],
    "Australia/Lord_Howe": ["2020-10-04 02:00", "2020-04-05 01:30"],
    "Pacific/Apia": ["2011-12-30 00:00", "2011-12-29 23:00", "1892-07-05 00:00"],
}
# Seconds since 1970: the first and last years of four digits, years before Christ, and years of five digits.
FAR = [-62_135_596_800, 253_402_300_799, 253_402_300_800, -62_135_596_801, -70_000_000_000, -99_999_999_999, 3 * 10**12]
PARTS = (
    *("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond", "decade"),
    *("century", "millennium", "dow", "isodow", "doy", "isoyear", "epoch", "yearweek", "era"),
)
FORMATS = ["%Y-%m-%d %H:%M:%S.%f", "%I %p %j %y", "%A %B %a %b %u %w %%", "%G-%V", "%x", "%s"]
INTERVALS = ["INTERVAL '1 day'", "INTERVAL '-13 months'", "INTERVAL '1 year -3 days 02:30:00.5'", "INTERVAL '-1 hour'"]
ARGUMENTS = {
    "D": ["d", "e", "d"],
    "T": ["t", "u", "t"],
    "s": [f"'{x}'" for x in (*PARTS, *FORMATS)],
    "y": INTERVALS,
    "i": ["1", "-400", "n"],
}
TYPES = ["DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "VARCHAR", "BIGINT"]
BATCH = 150
DAY = 86_400_000_000
VIEW = "__kartosql_occurrence_0"
# Times in groups, windows, conditions and joins.
STATEMENT = """
    WITH g AS (SELECT date_trunc('hour', t) AS h, count(*) AS n, min(t) AS a, max(d) AS b FROM t GROUP BY ALL),
      w AS (SELECT t, count(*) OVER (PARTITION BY date_trunc('minute', t)) AS n,
          lag(t) OVER (PARTITION BY date_trunc('day', t) ORDER BY t, id) AS a, max(d) OVER (ORDER BY t) AS b
        FROM t WHERE date_trunc('hour', t) <> TIMESTAMP '2020-03-29 03:00'),
      j AS (SELECT x.t, y.id AS n, y.u AS a, x.d AS b FROM t x JOIN t y
        ON date_trunc('month', x.d) = date_trunc('month', y.u) AND x.t::DATE = y.e)
    SELECT 'g' AS k, * FROM g UNION ALL SELECT 'w', * FROM w UNION ALL SELECT 'j', * FROM j
"""


def moments(far: bool) -> list[int | None]:
    """Return times without a zone in microseconds: a grid around all changes, or years of other than four digits."""
    if far:
        return [None, *(s * 10**6 + us for s in FAR for us in (0, 999_999))]
    changes = [dt.datetime.fromisoformat(text) for texts in ZONES.values() for text in texts]
    steps = [dt.timedelta(minutes=m, microseconds=us) for m, us in ((-30, 1), (0, 0), (15, 123_456), (59, -1), (61, 0))]
    near = [_micros(change + step) for change in changes for step in steps]
    return [None, *near, *map(_micros, (dt.datetime.min, dt.datetime.max)), -1, 0, 1]


def _micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def table(micros: list[int | None]) -> pa.Table:
    """Return each time as one of each type, beside another one."""
    others = [micros[i * 7 % len(micros)] for i in range(len(micros))]
    texts = [
        m if m is None or not _micros(dt.datetime.min) <= m <= _micros(dt.datetime.max) else _text(m) for m in micros
    ]
    written = [text if isinstance(text, str) else None for text in texts]
    return pa.table(
        {
            "id": pa.array(range(len(micros))),
            "t": pa.array(micros, pa.timestamp("us")),
            "u": pa.array(others, pa.timestamp("us")),
            "d": pa.array([None if m is None else m // DAY for m in micros], pa.date32()),
            "e": pa.array([None if m is None else m // DAY for m in others], pa.date32()),
            "n": pa.array([i * 31 % 700 - 350 for i in range(len(micros))], pa.int32()),
            "ms": pa.array([None if m is None else m // 1000 for m in micros], pa.timestamp("ms")),
            "s": pa.array(written, pa.string()),
            "day": pa.array([text and text[:10] for text in written], pa.string()),
        }
    )


def _text(micros: int) -> str:
    return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)).isoformat(" ", "microseconds")


def expressions() -> list[str]:
    """Return calls of all functions that have a rule, casts and comparisons, over times without zone."""
    times = ["d", "t", "ms"]
    found = [c for c in registry.calls(ARGUMENTS, "DT") if ("'%" in c) == c.startswith('"strftime"')]
    found += [f"{word}({x} AS {type_})" for word in ("CAST", "TRY_CAST") for x in times for type_ in TYPES]
    found += [
        "CAST(s AS TIMESTAMP)",
        "CAST(day AS DATE)",
        "CAST(day AS TIMESTAMP)",
        "(t > s)",
        "(d = day)",
        "(t <= day)",
    ]
    found += [f"({a} {op} {b})" for a in times for b in [*times, "u"] if a != b for op in registry.comparisons()]
    found += ["(t BETWEEN d AND u)", "(t IN (u, NULL))", "(d IN (e, '2011-12-30'))", "coalesce(d, t)", "nullif(t, d)"]
    found += ["CASE WHEN n > 0 THEN d ELSE t END", "(t > '2011-12-30')", "(d = '2018-11-04')"]
    return found


def accepted(both: Both, form: str = "SELECT {} FROM t", asked: list[str] | None = None) -> dict[str, str]:
    """Return the expressions that DuckDB binds and Spark does not refuse, with their text on Spark."""
    found = {}
    for expression in expressions() if asked is None else asked:
        try:
            found[expression] = both.translation(form.format(expression))
        except KartosqlError:
            continue
    return found


def differences(both: Both, asked: list[str]) -> dict[str, object]:
    """Return the expressions that have other values on Spark, with the first rows that differ."""
    wrong: dict[str, object] = {}
    for first in range(0, len(asked), BATCH):
        some = asked[first : first + BATCH]
        sql = f"SELECT id, {', '.join(some)} FROM t"
        wrong |= unlike(some, unordered(both.on_duckdb(sql)), unordered(both.on_spark(sql)))
    return wrong


def unlike(asked: list[str], wanted: list[Any], found: list[Any], *, or_null: bool = False) -> dict[str, object]:
    """Return the expressions of which rows, whose first column is an id, hold other values."""
    assert [row[0] for row in found] == [row[0] for row in wanted]
    pairs = {e: [(a[0], a[at], b[at]) for a, b in zip(wanted, found, strict=True)] for at, e in enumerate(asked, 1)}
    wrong = {e: [p for p in ps if not same(p[1], p[2]) and not (or_null and p[2] is None)] for e, ps in pairs.items()}
    return {e: ps[:3] for e, ps in wrong.items() if ps}


@pytest.fixture(scope="module")
def asked(spark, tmp_path_factory) -> dict[str, str]:
    with Both(str(tmp_path_factory.mktemp("store")), {"t": table(moments(False))}, TimeZone="Europe/Berlin") as both:
        return accepted(both)


def test_functions_of_times_are_accepted(asked):
    names = {e.split('"')[1] for e in asked if e.startswith('"')}
    assert len(asked) > 300
    assert {"date_trunc", "date_part", "date_diff", "strftime", "epoch", "last_day", "+", "-", "year"} <= names


@pytest.mark.parametrize("zone", ZONES)
def test_plain_times_never_go_through_the_zone_of_the_session(spark, asked, tmp_path, zone):
    with Both(str(tmp_path), {"t": table(moments(False))}, TimeZone=zone) as both:
        assert not differences(both, list(asked))
        assert unordered(both.on_spark(STATEMENT)) == unordered(both.on_duckdb(STATEMENT))
        aggregates = [f"{e} AS a{i}" for i, e in enumerate(registry.aggregated(ARGUMENTS, "DT"))]
        values = [f"{e} OVER (ORDER BY t, id) AS w{i}" for i, e in enumerate(registry.windowed(ARGUMENTS, "DT"))]
        for sql in (
            f"SELECT date_trunc('day', t) AS at, {', '.join(aggregates)} FROM t GROUP BY ALL",
            f"SELECT id, {', '.join(values)} FROM t",
        ):
            assert unordered(both.on_spark(sql)) == unordered(both.on_duckdb(sql))


def test_times_of_paths_and_lists_are_read_as_they_stand(spark, tmp_path):
    changes = [_micros(dt.datetime.fromisoformat(text)) for text in ZONES["America/Sao_Paulo"]]
    times = pa.array([change + step for change in changes for step in (0, 60 * 10**6)], pa.timestamp("us"))
    lists = pa.array([[t] for t in times.to_pylist()], pa.list_(times.type))
    with Both(str(tmp_path), TimeZone="America/Sao_Paulo") as both:
        both.con.create_dataset("d", pa.table({"p": times, "l": lists, "t": times}), partition_on=["p"])
        for sql in ("SELECT p, l, t FROM d", "SELECT count(*) FROM d WHERE p = t", "SELECT l[1] = t FROM d"):
            assert unordered(both.on_spark(sql)) == unordered(both.on_duckdb(sql))


def test_far_times_are_answered_alike_or_refused(spark, asked, tmp_path):
    with Both(str(tmp_path), {"t": table(moments(True))}, TimeZone="Asia/Kathmandu") as both:
        assert not differences(both, [e for e, text in asked.items() if "that far away as text" not in text])


def test_spark_is_given_nothing_that_it_takes_through_a_zone(spark, asked):
    with OnSession(spark, table(moments(False))) as session:
        # What this test looks for, in what Spark would do.
        assert ZONED in session.plan(f"SELECT date_trunc('hour', t) FROM {VIEW}")
        found = {e: session.plan(text) for e, text in asked.items()}
    assert not [e for e, plan in found.items() if ZONED in plan]


@pytest.mark.parametrize("micros", [2**63 - 1, 1 - 2**63])
def test_infinite_times_are_answered_alike_or_refused(spark, asked, tmp_path, micros):
    """A refusal is NULL here, so that one statement tells of all."""
    days = pa.array([2**31 - 1 if micros > 0 else 1 - 2**31], pa.date32())
    rows = table([0])
    for name, values in {"t": pa.array([micros], pa.timestamp("us")), "d": days, "e": days}.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    # Spark has no such times for these days: an error, which is a refusal. In JSON a refusal is no NULL.
    far = r"(?i)cast\(\w+ AS TIMESTAMP_NTZ\)"
    some = [e for e, text in asked.items() if not re.search(far, text) and "ms" not in e and "json" not in e]
    assert len(some) > 200
    with Both(str(tmp_path), {"t": rows}) as both, OnSession(spark, rows) as session:
        sql = f"SELECT 0, {', '.join(some)} FROM t"
        text = re.sub(r"raise_error\('(?:[^'\\]|\\.)*'\)", "NULL", both.translation(sql))
        tried = f"SELECT 0, {', '.join(f'TRY({e})' for e in some)} FROM t"
        assert not unlike(some, both.on_duckdb(tried), session.rows(text), or_null=True)
        for cast in ("d::TIMESTAMP", "(d > t)"):
            with pytest.raises(NotPortable):
                both.on_spark(f"SELECT {cast} FROM t")


ZONED = " as timestamp)"  # in plans of Spark, of what has a zone


class OnSession:
    """A table in the place of a statement's first table, in a session of Spark in another zone."""

    def __init__(self, spark: Any, rows: pa.Table) -> None:
        self._outer, self._rows = spark, rows

    def __enter__(self) -> OnSession:
        with keeping_active(self._outer):
            self._session = isolated(self._outer, {**SETTINGS, "spark.sql.session.timeZone": "Europe/Berlin"})
            self._session.createDataFrame(self._rows).createOrReplaceTempView(VIEW)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.catalog.dropTempView(VIEW)

    def plan(self, text: str) -> str:
        """Return what Spark makes of a statement, before it is optimized."""
        with keeping_active(self._outer):
            return str(self._session.sql(text)._jdf.queryExecution().analyzed().toString())

    def rows(self, text: str) -> list[Any]:
        """Return the rows of a statement."""
        with keeping_active(self._outer):
            return rows_of(self._session.sql(text).toArrow())
