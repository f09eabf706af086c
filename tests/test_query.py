"""What a result gives: Arrow, rows, frames, streams, files, statistics."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import pickle
import re
import sys
import threading
import time
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.base import JoinOrder
from kartosql.engines.duckdb import optimizers
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.errors import ExecutionError, KartosqlError, LimitError, SqlError, UsageError
from kartosql.plan.bind import bind
from kartosql.query import NOT_SPARK, Attempt
from kartosql.sql import parse
from kartosql.store import Store
from written import write_dataset

pytestmark = pytest.mark.usefixtures("no_collection")  # some statements are as deep as may be

ROWS = {"x": [1, 2, 3, 4], "p": [0, 0, 1, 1], "s": ["a", None, "c", "d"]}


@pytest.fixture
def connection() -> Any:
    store = Store(f"memory://{uuid.uuid4().hex}")
    write_dataset(store, "d", pa.table(ROWS), partition_on="p", index_columns=["x"])
    return kartosql.connect(store.url)


# -- what it gives ---------------------------------------------------------------------------------


def test_rows_are_python_values(connection):
    sql = "SELECT x, s, sum(x) OVER () AS h, 1.50 AS d, DATE '2020-01-01' AS t, [x] AS l FROM d WHERE x < 3 ORDER BY x"
    expected = [
        (1, "a", 10 - 7, Decimal("1.50"), dt.date(2020, 1, 1), [1]),
        (2, None, 3, Decimal("1.50"), dt.date(2020, 1, 1), [2]),
    ]
    rows = connection.sql(sql).rows()
    assert rows == expected
    assert type(rows[0][2]) is int


def test_a_select_runs_when_rows_are_asked_for(connection):
    counter = connection.store.counter
    query = connection.sql("SELECT * FROM d")
    assert query.columns == ["p", "s", "x"]
    assert query.stats is None
    assert not [k for k in counter.keys if k.endswith(".parquet")]
    query.arrow()
    reads = counter.reads
    query.arrow()
    assert query.rows()
    assert len(query) == 4
    assert counter.reads == reads


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_the_schema_computes_nothing(connection, engine):
    started = time.process_time()
    schema = connection.sql("SELECT sum(i) AS s FROM (SELECT unnest(range(20000000)) AS i)", engine=engine).schema
    assert schema == pa.schema([("s", pa.decimal128(38, 0))])
    assert time.process_time() - started < 1  # else some seconds


def test_the_schema_opens_no_data_file(connection):
    schema = connection.sql("SELECT x + 1 AS y, s FROM d WHERE x = 1").schema
    assert schema == pa.schema([("y", pa.int64()), ("s", pa.string())])
    assert not [k for k in connection.store.counter.keys if k.endswith(".parquet")]


def test_iteration_and_length(connection):
    query = connection.sql("SELECT x FROM d ORDER BY x")
    assert list(query) == [(1,), (2,), (3,), (4,)]
    assert len(query) == 4


def test_no_columns_but_rows(connection):
    assert connection.sql("SELECT count(*) FROM d WHERE false").rows() == [(0,)]
    assert connection.sql("SELECT x FROM d WHERE false").rows() == []


def test_frames(connection):
    import pandas

    query = connection.sql("SELECT x, s FROM d WHERE p = 1 ORDER BY x")
    pandas.testing.assert_frame_equal(
        query.df().astype({"s": object}),
        pandas.DataFrame({"x": [3, 4], "s": ["c", "d"]}, dtype=object).astype({"x": "int64"}),
    )
    assert query.pl().rows() == [(3, "c"), (4, "d")]


@pytest.mark.parametrize(("name", "method"), [("pandas", "df"), ("polars", "pl")])
def test_a_missing_extra_is_named(connection, monkeypatch, name, method):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError) as e:
        getattr(connection.sql("SELECT 1"), method)()
    assert e.value.code == "missing-extra"
    assert f"kartosql[{name}]" in e.value.hint


def test_other_libraries_read_it_through_the_arrow_interface(connection):
    query = connection.sql("SELECT x, s FROM d ORDER BY x")
    assert pa.table(query).to_pydict() == {"x": [1, 2, 3, 4], "s": ["a", None, "c", "d"]}
    assert pa.schema(query) == query.schema


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "tsv", "json", "jsonl"])
def test_it_is_written_to_files(connection, tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    assert connection.sql("SELECT x, s FROM d WHERE s IS NOT NULL ORDER BY x").write(str(path)) == 3
    if suffix == "parquet":
        assert pq.read_table(path).to_pydict() == {"x": [1, 3, 4], "s": ["a", "c", "d"]}
    elif suffix == "jsonl":
        assert [json.loads(line) for line in path.read_text().splitlines()][2] == {"x": 4, "s": "d"}
    else:
        assert path.stat().st_size > 0


def test_its_repr_is_a_preview(connection):
    text = repr(connection.sql("SELECT x, s FROM d ORDER BY x"))
    assert "x" in text
    assert "NULL" in text.upper()
    assert "<table" in connection.sql("SELECT x FROM d")._repr_html_()


def test_names_that_occur_twice_are_kept(connection):
    query = connection.sql("SELECT x, x, 1 AS x FROM d WHERE x = 2")
    assert (query.columns, query.rows()) == (["x", "x", "x"], [(2, 2, 1)])


# -- streams -----------------------------------------------------------------------------------------

LONG = "SELECT i, i % 7 AS m FROM range(3000000) t(i)"


def test_a_stream_comes_in_batches(connection):
    reader = connection.sql(LONG).reader()
    sizes = [batch.num_rows for batch in reader]
    assert sum(sizes) == 3_000_000
    assert len(sizes) > 5


def test_each_stream_runs_the_query_again(connection):
    query = connection.sql("SELECT x FROM d ORDER BY x")
    assert query.reader().read_all() == query.reader().read_all()


def test_a_stream_closed_early_stops_the_query_and_leaves_the_rest_usable(connection):
    query = connection.sql("SELECT a.range FROM range(10000000) a, range(10000000) b")
    reader = query.reader()
    assert reader.read_next_batch().num_rows > 0
    started = time.perf_counter()
    reader.close()
    del reader
    assert time.perf_counter() - started < 120  # it would take years
    assert connection.sql("SELECT count(*) FROM d").rows() == [(4,)]


ENDLESS = "range(1000000000000) t(i)"  # more than any run can wait for, or hold


@pytest.mark.parametrize(
    ("rest", "parameters"),
    [
        ("WHERE i % 7 <> ?", [3]),
        ("WHERE i % $m <> $n", {"m": 7, "n": 3}),
        ("WHERE i % 7 <> $1 AND i % 7 <> $1 + 7", [3]),
        ("WHERE NOT list_contains(?, i % 7)", [[3, 10]]),
        ("WHERE i % 7 NOT IN (SELECT unnest(?))", [[3, 10]]),
        ("JOIN d ON i % 7 = x WHERE i >= ?", [0]),
        ("WHERE i % 7 <> 3 LIMIT ?", [10**11]),
        ("WHERE " + "(" * 98 + "i % 7 <> ?" + ")" * 98, [3]),  # only the engine parses it
    ],
)
def test_a_query_with_parameters_streams(connection, rest, parameters):
    connection.sql("SET timeout = 250")
    reader = connection.sql(f"SELECT i FROM {ENDLESS} {rest}", parameters).reader()
    found = [i for _ in range(3) for i in reader.read_next_batch()["i"].to_pylist()]
    reader.close()
    wanted = {1, 2, 3, 4} if "JOIN" in rest else {0, 1, 2, 4, 5, 6}
    assert len(found) > 10_000
    assert {i % 7 for i in found} == wanted


PARAMETERS = [1, 2**40, 2**80, True, 1.5, Decimal("1.50"), "a", b"a", dt.date(2020, 1, 1), dt.timedelta(1), [1], None]


@pytest.mark.parametrize("value", PARAMETERS, ids=repr)
def test_parameters_of_a_stream_have_the_types_of_a_prepared_statement(connection, value):
    sql = "SELECT typeof($1) AS t, CAST($1 AS VARCHAR) AS s"
    expected = duckdb.connect().execute(sql, [value]).fetchall()[0]
    reader = connection.sql(f"{sql} FROM {ENDLESS}", [value]).reader()
    batch = reader.read_next_batch()
    reader.close()
    assert tuple(batch.slice(0, 1).to_pylist()[0].values()) == expected


def test_interrupt_stops_a_stream_with_parameters(connection):
    query = connection.sql(f"SELECT i FROM {ENDLESS} WHERE i % 7 <> ?", [3])
    reader = query.reader()
    assert reader.read_next_batch().num_rows > 0
    timer = threading.Timer(0.2, query.interrupt)
    timer.start()
    with pytest.raises(ExecutionError) as e:
        for _ in reader:
            pass
    timer.join()
    assert e.value.code == "interrupted"
    assert connection.sql("SELECT count(*) FROM d").rows() == [(4,)]


def test_a_preview_does_not_run_to_the_end(connection):
    started = time.perf_counter()
    assert repr(connection.sql("SELECT a.range FROM range(10000000) a, range(10000000) b"))
    assert time.perf_counter() - started < 120  # it would take years


def test_two_streams_run_side_by_side(connection):
    one, two = connection.sql(LONG).reader(), connection.sql("SELECT x FROM d ORDER BY x").reader()
    first = one.read_next_batch()
    assert two.read_all()["x"].to_pylist() == [1, 2, 3, 4]
    assert first.num_rows + sum(b.num_rows for b in one) == 3_000_000


def test_queries_run_in_several_threads(connection):
    found: list[Any] = []

    def run(p: int) -> None:
        for _ in range(5):
            found.append((p, connection.sql("SELECT sum(x) FROM d WHERE p = ?", [p]).rows()))

    threads = [threading.Thread(target=run, args=(p,)) for p in (0, 1, 0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 20
    assert {(p, rows[0][0]) for p, rows in found} == {(0, 3), (1, 7)}


def test_interrupt_stops_a_query_from_another_thread(connection):
    query = connection.sql("SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range * b.range = 7")
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            query.rows()
        except BaseException as e:  # noqa: BLE001 - the test looks at whatever came
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    # Again and again: what does not run yet is not stopped.
    while thread.is_alive():
        query.interrupt()
        thread.join(0.05)
    (error,) = outcome
    assert isinstance(error, ExecutionError)
    assert error.code == "interrupted"
    assert connection.sql("SELECT count(*) FROM d").rows() == [(4,)]


def test_interrupt_of_a_query_that_does_not_run_is_nothing(connection):
    query = connection.sql("SELECT x FROM d ORDER BY x")
    query.interrupt()
    assert len(query) == 4
    query.interrupt()


# -- limits and statistics -------------------------------------------------------------------------


@pytest.mark.parametrize("local", [False, True])
def test_a_scan_over_the_byte_budget_is_refused_before_it_reads(tmp_path, local):
    store = Store(str(tmp_path)) if local else Store(f"memory://{uuid.uuid4().hex}")
    write_dataset(store, "d", pa.table(ROWS), partition_on="p")
    connection = kartosql.connect(store.url, max_bytes=1000)
    query = connection.sql("SELECT * FROM d")
    with pytest.raises(LimitError) as e:
        query.rows()
    assert e.value.code == "byte-budget"
    assert not [k for k in connection.store.counter.keys if k.endswith(".parquet")]
    connection.sql("SET max_bytes = '1MB'")
    assert len(connection.sql("SELECT * FROM d")) == 4


def test_pruned_files_do_not_count_for_the_byte_budget(connection):
    size = connection.explain("SELECT * FROM d WHERE p = 0").to_dict()["scans"][0]["datasets"][0]["bytes_selected"]
    connection.sql(f"SET max_bytes = {size + 1}")
    assert len(connection.sql("SELECT * FROM d WHERE p = 0")) == 2
    with pytest.raises(LimitError):
        connection.sql("SELECT * FROM d").rows()


def test_statistics_tell_what_was_read(connection):
    query = connection.sql("SELECT s FROM d WHERE p = 1")
    query.rows()
    stats = query.stats
    assert (stats["rows"], stats["files_total"], stats["files_read"], stats["engine"]) == (2, 2, 1, "duckdb")
    assert stats["bytes_selected"] > 0
    assert stats["seconds"] >= stats["plan_seconds"] > 0
    assert stats["store"]["lists"] >= 1
    json.dumps(stats)


def test_statistics_of_a_local_scan_say_how_many_bytes_the_engine_read(tmp_path):
    store = Store(str(tmp_path))
    write_dataset(store, "d", pa.table(ROWS), partition_on="p")
    query = kartosql.connect(store.url).sql("SELECT * FROM d")
    query.rows()
    assert query.stats["bytes_read"] > 0


def test_explain_and_report_agree(connection):
    query = connection.sql("SELECT s FROM d WHERE x = 3")
    report = query.explain()
    assert report is query.report
    assert "x = 3 inverted index 2 -> 1" in " ".join(str(report).split())
    assert json.loads(json.dumps(report.to_dict()))["scans"][0]["datasets"][0]["files_selected"] == 1


def test_only_a_select_can_be_explained(connection):
    with pytest.raises(UsageError) as e:
        connection.sql("SHOW TABLES").explain()
    assert e.value.code == "not-explainable"


# -- parameters --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "parameters", "rows"),
    [
        ("SELECT x FROM d WHERE x = ?", [3], [(3,)]),
        ("SELECT x FROM d WHERE x IN (?, ?) ORDER BY x", (1, 4), [(1,), (4,)]),
        ("SELECT $2, $1, $2", ["a", "b"], [("b", "a", "b")]),
        ("SELECT $a, $b, $a", {"a": 1, "b": None}, [(1, None, 1)]),
        ("SELECT :a || :b", {"a": "x", "b": "y"}, [("xy",)]),
        ("SELECT $1", {"1": 5}, [(5,)]),
        ("SELECT '?', \"x\", '$1 :a' FROM d WHERE x = ? -- ?", [2], [("?", 2, "$1 :a")]),
        ("SELECT $$ ? $$, ?", [1], [(" ? ", 1)]),
        ("SELECT x FROM d LIMIT ?", [0], []),
        ("SELECT list_contains(?, x), x FROM d WHERE x = 2", [[1, 2]], [(True, 2)]),
        ("SELECT x FROM d WHERE s = ?", ["c' OR 1=1 --"], []),
        ("SELECT ?::DATE - ?", [dt.date(2020, 1, 2), dt.date(2020, 1, 1)], [(1,)]),
        ("SELECT ?, ?", [b"\0a", 2**63], [(b"\0a", 2**63)]),
        ("SELECT x::VARCHAR FROM d WHERE x = ?::INT", ["1"], [("1",)]),
        ("SELECT 1", [], [(1,)]),
        ("SELECT 1", {}, [(1,)]),
        ("SELECT (SELECT max(x) FROM d WHERE x < $n) + $n", {"n": 4}, [(7,)]),
    ],
)  # fmt: skip
def test_parameters(connection, sql, parameters, rows):
    assert connection.sql(sql, parameters).rows() == rows


@pytest.mark.parametrize(
    ("sql", "parameters", "place"),
    [
        ("SELECT ?", None, "?"),
        ("SELECT ?, ?", [1], "?"),
        ("SELECT $2, $1", [1], "$2"),
        ("SELECT $0", [1], "$0"),
        ("SELECT $a, $b", {"a": 1}, "$b"),
        ("SELECT :a", {"b": 1}, ":a"),
        ("SELECT $a", [1], "$a"),
        ("SELECT ?", {"a": 1}, "?"),
        ("SELECT 1", [1], None),
        ("SELECT ?", [1, 2], None),
        ("SELECT $1", [1, 2], None),
        ("SELECT $a", {"a": 1, "b": 2}, None),
        ("SELECT '?'", [1], None),
        ("SHOW TABLES", [1], None),
    ],
)
def test_parameters_that_do_not_fit_are_refused(connection, sql, parameters, place):
    with pytest.raises(SqlError) as e:
        connection.sql(sql, parameters)
    assert e.value.code == "invalid-parameters"
    if place is not None:
        assert sql[slice(*e.value.span)] == place


@pytest.mark.parametrize(
    ("sql", "parameters"), [("SELECT ?, $1", [1, 2]), ("SELECT ?, $a", {"a": 1}), ("SELECT $1, $a", {"a": 1, "1": 2})]
)
def test_kinds_of_parameters_that_are_mixed_are_refused_or_answered(connection, sql, parameters):
    try:
        rows = connection.sql(sql, parameters).rows()
    except KartosqlError as e:
        assert e.code == "invalid-parameters"  # noqa: PT017 - both outcomes are right
    else:
        assert rows == [(2, 1)]


@pytest.mark.parametrize("parameters", ["ab", 5, b"ab", {1, 2}])
def test_parameters_that_are_no_list_and_no_dictionary_are_refused(connection, parameters):
    with pytest.raises(KartosqlError) as e:
        connection.sql("SELECT ?", parameters).rows()
    assert e.value.code in ("invalid-parameters", "invalid-argument")


@pytest.mark.parametrize("value", [object(), 1j, type], ids=["object", "complex", "type"])
def test_a_parameter_the_engine_has_no_type_for_is_refused(connection, value):
    with pytest.raises(KartosqlError):
        connection.sql("SELECT x = ? FROM d", [value]).rows()


def test_a_select_that_only_the_engine_can_parse_takes_parameters(connection):
    sql = "SELECT x FROM d WHERE " + "(" * 98 + "x = ?" + ")" * 98
    assert connection.sql(sql, [3]).rows() == [(3,)]


# -- what is tried when an attempt fails -----------------------------------------------------------

OVERLOOKED = SqlError("There is no column 's'.", code="unknown-column")
NO_TABLE = SqlError("There is no table 'd'.", code="unknown-table")
LOST = ExecutionError(f'{optimizers.LOST[0]} "s"')


@pytest.fixture
def attempt(connection) -> Attempt:
    return Attempt(bind(parse("SELECT s FROM d JOIN d AS e USING (x)"), connection._session.tables()))


def test_an_unknown_name_is_looked_for_among_all_columns_and_once_only(attempt):
    for error in (OVERLOOKED, NO_TABLE):
        assert None not in [o.columns for o in attempt.bound.occurrences]
        second = attempt.fallback(error, chose_spark=False)
        assert second == replace(attempt, bound=second.bound)
        assert [o.columns for o in second.bound.occurrences] == [None, None]
        assert second.bound.text == attempt.bound.text
        assert second.fallback(error, chose_spark=False) is None


@pytest.mark.parametrize("code", sorted(NOT_SPARK))
def test_what_spark_refuses_is_left_to_duckdb_if_nobody_asked_for_spark(attempt, code):
    error = KartosqlError("Spark has no such thing.", code=code)
    second = attempt.fallback(error, chose_spark=True)
    assert second == replace(attempt, not_spark="Spark has no such thing.")
    assert attempt.fallback(error, chose_spark=False) is None


@pytest.mark.parametrize("words", optimizers.LOST)
def test_a_column_that_the_order_of_joins_lost_is_found_in_the_engines_order_and_at_last_in_that_of_the_text(
    attempt, words
):
    lost = ExecutionError(f"INTERNAL: {words} (1)")
    second = attempt.fallback(lost, chose_spark=False)
    assert second == replace(attempt, joins=JoinOrder.OF_ENGINE)
    third = second.fallback(lost, chose_spark=False)
    assert third == replace(attempt, joins=JoinOrder.OF_TEXT)
    assert third.fallback(lost, chose_spark=False) is None


@pytest.mark.parametrize(
    "code", ["interrupted", "timeout", "out-of-memory", "byte-budget", "corrupt-file", "invalid-value"]
)
def test_other_failures_are_final(attempt, code):
    for chose_spark in (False, True):
        assert attempt.fallback(KartosqlError("It failed.", code=code), chose_spark=chose_spark) is None


def test_in_whatever_order_attempts_fail_each_gives_up_one_assumption_more(attempt):
    refused = KartosqlError("Spark has no such thing.", code="not-portable")
    for errors in sorted({*itertools.permutations([OVERLOOKED, refused, LOST, LOST])}, key=str):
        last = attempt
        for error in errors:
            last = last.fallback(error, chose_spark=last.not_spark is None)
        assert [o.columns for o in last.bound.occurrences] == [None, None]
        assert (last.not_spark, last.joins) == ("Spark has no such thing.", JoinOrder.OF_TEXT)
        # DuckDB runs it now, so there is nothing left.
        assert [last.fallback(e, chose_spark=False) for e in (OVERLOOKED, refused, LOST)] == [None] * 3


@pytest.fixture
def failures(monkeypatch) -> list[KartosqlError]:
    """What statements of DuckDB fail with from now on, one after the other, as long as there are any."""
    coming: list[KartosqlError] = []
    stream = DuckStatement.stream

    def failing(self: DuckStatement, query: Any, *, joins: JoinOrder) -> Any:
        if coming:
            raise coming.pop(0)
        return stream(self, query, joins=joins)

    monkeypatch.setattr(DuckStatement, "stream", failing)
    return coming


def test_a_query_is_answered_by_the_first_attempt_that_does_not_fail(connection, failures):
    for name, errors in (("s", [OVERLOOKED, LOST]), ("t", [LOST, OVERLOOKED])):
        failures += errors
        query = connection.sql(f"SELECT s AS {name} FROM d WHERE x = 1")
        assert query.rows() == [("a",)]
        assert not failures
        assert (query.stats["rows"], query.stats["files_read"]) == (1, 1)
        assert query.progress is None


def test_a_column_that_was_lost_is_looked_for_without_the_optimizers_that_lose_some(connection, failures, monkeypatch):
    chosen, choose = [], DuckStatement._choose_optimizers

    def watched(self: DuckStatement, query: Any, joins: JoinOrder) -> None:
        choose(self, query, joins)
        chosen.append(self.instance.setting("disabled_optimizers"))

    monkeypatch.setattr(DuckStatement, "_choose_optimizers", watched)
    failures += [LOST, LOST]
    assert connection.sql("SELECT s FROM d JOIN d AS e USING (x, s) WHERE x = 1").rows() == [("a",)]
    # Statement 135 over store 1039 of lakes.statements is one where the order of joins alone was not enough.
    assert [names.strip("'") for names in chosen] == ["join_order,projection_pullup"]


def test_the_error_of_the_last_attempt_is_told(connection, failures):
    last = LimitError("Too much.", code="out-of-memory")
    failures += [OVERLOOKED, LOST, last]
    query = connection.sql("SELECT s FROM d WHERE x = 1")
    with pytest.raises(LimitError) as e:
        query.rows()
    assert e.value is last
    assert not failures
    assert query.stats is None
    assert query.rows() == [("a",)]


@pytest.mark.parametrize("fails", [False, True])
def test_streams_of_one_query_that_begin_at_the_same_time_end_each_for_itself(connection, monkeypatch, fails):
    query, both, found = connection.sql("SELECT x FROM d ORDER BY x"), threading.Barrier(2), []
    stream, statements, closed = DuckStatement.stream, [], []

    def together(self: DuckStatement, bound: Any, *, joins: JoinOrder) -> Any:
        statements.append(self)
        is_first = joins is JoinOrder.COMPARED
        if is_first or not fails:
            both.wait(60)
        if is_first and fails:
            raise LOST
        return stream(self, bound, joins=joins)

    for name in ("rest", "close"):
        end = getattr(DuckStatement, name)
        monkeypatch.setattr(DuckStatement, name, lambda self, *a, end=end: (closed.append(self), end(self, *a))[1])
    monkeypatch.setattr(DuckStatement, "stream", together)
    threads = [threading.Thread(target=lambda: found.append(query.reader().read_all())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [t["x"].to_pylist() for t in found] == [[1, 2, 3, 4]] * 2
    assert {id(s) for s in statements} <= {id(s) for s in closed}
    assert query.stats["rows"] == 4


def test_rows_are_found_by_their_place_and_know_their_columns(connection):
    query = connection.sql("SELECT range AS r, 'v' || range AS v FROM range(4)")
    assert (query[0], query[-1], query[1:3]) == ((0, "v0"), (3, "v3"), [(1, "v1"), (2, "v2")])
    assert (query[::-2], query[9:]) == ([(3, "v3"), (1, "v1")], [])
    with pytest.raises(IndexError):
        query[4]
    with pytest.raises(TypeError, match=re.escape("a column is query.df()['r']")):
        query["r"]
    rows = list(query)
    assert rows == query.rows()
    assert pickle.loads(pickle.dumps(rows)) == rows
    frame = pytest.importorskip("pandas").DataFrame(query)
    assert (list(frame.columns), frame["v"].tolist()) == (["r", "v"], ["v0", "v1", "v2", "v3"])


def test_a_query_shows_its_first_rows(connection, capsys):
    connection.sql("SELECT range AS r FROM range(5)").show(2)
    assert capsys.readouterr().out.splitlines()[4:] == ["│      0 │", "│      1 │", "└────────┘", "(more rows)"]


@pytest.mark.parametrize(("name", "here"), [("fetchall", "rows()"), ("toPandas", "df()"), ("fetchone", "query[0]")])
def test_names_of_other_libraries_are_told_those_of_ours(connection, name, here):
    query = connection.sql("SELECT 1")
    with pytest.raises(AttributeError, match=re.escape(f"Here it is {here}")):
        getattr(query, name)
    with pytest.raises(AttributeError, match=re.escape("Here it is con.sql(")):
        connection.execute("SELECT 1")
    with pytest.raises(AttributeError, match=r"no attribute 'nope'$"):
        connection.nope
    assert not hasattr(query, "nope")
