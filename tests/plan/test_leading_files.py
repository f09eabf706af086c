"""The first rows by a column, and extremes, from bounds in footers: as over all files, whatever the columns hold."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import struct
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
import kartosql.query
from builders import change_footer
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import write_dataset

FILES = 24
DAY, MOMENT = dt.date(1970, 1, 1), dt.datetime(2020, 3, 28, 22, 59, 59, 999999)
SPECIAL = [float("nan"), -0.0, 0.0, float("inf"), -float("inf")]
TEXTS = ["", "a", "a\0", "é", "日本", "\U0001f600", "\uffff", "z" * 40, "z" * 41, "zz"]
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "b": (pa.bool_(), lambda r, n: r.random() < 0.5),
    "i8": (pa.int8(), lambda r, n: r.choice([-128, 127, n - 12])),
    "i64": (pa.int64(), lambda r, n: r.choice([-(2**63), 2**63 - 1, n, n, n])),
    "u32": (pa.uint32(), lambda r, n: r.choice([0, 2**32 - 1, n, n, n])),
    "u64": (pa.uint64(), lambda r, n: r.choice([0, 2**63, 2**64 - 1, n, n])),
    "f32": (pa.float32(), lambda r, n: r.choice([*SPECIAL, n / 8, n / 8, n / 8])),
    "f64": (pa.float64(), lambda r, n: r.choice([SPECIAL[n % 5], n / 10, n / 10, -n / 10])),
    "plain": (pa.float64(), lambda r, n: n / 10 + r.random()),
    "dec": (pa.decimal128(9, 2), lambda r, n: Decimal(r.choice([-n, n, n, 9999])) / 4),
    "wide": (pa.decimal128(30, 3), lambda r, n: Decimal(r.choice([-n, n, 10**20]))),
    "day": (pa.date32(), lambda r, n: DAY + dt.timedelta(r.choice([n, n, -n, 30000]))),
    "ts": (pa.timestamp("us"), lambda r, n: MOMENT + dt.timedelta(hours=r.choice([n, n + 1]))),
    "tz": (pa.timestamp("us", "UTC"), lambda r, n: MOMENT + dt.timedelta(hours=-n)),
    "ns": (pa.timestamp("ns"), lambda r, n: MOMENT + dt.timedelta(seconds=n)),
    "s": (pa.string(), lambda r, n: r.choice([*TEXTS, f"k{n:02}", f"k{n:02}"])),
    "raw": (pa.binary(), lambda r, n: bytes([n, r.randrange(256)])),
}


def _rows(seed: int) -> pa.Table:
    """Return rows of ``p`` 0 to 23: columns around ``p``, files that hold NULL alone, and columns without any NULL."""
    r = random.Random(seed)
    owners = [p for p in range(FILES) for _ in range(r.choice([1, 2, 5, 9]))]
    columns: dict[str, Any] = {"p": owners, "h": [p % 3 for p in owners], "n": [*range(len(owners))]}
    for name, (type_, value) in TYPES.items():
        nulls, empty = r.choice([0, 0.2]), r.sample(range(FILES), r.choice([0, 4]))
        values = [None if p in empty or r.random() < nulls else value(r, p) for p in owners]
        columns[name] = pa.array(values, type_)
    return pa.table(columns)


def _files(store: Store, uuid: str) -> list[str]:
    return sorted(key for key in store.list_below(f"{uuid}/table/") if key.endswith(".parquet"))


@pytest.fixture(scope="module", params=range(3))
def connection(request, tmp_path_factory):
    """A dataset whose files have several row groups; one has no statistics, one no rows."""
    store = Store(str(tmp_path_factory.mktemp("leading")))
    write_dataset(store, "t", _rows(request.param), partition_on=["p", "h"])
    for at, key in enumerate(_files(store, "t")):
        rows = pq.read_table(pa.BufferReader(store.read(key)), partitioning=None)
        sink = pa.BufferOutputStream()
        rows = rows.slice(0, 0) if at == 5 else rows
        options: dict[str, Any] = {"write_statistics": at != 7, "row_group_size": 4}
        pq.write_table(rows, sink, store_schema=at % 2 == 0, **options)
        store.put(key, bytes(sink.getvalue()))
    with kartosql.connect(store.url) as made:
        yield made


def _shown(query: Any) -> str:
    # Which of two zeros is the least one depends on which thread is first.
    return repr(query.rows()).replace("-0.0,", "0.0,").replace("-0.0)", "0.0)")


def _agrees(connection: Any, monkeypatch: pytest.MonkeyPatch, sql: str) -> int:
    """Compare an answer with that over all files, and return how many files were read."""
    query = connection.sql(sql)
    got, types = _shown(query), query.arrow().schema.types
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        plain = connection.sql(sql)
        assert (got, types) == (_shown(plain), plain.arrow().schema.types), sql
    return int(query.stats["files_read"])


ORDERS = ["", "DESC", "ASC NULLS FIRST", "DESC NULLS FIRST", "DESC NULLS LAST"]


@pytest.mark.parametrize("column", TYPES)
def test_the_first_rows_are_those_over_all_files(connection, monkeypatch, column):
    # Zeros are equal, and are told apart by what follows.
    for order in ORDERS:
        for limit in ("LIMIT 1", "LIMIT 3 OFFSET 2", "LIMIT 40", "LIMIT 1000"):
            _agrees(connection, monkeypatch, f"SELECT {column} AS x, n FROM t ORDER BY {column} {order}, n {limit}")
        where = "WHERE p % 2 = 0"
        _agrees(connection, monkeypatch, f"SELECT p, {column} FROM t {where} ORDER BY 2 {order}, n LIMIT 4")
        where = "WHERE h <> 1 AND i8 > 0"
        _agrees(connection, monkeypatch, f"SELECT p, {column} y FROM t {where} ORDER BY y {order}, n LIMIT 4")


@pytest.mark.parametrize("column", TYPES)
def test_extremes_are_those_over_all_files(connection, monkeypatch, column):
    sql = f"SELECT count(*) AS n, min({column}) AS a, max({column}) AS b FROM t"
    _agrees(connection, monkeypatch, sql)
    _agrees(connection, monkeypatch, f"{sql} WHERE p > 20")
    _agrees(connection, monkeypatch, f"{sql} WHERE p > 200")
    _agrees(connection, monkeypatch, f"SELECT h, count(*), max({column}) FROM t WHERE p > 8 GROUP BY h ORDER BY h")
    _agrees(connection, monkeypatch, f"SELECT h, count(*), min({column}) FROM t GROUP BY h HAVING h > 0 ORDER BY h")


@pytest.mark.parametrize(("type_", "code"), [(pa.float32(), "<f"), (pa.float64(), "<d")])
def test_a_row_group_of_infinities_has_no_finite_number(tmp_path, monkeypatch, type_, code):
    """Arrow up to version 24 says the largest finite number for one bound of them, which no row has."""
    store, signs = Store(str(tmp_path)), [-1, -1, *[1] * (FILES - 2)]
    infinite, n = [sign * math.inf for sign in signs], [*range(FILES)]
    write_dataset(store, "t", pa.table({"p": n, "n": n, "x": pa.array(infinite, type_)}), partition_on="p")
    finite = {-1: np.finfo(type_.to_pandas_dtype()).min, 1: np.finfo(type_.to_pandas_dtype()).max}
    for key, sign in ((key, signs[int(key.split("/p=")[1].split("/")[0])]) for key in _files(store, "t")):
        own, other = (struct.pack(code, number) for number in (sign * math.inf, finite[sign]))
        length = bytes([len(own)])
        high, low = (own, other) if sign > 0 else (other, own)
        was, new = (b"\x28" + length + max_ + b"\x18" + length + min_ for max_, min_ in ((own, own), (high, low)))
        change_footer(store, key, was, new)  # max_value and min_value, one behind the other
    with kartosql.connect(store.url) as made:
        assert made.sql("SELECT x, n FROM t ORDER BY x, n LIMIT 2").rows() == [(-math.inf, 0), (-math.inf, 1)]
        for limit, by in itertools.product(range(1, 6), ("x", "x DESC", "x NULLS FIRST")):
            _agrees(made, monkeypatch, f"SELECT x, n FROM t ORDER BY {by}, n LIMIT {limit}")
            _agrees(made, monkeypatch, f"SELECT x, n FROM t WHERE p > 1 ORDER BY {by}, n LIMIT {limit}")
        for text in ("x = 'inf'", "x < '-1e300'", "x > 0", f"x >= {finite[1]}", "x < 'inf'"):
            _agrees(made, monkeypatch, f"SELECT x, n FROM t WHERE {text} ORDER BY n")
        assert made.sql("CHECK t FULL").rows() == []


@pytest.mark.process
def test_few_files_are_read_for_the_first_rows(tmp_path, monkeypatch):
    store = Store(str(tmp_path))
    rows = {"p": [p for p in range(FILES) for _ in range(3)], "v": [p // 2 for p in range(FILES) for _ in range(3)]}
    write_dataset(store, "t", pa.table({**rows, "f": pa.array(rows["v"], pa.float64())}), partition_on="p")
    with kartosql.connect(store.url) as made:
        # Rows that are equal to the last one are in two files.
        assert _agrees(made, monkeypatch, "SELECT * FROM t ORDER BY v DESC, p LIMIT 2") == 2
        assert _agrees(made, monkeypatch, "SELECT * FROM t ORDER BY v, p LIMIT 7") == 4
        assert _agrees(made, monkeypatch, "SELECT * FROM t ORDER BY f, p LIMIT 4") == 4
        assert _agrees(made, monkeypatch, "SELECT * FROM t ORDER BY f DESC, p LIMIT 4") == FILES
        report = made.explain("SELECT * FROM t ORDER BY v DESC, p LIMIT 2").to_dict()["scans"][0]["datasets"][0]
        assert report["steps"][-1] == {
            "condition": "the first 2 rows by v DESC", "by": "row groups", "files_before": FILES, "files_after": 2,
        }  # fmt: skip
        assert made.sql("VERIFY SELECT * FROM t ORDER BY v DESC, p LIMIT 2").rows()


def test_bounds_that_were_cut_are_no_values(tmp_path, monkeypatch):
    store = Store(str(tmp_path))
    write_dataset(store, "t", pa.table({"p": [*range(9)], "s": [f"a{n}" for n in range(9)]}), partition_on="p")
    # The texts differ, but the flag that bounds are values is missing or false: what follows a bound may be cut off.
    long = ["b" * 50 + str(n) for n in range(9)]
    write_dataset(store, "u", pa.table({"p": [*range(9)], "s": long}), partition_on="p")
    for key in _files(store, "u"):
        data = store.read(key)
        assert data.count(b"\x11\x11") == 1  # both flags, one after the other
        store.put(key, data.replace(b"\x11\x11", b"\x12\x12"))
    with kartosql.connect(store.url) as made:
        assert _agrees(made, monkeypatch, "SELECT min(s), max(s) FROM t") == 0
        assert _agrees(made, monkeypatch, "SELECT min(s), max(s) FROM u") == 9
        assert _agrees(made, monkeypatch, "SELECT p FROM u ORDER BY s DESC LIMIT 2") == 2
