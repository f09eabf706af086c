"""Everyday statements on Spark, and aggregates that look at values in an order: DuckDB's answers over many values."""

from __future__ import annotations

import datetime as dt
import os
import random
from decimal import Decimal
from typing import Any

import everyday
import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import NotPortable
from sparks import Both, same, unordered

ALL = os.environ.get("KARTOSQL_EVERYDAY") == "all"
ANSWERED = 196  # of 200


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = str(tmp_path_factory.mktemp("store"))
    with kartosql.connect(store) as con:
        for name, table in everyday.rows().items():
            con.create_dataset(name, table)
    return store


@pytest.fixture(scope="module")
def both(spark: Any, url: str) -> Any:
    with Both(url, values()) as found:
        yield found


def values() -> dict[str, pa.Table]:
    """Return rows of some groups: values of each type that are NULL now and then, and there several times."""
    random.seed(7)
    n = 900

    def some(*of: Any) -> list[Any]:
        return [None if random.random() < 0.1 else random.choice(of) for _ in range(n)]

    floats = [random.uniform(-1e3, 1e3) for _ in range(60)] + [0.0, 1e-300, -1e5, 1 / 3]
    texts = ["", "a", "A", "ab", "é", "z", "Z'", "\U0001f600", "a\\b"]
    made = {
        "id": range(n),
        "g": [random.randrange(60) if i % 3 else 99 for i in range(n)],
        "i": pa.array(some(-(2**63), 2**63 - 1, 0, 1, 2, 3, -7, 10**17), pa.int64()),
        "k": pa.array([random.randrange(-(2**31), 2**31) for _ in range(n)], pa.int32()),
        "u": pa.array(some(0, 1, 255, 7), pa.uint8()),
        "d": pa.array(some(*floats), pa.float64()),
        "e": pa.array(some(*floats), pa.float64()),
        "m": pa.array(
            some(*(Decimal(random.randrange(-(10**9), 10**9)) / 100 for _ in range(50))), pa.decimal128(15, 2)
        ),
        "s": some(*texts),
        "t": pa.array(
            some(*(dt.datetime(2024, 3, 31, h, 30) for h in range(6)), dt.datetime(1850, 1, 1)), pa.timestamp("us")
        ),
        "y": some(dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(1969, 12, 31)),
        "b": some(True, False),
    }
    return {"v": pa.table(made)}


AGGREGATES = """
median(d), median(i), median(u), median(m), median(k)
quantile_cont(d, 0.5), quantile_cont(k, 0.9), quantile_cont(u, [0, 0.1, 1]), quantile_cont(m, [0.25, 0.75])
quantile_disc(d, 0.3), quantile_disc(m, 0.99), quantile_disc(s, 0.5)
quantile_disc(i, [0, 0.5, 1]), quantile_disc(t, 0.7)
median(k) FILTER (WHERE b), percentile_disc(0.2) WITHIN GROUP (ORDER BY k)
percentile_cont(0.7) WITHIN GROUP (ORDER BY d)
list(i ORDER BY id), list(s ORDER BY id DESC), array_agg(d ORDER BY k), list(s ORDER BY s), list(u ORDER BY u DESC)
list(id ORDER BY i, id), list(id ORDER BY i DESC, id)
list(id ORDER BY s DESC NULLS FIRST, id DESC), list(id ORDER BY b, id)
list(id ORDER BY d DESC, id), list(id ORDER BY m DESC NULLS LAST, id)
list(id ORDER BY t DESC, id), list(id ORDER BY y, id)
list(id ORDER BY y DESC NULLS FIRST, id), list(id ORDER BY u DESC, id), list(id ORDER BY t NULLS FIRST, id)
array_agg(DISTINCT s ORDER BY s), list(DISTINCT i ORDER BY i DESC), list(s ORDER BY id) FILTER (WHERE i > 1)
first(s ORDER BY id), last(s ORDER BY id), first(m ORDER BY id DESC), any_value(s ORDER BY id), last(d ORDER BY k)
arg_max(s, id), arg_min(d, id), max_by(m, k), min_by(t, k)
arg_max(k, id) FILTER (WHERE b), arg_min(s, k), max_by(b, id)
covar_pop(d, e), covar_samp(d, e), corr(d, e), regr_slope(d, e), regr_intercept(d, e), regr_r2(d, e), regr_count(d, e)
""".strip().splitlines()


def test_the_share_of_everyday_statements_that_is_answered(url: str) -> None:
    with Both(url) as both:
        refused = everyday.refused(both)
    assert len(everyday.statements()) == 200
    assert all(reason.startswith("not-portable: ") for reason in refused.values()), refused
    assert 200 - len(refused) >= ANSWERED, refused


@pytest.mark.parametrize("grouped", ["GROUP BY g", "GROUP BY ALL HAVING false"])
def test_aggregates_in_an_order_are_those_of_duckdb(both: Both, grouped: str) -> None:
    for aggregates in AGGREGATES if grouped == "GROUP BY g" else AGGREGATES[:1]:
        text = f"SELECT g, {aggregates} FROM v {grouped}"
        wanted, found = unordered(both.on_duckdb(text)), unordered(both.on_spark(text))
        different = [(a, b) for a, b in zip(wanted, found, strict=True) if not same(a, b, 1e-9)]
        assert not different, (aggregates, different[:3])


def test_no_rows_have_no_list_and_no_median(both: Both) -> None:
    text = f"SELECT {', '.join(AGGREGATES)} FROM v WHERE id < 0"
    assert repr(both.on_spark(text)) == repr(both.on_duckdb(text))


def test_modes_and_extremes_of_several_rows_are_refused_where_they_differ(both: Both) -> None:
    rows = "(VALUES (1, 'a', 5), (2, 'b', 5), (2, 'b', 4), (3, 'b', NULL), (1, NULL, 9)) r(x, s, n)"
    for text in ("mode(s)", "arg_max(s, x)", "arg_min(s, n)", "max_by(s, x)", "arg_max(x, s)", "mode(n)"):
        asked = f"SELECT {text} FROM {rows}"
        if text == "arg_max(x, s)":
            with pytest.raises(NotPortable, match="several rows"):
                both.on_spark(asked)
        else:
            assert both.on_spark(asked) == both.on_duckdb(asked), text
    with pytest.raises(NotPortable, match="most often"):
        both.on_spark("SELECT mode(x) FROM (VALUES (1), (2), (2), (1)) r(x)")


def test_what_hangs_on_the_processor_is_refused(both: Both) -> None:
    for text in ("quantile_cont(m, 0.3)", "quantile_cont(m::DECIMAL(30, 2), 0.5)", "median(y)", "mode(d)"):
        with pytest.raises(NotPortable):
            both.translation(f"SELECT {text} FROM v")


TEXTS = (
    "SELECT id, regexp_replace(s, '[a-z]', '_'), regexp_replace(s, 'b|a', '') FROM v",
    "SELECT id, epoch_ms(t), epoch_ms(y) FROM v",
    "SELECT id, repeat(s, g - 90), levenshtein(s, 'éa'), levenshtein('', s), translate(s, 'aéb', 'zz'), "
    "format('{}{{{}}}', s, id), printf('%s%% %05d', s, k), regexp_extract_all(s, '[a-z]') FROM v",
    "SELECT id, log(abs(d), e), log(e, 0), log(1, d), bit_count(k), bit_count(i), bit_count(u::TINYINT), "
    "(u::BIGINT) << (g % 20), (u * 0)::INTEGER << g FROM v WHERE u < 100",
    "SELECT id, time_bucket(INTERVAL '7 days', y), time_bucket(INTERVAL '5 months', y), "
    "time_bucket(INTERVAL '35 minutes', t), time_bucket(INTERVAL '1 year', t), "
    "time_bucket(INTERVAL '36 hours', t) FROM v",
    "SELECT id, strptime(strftime(t, '%Y/%m/%d %H:%M:%S'), '%Y/%m/%d %H:%M:%S'), strptime(strftime(y, '%d.%m.%Y'), "
    "'%d.%m.%Y') FROM v WHERE year(y) > 999",
    "SELECT g, sum(k) * 1.5, sum(k) * max(m) FROM v WHERE abs(k) < 1000000 GROUP BY g",
)


@pytest.mark.parametrize("text", TEXTS)
def test_new_functions_are_those_of_duckdb(both: Both, text: str) -> None:
    assert repr(unordered(both.on_spark(text))) == repr(unordered(both.on_duckdb(text)))


def test_everyday_statements_are_answered_alike(both: Both) -> None:
    refused = everyday.refused(both)
    asked = [text for text in everyday.statements() if text not in refused][:: 1 if ALL else 15]
    different, met = [], []
    for text in asked:
        wanted = both.on_duckdb(text)
        try:
            found = both.on_spark(text)
        except NotPortable:
            met.append(text)  # a value
            continue
        if "USING SAMPLE" in text or "random()" in text:  # at random on both
            assert len(found) == len(wanted)
            continue
        pairs = zip(unordered(wanted), unordered(found), strict=False)
        if len(wanted) != len(found) or not all(same(a, b, 1e-9) for a, b in pairs):
            different.append((text, wanted[:3], found[:3]))
    print(f"{len(asked)} asked, {len(different)} different, refused for a value: {met}")
    assert not different
    assert met == [text for text in asked if "list_distinct(tags)" in text or "any_value(city)" in text]
