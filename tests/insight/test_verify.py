from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest

import kartosql
from kartosql.cli.main import main
from kartosql.errors import KartosqlError
from kartosql.insight import verify
from kartosql.insight.verify import difference, digest
from kartosql.sql import parse
from kartosql.sql.undetermined import undetermined


def _verify(con, sql, parameters=None):
    return con.sql(f"VERIFY (DUCKDB) {sql}", parameters).content


QUERIES = [
    "SELECT * FROM c",
    "SELECT x, v2 FROM c WHERE p > 1 AND i1 = 3",
    "SELECT v2, count(*) FROM c GROUP BY ALL",
    "SELECT count(*), min(v1), max(p) FROM c",
    "SELECT * FROM c.e WHERE p = 4",
    "SELECT * FROM c.seed",
    "SELECT a.x, b.v1 FROM c a JOIN c.seed b ON a.i1 = b.x WHERE a.p = 2",
    "WITH w AS (SELECT t, avg(v1) AS m FROM c GROUP BY t) SELECT * FROM w WHERE m > 10",
    "SELECT r.a, c.v1 FROM r JOIN c ON r.a = c.x",
    "SELECT * FROM d WHERE q = DATE '2020-01-02'",
    "SELECT k, b, f FROM d WHERE s = 'a/b c'",
    "SELECT 1 AS one",
]


@pytest.fixture
def wide(con):
    """The cube with overlays, a plain dataset with partition values of several types, and registered data."""
    newer = {"x": [0, 39], "p": [0, 3], "i1": [5, 5], "v1": [-1.0, -2.0], "t": ["new", None]}
    con.append_to_cube("c", {"seed": pa.table(newer)})
    con.register("r", pa.table({"a": [1, 2, 99]}))
    plain = {
        "q": [dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(2020, 1, 2)],
        "s": ["ä", "a/b c", "a=b"],
        "b": [True, False, True],
        "f": [0.5, float("nan"), None],
        "k": [1, 2, 3],
        "at": [dt.datetime(2020, 1, 1, 2, 3, 4, 5), None, dt.datetime(1960, 1, 1)],
    }
    con.create_dataset("d", pa.table(plain), partition_on=["q", "s", "b"])
    return con


@pytest.mark.parametrize("sql", QUERIES)
def test_all_ways_to_answer_agree(wide, sql):
    found = _verify(wide, sql)
    assert found.verdict == "verified", str(found)
    assert [a.verdict for a in found.answers] == ["reference", "equal", "equal"]
    assert len({a.digest for a in found.answers}) == 1
    pruned, whole, _ = found.answers
    assert whole.files >= pruned.files


def test_pruned_and_unpruned_read_different_files(con):
    pruned, whole, _ = _verify(con, "SELECT v1 FROM c WHERE p = 1").answers
    assert (pruned.files, whole.files) == (1, 4)
    assert whole.bytes > pruned.bytes


def test_a_planner_that_leaves_out_too_much_is_found(con, monkeypatch):
    from kartosql.plan import prune

    real = prune.OccurrencePruner._apply

    def broken(self, draft, conditions, usable):
        real(self, draft, conditions, usable)
        if conditions:
            draft.narrow(frozenset(sorted(draft.files)[1:]), "broken", "partition key")

    monkeypatch.setattr(prune.OccurrencePruner, "_apply", broken)
    found = _verify(con, "SELECT v1 FROM c WHERE p > 1")
    assert found.verdict == "different"
    assert found.is_failed
    assert [a.verdict for a in found.answers] == ["reference", "different", "different"]
    assert "20 rows instead of 10; too much" in found.answers[1].note


def test_a_reader_that_forgets_overlays_is_found(con, monkeypatch):
    newer = {"x": [0], "p": [0], "i1": [5], "v1": [-1.0], "t": ["new"]}
    con.append_to_cube("c", {"seed": pa.table(newer)})
    monkeypatch.setattr("kartosql.plan.overlays.Overlays.within", lambda self, files: frozenset())
    found = _verify(con, "SELECT x, v1 FROM c")
    assert [a.verdict for a in found.answers] == ["reference", "equal", "different"]
    assert found.is_failed


def test_an_index_that_lost_a_value_is_found(con):
    """What stands on disk may be wrong, too: here an index names no file for a value."""
    import pyarrow.parquet as pq

    (row,) = [r for r in con.sql("SHOW INDEXES FROM c.seed").arrow().to_pylist() if r["column"] == "i1"]
    path = con.store.local_path(row["key"])
    table = pq.read_table(path)
    pq.write_table(table.filter(pa.compute.not_equal(table["i1"], 3)), path)
    with kartosql.connect(con.store.url) as again:
        found = _verify(again, "SELECT x FROM c WHERE i1 = 3")
    assert found.is_failed
    assert found.answers[0].rows == 0


def test_the_command_ends_with_an_error_if_answers_differ(con, monkeypatch, capfd):
    monkeypatch.setattr("kartosql.plan.overlays.Overlays.within", lambda self, files: frozenset())
    monkeypatch.setattr(verify, "_independent", lambda session, query: pa.table({"x": [1]}))
    code = main([con.store.url, "-c", "VERIFY (DUCKDB) SELECT x FROM c", "--format", "box"])
    out, err = capfd.readouterr()
    assert code == 1
    assert out.startswith("DIFFERENT: duckdb, files read in another way")
    assert "answers-differ" in err


def test_sums_of_floats_may_differ_in_their_last_digits(con, monkeypatch):
    table = pa.table({"s": [0.1 + 0.2, float("nan"), None]})
    other = pa.table({"s": [None, float("nan"), 0.3]})
    assert difference(table, other) == ""
    assert difference(table, pa.table({"s": [None, float("nan"), 0.30001]})) != ""
    monkeypatch.setattr(verify, "_independent", lambda session, query: pa.table({"s": [0.3]}))
    con.register("r", pa.table({"a": [0.1, 0.2]}))
    found = _verify(con, "SELECT sum(a) AS s FROM r")
    assert found.verdict == "verified"
    assert found.answers[2].verdict == "equal but for rounding"


@pytest.mark.parametrize(
    ("given", "wanted", "text"),
    [
        ({"a": [1, 2, 2]}, {"a": [2, 1, 2]}, None),
        ({"a": [1, 2]}, {"a": [1, 2, 2]}, "2 rows instead of 3; missing (2,)"),
        ({"a": [1, 1, 2]}, {"a": [1, 2, 2]}, "missing (2,); too much (1,)"),
        ({"a": [1]}, {"b": [1]}, "columns a BIGINT instead of b BIGINT"),
        ({"a": [1]}, {"a": [1.0]}, "columns a BIGINT instead of a DOUBLE"),
        ({"a": [0.0, None]}, {"a": [None, -0.0]}, None),
        ({"a": [None]}, {"a": ["None"]}, "columns a NULL instead of a VARCHAR"),
        ({"a": ["1", None]}, {"a": [None, "1"]}, None),
        ({"a": [[1.5, -0.0]]}, {"a": [[1.5, 0.0]]}, None),
    ],
)
def test_answers_are_multisets(given, wanted, text):
    assert difference(pa.table(given), pa.table(wanted)) == text
    assert (digest(pa.table(given)) == digest(pa.table(wanted))) or text is not None


def test_a_digest_counts_repeats_and_does_not_depend_on_order_or_batches():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 50, 5_000)
    table = pa.table({"a": values, "b": [str(v) for v in values]})
    mixed = table.take(rng.permutation(5_000))
    assert digest(table) == digest(mixed) == digest(pa.Table.from_batches(table.to_batches(max_chunksize=7)))
    assert digest(table) != digest(pa.concat_tables([table, table.slice(0, 1)]))
    assert digest(pa.table({"a": [1], "b": [2]})) != digest(pa.table({"a": [2], "b": [1]}))


@pytest.mark.parametrize(
    ("sql", "may_differ"),
    [
        ("SELECT a FROM t", False),
        ("SELECT a, sum(b) FROM t GROUP BY a ORDER BY a", False),
        ("SELECT a FROM t LIMIT 3", True),
        ("SELECT random()", True),
        ("SELECT any_value(a) FROM t", True),
        ("SELECT list(a) FROM t", True),
        ("SELECT DISTINCT ON (a) b FROM t", True),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", True),
        ("SELECT * FROM t USING SAMPLE 3", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a OFFSET 2)", True),
    ],
)
def test_what_does_not_determine_the_answer_is_known(sql, may_differ):
    assert (undetermined(parse(sql).tree) is not None) == may_differ


def test_a_query_that_does_not_determine_its_answer_is_undecided(con, monkeypatch):
    monkeypatch.setattr(verify, "_independent", lambda session, query: pa.table({"x": [77]}))
    found = _verify(con, "SELECT x FROM c LIMIT 1")
    assert found.verdict == "undecided"
    assert "LIMIT" in found.because
    monkeypatch.setattr(verify, "_independent", lambda session, query: pa.table({"now": [1]}))
    assert _verify(con, "SELECT now() AS now FROM c").verdict == "undecided"


def test_data_that_change_meanwhile_are_undecided(con, monkeypatch):
    real = verify._independent

    def meanwhile(session, query):
        con.append_to_cube("c", {"seed": pa.table({"x": [77], "p": [0], "i1": [5], "v1": [1.0], "t": [""]})})
        return real(session, query)

    monkeypatch.setattr(verify, "_independent", meanwhile)
    found = _verify(con, "SELECT x FROM c")
    assert (found.verdict, found.because) == ("undecided", "the data changed meanwhile")


def test_what_cannot_be_read_in_another_way_is_not_asked(con, monkeypatch):
    monkeypatch.setattr(verify, "MAX_BYTES", 10)
    found = _verify(con, "SELECT x FROM c")
    assert found.verdict == "verified"
    assert (found.answers[2].verdict, found.answers[2].note) == ("not asked", "there is more than 1 GiB of it")


def test_spark_is_asked_and_has_to_agree(con, spark):
    found = con.sql("VERIFY SELECT x, v2 FROM c WHERE p > 1").content
    assert [a.by for a in found.answers][-1] == "spark"
    answer = found.answers[-1]
    assert (answer.verdict, answer.digest) == ("equal", found.answers[0].digest), answer


def test_what_spark_does_not_answer_in_the_same_way_is_no_fault(con, spark):
    found = con.sql("VERIFY SELECT list_transform([x], lambda y: y + 1) AS a FROM c").content
    assert found.verdict == "verified"
    assert found.answers[-1].verdict in ("not asked", "equal")


def test_an_error_of_one_way_is_a_failure(con, monkeypatch):
    def fail(session, query):
        raise KartosqlError("it broke", code="query-failed")

    monkeypatch.setattr(verify, "_independent", fail)
    found = _verify(con, "SELECT x FROM c LIMIT 1")
    assert (found.answers[2].verdict, found.answers[2].note) == ("failed", "query-failed: it broke")
    assert found.is_failed


def test_parameters_are_handed_to_all_of_them(con):
    found = _verify(con, "SELECT x FROM c WHERE i1 = $i", {"i": 3})
    assert (found.verdict, found.answers[0].rows) == ("verified", 4)


def test_a_certificate_in_every_form(con):
    sql = "SELECT x FROM c WHERE p = 1"
    found = json.loads(con.sql(f"VERIFY (DUCKDB, FORMAT JSON) {sql}").rows()[0][0])
    assert (found["verdict"], found["sql"], found["tables"]) == ("verified", sql, [{"table": "c", "files": 6}])
    table = con.sql(f"VERIFY (DUCKDB, FORMAT TABLE) {sql}").arrow()
    assert table["verdict"].to_pylist() == ["reference", "equal", "equal"]
    text = repr(con.sql(f"VERIFY (DUCKDB) {sql}"))
    assert text.startswith("VERIFIED\n  query:  SELECT x")
    assert con.store.url in text
    assert "<b>VERIFIED</b>" in con.sql(f"VERIFY (DUCKDB) {sql}")._repr_html_()


def test_errors_of_the_query_are_its_own(con):
    with pytest.raises(KartosqlError) as e:
        con.sql("VERIFY SELECT nope FROM c")
    assert e.value.code == "unknown-column"
