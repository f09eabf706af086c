"""Few small files are read without an engine where a statement only compares columns with constants."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.plan import small_reads
from kartosql.plan.small_reads import ReadItem, ReadShape, SmallRead
from kartosql.store import Store
from written import write_dataset

WATCHED = pa.proxy_memory_pool(pa.default_memory_pool())  # as long as anything that it holds
COLUMNS = ["i", "s", "n", "f", "b", "d", "m", "a", "q"]


def _rows(rng: random.Random, count: int) -> pa.Table:
    def some(*values: Any) -> list[Any]:
        return [rng.choice((*values, None)) for _ in range(count)]

    days = [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
    return pa.table(
        {
            "p": [rng.randrange(3) for _ in range(count)],
            "i": pa.array(some(0, 1, 2, -1, 2**62), pa.int64()),
            "s": pa.array(some("", "a", "it's", "\u00e4", "nul\0"), pa.string()),
            "n": pa.array(some(-128, 0, 1), pa.int8()),
            "f": pa.array(some(0.0, -0.0, float("nan"), float("inf"), 1e300), pa.float64()),
            "g": pa.array(some(0.5, float("nan")), pa.float32()),
            "b": some(True, False),
            "d": pa.array(some(*days), pa.date32()),
            "m": pa.array(some(*(dt.datetime(x.year, x.month, x.day, 1, 2, 3, 4) for x in days)), pa.timestamp("us")),
            "a": pa.array(some(Decimal("1.10"), Decimal("-0.01")), pa.decimal128(9, 2)),
            "x": pa.array(some(b"ab", b""), pa.binary()),
            "q": pa.array(some(1, 2), pa.int32()),
        }
    )


@pytest.fixture
def taken(monkeypatch) -> list[SmallRead]:
    """What was read without an engine."""
    found: list[SmallRead] = []
    run = SmallRead.run

    def noted(self: SmallRead, store: Any) -> Any:
        rows = run(self, store)
        if rows is not None:
            found.append(self)
        return rows

    monkeypatch.setattr(SmallRead, "run", noted)
    monkeypatch.setattr(small_reads, "MAX_BY_ARROW", 40)
    return found


@pytest.fixture
def connection(tmp_path) -> Iterator[kartosql.Connection]:
    rng = random.Random(1)
    write_dataset(Store(str(tmp_path)), "t", _rows(rng, 300), partition_on="p", index_columns=["i"])
    with kartosql.connect(str(tmp_path), keep_answers=False) as made:
        for _ in range(3):
            made.append_to_dataset("t", _rows(rng, 20))
        yield made


def _by_engine(connection: kartosql.Connection, text: str, parameters: Any = None) -> kartosql.Query:
    query = connection.sql(text, parameters, engine="duckdb")
    query.arrow()
    return query


def _same(connection: kartosql.Connection, text: str) -> None:
    expected = _by_engine(connection, text)
    query = connection.sql(text)
    assert query.arrow().schema.equals(expected.arrow().schema, check_metadata=True)
    assert repr(query.rows()) == repr(expected.rows()), text
    assert (query.types, query.columns) == (expected.types, expected.columns)


@pytest.mark.parametrize("seed", range(4))
def test_rows_types_and_order_are_those_of_the_engine(connection, taken, seed):
    rng = random.Random(seed)
    for _ in range(12):
        items = ", ".join(rng.sample(COLUMNS, rng.randint(1, 5)))
        atoms = {"i": "i = {}", "s": "s = '{}'", "n": "{} = n" if rng.random() < 0.1 else "n = {}", "q": "q = {}"}
        shape = " AND ".join(atoms[name] for name in rng.sample([*atoms], rng.randint(1, 2)))
        name = rng.choice(("t", "t AS u", '"t"'))
        for _ in range(3):
            constants = [
                rng.choice(("", "a", "\u00e4", "zz")) if atom.endswith("'") else rng.choice((0, 1, 2, 3, 2**62, 300))
                for atom in shape.split(" AND ")
            ]
            _same(connection, f"SELECT {items} FROM {name} WHERE {shape.format(*constants)}")
    assert len(taken) > 10


def _answer(ask: Callable[[], kartosql.Query]) -> str:
    """Return the rows of a query, or what is wrong with it."""
    try:
        return repr(ask().rows())
    except KartosqlError as e:
        return f"{e.code}: {e.message}"


SMALL = "SELECT s, f FROM t WHERE i = 1"


def test_the_statistics_tell_what_was_read(connection, taken):
    _by_engine(connection, SMALL)
    query = connection.sql(SMALL)
    rows = query.rows()
    assert len(taken) == 1
    assert query.stats is not None
    assert query.stats["rows"] == len(rows)
    assert query.stats["files_opened"] == query.stats["files_read"] == query.stats["row_groups_read"] > 0
    assert query.stats["bytes_read"] == query.stats["bytes_selected"]
    assert query.report is not None
    assert query.report.engine_reason.endswith("so little is read without it")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT s FROM t WHERE i = 1",
        "SELECT s FROM t WHERE i = 1 LIMIT 2",
        "SELECT s FROM t WHERE i = 1 ORDER BY s",
        "SELECT s AS q FROM t WHERE i = 1",
        "SELECT s, s FROM t WHERE i = 1",
        "SELECT s AS i FROM t WHERE i = 1",
        "SELECT 's' FROM t WHERE s = 'a'",
        "SELECT (s) FROM t WHERE s = 'a'",
        "SELECT s || '' FROM t WHERE s = 'a'",
        "SELECT s FROM t WHERE i = n",
        "SELECT s FROM t WHERE b",
        "SELECT s FROM t WHERE true AND i = 1",
        "SELECT s FROM t WHERE i = 1 AND b IS NULL",
        "SELECT s FROM t WHERE NOT i = 1",
        "SELECT s FROM t WHERE s IN ('a')",
        "SELECT s FROM t WHERE i = 1 AND EXISTS (SELECT 1 FROM t WHERE i = 2)",
        "SELECT 1 WHERE EXISTS (SELECT s FROM t WHERE i = 1)",
        "SELECT S FROM t WHERE i = 1",
        "SELECT p FROM t WHERE i = 1",
        "SELECT x FROM t WHERE i = 1",
        "SELECT * FROM t WHERE i = 1",
        "SELECT count(*) FROM t WHERE i = 1",
        "SELECT s FROM t WHERE i = 1 AND p = 1",
        "SELECT s FROM t WHERE i = 1 OR n = 1",
        "SELECT s FROM t WHERE i = 1 AND i = 1",
        "SELECT s FROM t WHERE i = '1'",
        "SELECT s FROM t WHERE i = 1.0",
        "SELECT s FROM t WHERE i = -1",
        "SELECT s FROM t WHERE i = 9999999999999999999",
        "SELECT s FROM t WHERE s = 'it''s'",
        "SELECT s FROM t WHERE s = E'a'",
        "SELECT f FROM t WHERE f = 0",
        "SELECT s FROM t WHERE i = 1 AND n > 0",
        "SELECT n, i FROM t AS t(q, n, i) WHERE i = 1",
        "SELECT s FROM (SELECT * FROM t) t WHERE i = 1",
        "SELECT s FROM t WHERE i = 1 UNION ALL SELECT s FROM t WHERE i = 1",
        "SELECT t.s FROM t JOIN t u ON t.i = u.n WHERE t.i = 1 AND u.i = 1",
        "SELECT s FROM t TABLESAMPLE 100% WHERE i = 1",
        "WITH t AS (SELECT 1 AS i, 2 AS s) SELECT s FROM t WHERE i = 1",
        "SELECT s FROM t WHERE i = 1 QUALIFY row_number() OVER () = 1",
    ],
)
def test_all_else_is_read_by_the_engine(connection, taken, text):
    expected = sorted(map(repr, _by_engine(connection, text).rows()))
    assert sorted(map(repr, connection.sql(text).rows())) == expected
    assert taken == []


def test_parameters_are_left_to_the_engine(connection, taken):
    expected = repr(_by_engine(connection, SMALL).rows())
    for _ in range(2):
        assert repr(connection.sql("SELECT s, f FROM t WHERE i = ?", [1]).rows()) == expected
    assert taken == []


def test_a_statement_is_judged_by_the_engine_first(connection, taken):
    text = "SELECT b, d FROM t WHERE n = 1 AND i = 2 AND q = 1"
    connection.sql(text).rows()
    assert taken == []
    connection.sql(text).rows()
    assert len(taken) == 1


def test_a_collation_is_left_to_the_engine(connection, taken):
    connection.sql("SET default_collation = nocase")
    for _ in range(2):
        assert connection.sql("SELECT s FROM t WHERE s = 'A'").rows() == [("a",)] * len(
            connection.sql("SELECT s FROM t WHERE lower(s) = 'a'").rows()
        )
    assert taken == []


def _make_odd(path: Path, kind: str) -> None:
    rows = pq.read_table(path, partitioning=None)
    at, typed = rows.column_names.index, rows
    if kind == "narrow":
        small = pa.array([min(v, 2) if v is not None else None for v in rows.column("i").to_pylist()], pa.int32())
        typed = rows.set_column(at("i"), "i", small)
    elif kind == "wide":
        typed = rows.set_column(at("n"), "n", rows.column("n").cast(pa.int16()))
    elif kind == "dictionary":
        typed = rows.set_column(at("s"), "s", rows.column("s").dictionary_encode())
    elif kind == "missing":
        typed = rows.drop_columns(["n"])
    elif kind == "swapped":
        typed = rows.select(rows.column_names[::-1])
    elif kind == "no text":
        texts = pa.array([b"\xff"] * rows.num_rows, pa.binary())
        schema = rows.schema.set(at("s"), pa.field("s", pa.string()))
        bad = pa.Array.from_buffers(pa.string(), rows.num_rows, texts.buffers())
        typed = pa.Table.from_arrays([bad if f.name == "s" else rows.column(f.name) for f in schema], schema=schema)
    elif kind == "empty":
        typed = rows.slice(0, 0)
    pq.write_table(typed, path)
    if kind == "damaged":
        path.write_bytes(path.read_bytes()[:50] + bytes(60) + path.read_bytes()[110:])


@pytest.mark.parametrize("kind", ["narrow", "wide", "dictionary", "missing", "swapped", "damaged", "no text", "empty"])
def test_odd_files_are_what_the_engine_makes_of_them(connection, taken, kind):
    text = "SELECT i, n, s FROM t WHERE i = 2"
    _by_engine(connection, text)
    paths = [Path(connection.store.local_path(key)) for key in connection.explain(text).selected]
    for path in paths if kind == "narrow" else paths[:1]:
        _make_odd(path, kind)
    with kartosql.connect(connection.store.url) as fresh:
        assert _answer(lambda: connection.sql(text)) == _answer(lambda: _by_engine(fresh, text))
    assert len(taken) == (kind in ("narrow", "dictionary", "swapped", "empty"))


def test_a_long_text_of_all_rows_is_held_once(tmp_path, monkeypatch):
    count, long = 2_000, "x" * 100_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [long])
    rows = pa.table({"i": pa.array(range(count), pa.int64()), "q": pa.array([1] * count, pa.int64()), "s": texts})
    pq.write_table(rows, tmp_path / "x.parquet", store_schema=False)
    schema = pa.schema([("s", pa.string()), ("i", pa.int64()), ("q", pa.int64())])
    pa.set_memory_pool(WATCHED)
    try:
        wanted = ({"i": 7, "s": long}, {"q": 1})
        size = (tmp_path / "x.parquet").stat().st_size
        items = [ReadItem("s", pa.string(), "s")]
        reads = [SmallRead(["x.parquet"], [size], ReadShape(items, schema, [], None), values) for values in wanted]
        one, every = [read.run(Store(str(tmp_path))) for read in reads]
    finally:
        pa.set_memory_pool(pa.default_memory_pool())
    assert one is not None
    assert one[0].to_pydict() == {"s": [long]}
    assert every is None
    assert WATCHED.max_memory() < 50 * len(long)


def test_larger_and_more_files_are_left_to_the_engine(connection, taken, monkeypatch):
    _by_engine(connection, SMALL)
    for name in ("MAX_FILES", "MAX_BYTES", "MAX_CELLS"):
        with monkeypatch.context() as patched:
            patched.setattr(small_reads, name, 1)
            _same(connection, SMALL)
    assert taken == []
    _same(connection, SMALL)
    assert len(taken) == 1


@pytest.mark.parametrize("seed", range(3))
def test_rows_without_null_are_read_by_pages(tmp_path, taken, monkeypatch, seed):
    rng = random.Random(seed)
    day, moment = dt.date(1969, 12, 31), dt.datetime(2020, 1, 2, 3, 4, 5, 6)
    columns = {
        "p": [rng.randrange(20) for _ in range(900)],
        "i": pa.array([rng.randrange(300) for _ in range(900)], pa.int64()),
        "n": pa.array([rng.randrange(-3, 3) for _ in range(900)], pa.int16()),
        "f": pa.array([rng.choice((0.0, -0.0, 1e300, float("inf"))) for _ in range(900)]),
        "g": pa.array([rng.choice((0.5, 1e-40)) for _ in range(900)], pa.float32()),
        "d": [day + dt.timedelta(rng.randrange(9)) for _ in range(900)],
        "m": pa.array([moment + dt.timedelta(rng.randrange(9)) for _ in range(900)], pa.timestamp("us")),
        "a": pa.array([Decimal(rng.randrange(-999, 999)).scaleb(-2) for _ in range(900)], pa.decimal128(9, 2)),
        "s": [rng.choice(("a", "b")) for _ in range(900)],
    }
    write_dataset(Store(str(tmp_path)), "t", pa.table(columns), partition_on="p", index_columns=["i"])
    by_arrow = SmallRead._by_arrow
    asked: list[SmallRead] = []
    monkeypatch.setattr(SmallRead, "_by_arrow", lambda self, contents: asked.append(self) or by_arrow(self, contents))
    monkeypatch.setattr(small_reads, "MAX_BY_ARROW", 3)
    with kartosql.connect(str(tmp_path), keep_answers=False) as made:
        for items in ("d, i", "i, a, m, f, g, n, d", "sum(a) AS a, count(*) AS c, max(d) AS d"):
            for key in range(8):
                _same(made, f"SELECT {items} FROM t WHERE i = {key} AND n = {key % 3}")
                _same(made, f"SELECT {items} FROM t WHERE i = {key}")
        assert (len(taken) > 40, asked) == (True, [])
        before = len(taken)
        for key in range(8):
            _same(made, f"SELECT i, s FROM t WHERE i = {key}")
        assert max(len(read.keys) for read in taken[:before]) > 3
        assert all(len(read.keys) <= 3 for read in taken[before:])


def test_the_budget_holds(connection, taken):
    _by_engine(connection, SMALL)
    connection.sql("SET max_bytes = 10")
    with pytest.raises(KartosqlError) as e:
        connection.sql(SMALL).rows()
    assert (e.value.code, taken) == ("byte-budget", [])


AGGREGATES = ["count(*)", "count(s)", "count(b)", "sum(a)", "min(i)", "max(d)", "min(m)", "max(a)", "min(n)"]


@pytest.mark.parametrize("seed", range(4))
def test_aggregates_are_those_of_the_engine(connection, taken, seed):
    rng = random.Random(seed)
    for _ in range(12):
        found = rng.sample(AGGREGATES, rng.randint(1, 4))
        items = ", ".join(f"{item} AS c{at}" for at, item in enumerate(found))
        atom = rng.choice(("i = {}", "q = {}", "s = 'a' AND n = {}"))
        for _ in range(3):
            _same(connection, f"SELECT {items} FROM t WHERE {atom.format(rng.choice((0, 1, 2, 3)))}")
    assert len(taken) > 10


def test_sums_are_those_of_the_engine_to_the_last_bit(tmp_path, taken):
    rng = random.Random(5)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-9, 9) for _ in range(9_000)]
    rows = pa.table({"i": [at % 3 for at in range(9_000)], "f": values, "a": [Decimal(f"{v:.9f}") for v in values]})
    wide = rows.set_column(2, "a", rows.column("a").cast(pa.decimal128(30, 9)))
    write_dataset(Store(str(tmp_path)), "t", wide, index_columns=["i"])
    with kartosql.connect(str(tmp_path), keep_answers=False) as made:
        for key in (0, 1, 2, 3):
            _same(made, f"SELECT sum(f) AS f, sum(a) AS a, count(*) AS n FROM t WHERE i = {key}")
    assert len(taken) == 3  # no file holds the last one


@pytest.mark.parametrize(
    "item",
    [
        *("sum(i)", "sum(DISTINCT f)", "count(DISTINCT s)", "sum(f) FILTER (WHERE b)", "sum(f) OVER ()", "sum(g)"),
        *("min(f)", "max(s)", "min(s)", "min(n, 2)", "sum(f ORDER BY d)", "avg(f)", "sum(f + 1)", "max(p)", "count(p)"),
        *("count(t)", "sum(f) + 1", "min(b)", "count(*) FILTER (WHERE b)", "first(f)", "main.sum(f)", "count(t.*)"),
    ],
)
def test_other_aggregates_are_left_to_the_engine(connection, taken, item):
    text = f"SELECT {item} AS c{'' if 'OVER' in item else ', count(*) AS n'} FROM t WHERE i = 2"
    for _ in range(3):
        connection.sql(text).rows()
    assert taken == []
