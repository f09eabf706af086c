"""The backend of ibis: expressions over a store, that read no more files than their SQL does."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError

ibis = pytest.importorskip("ibis")
from kartosql.ibis_backend import Backend  # noqa: E402

# Said by ibis, which asks pandas for an option that has one value by now.
pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")

_ = ibis._


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.sql(
            "CREATE DATASET t PARTITION BY (p) INDEX (k) AS SELECT i % 4 AS p, i AS k, 'x' || i AS s, "
            "DATE '2024-01-01' + i::INT AS d, [i] AS l FROM range(200) r(i)"
        )
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
        con.build_cube(
            cube, {"seed": pa.table({"x": [1, 2], "p": [0, 1], "i": [5, 6]}), "e": pa.table({"x": [1], "p": [0]})}
        )
        yield con


@pytest.fixture
def backend(con):
    return Backend.from_connection(con)


def test_tables_and_their_columns_are_those_of_the_store(backend, con):
    assert backend.list_tables() == ["c", "t"]
    assert backend.list_tables(like="^t") == ["t"]
    assert backend.list_tables(database="c") == ["e", "seed"]
    assert backend.table("t").schema() == ibis.Schema.from_pyarrow(con.sql("SELECT * FROM t").schema)
    assert backend.table("seed", database="c").i.max().to_pyarrow().as_py() == 6
    assert backend.version == kartosql.__version__
    with pytest.raises(ibis.common.exceptions.TableNotFound):
        backend.table("nope")


def test_filters_read_the_files_that_may_hold_a_match(backend):
    t = backend.table("t")
    for found, files in ((t, 4), (t.filter(_.k == 7), 1), (t.filter(_.p.isin([1, 2])), 2), (t.filter(_.k < 0), 0)):
        report = backend.explain(found)
        assert (report.files_selected, report.files_total) == (files, 4)
    assert t.filter(_.k == 7).s.to_pyarrow().to_pylist() == ["x7"]
    one = ibis.param("int64")
    assert t.filter(_.k == one).s.to_pyarrow(params={one: 9}).to_pylist() == ["x9"]
    assert backend.explain(t.filter(_.k == one), params={one: 9}).files_selected == 1


def test_joins_groups_windows_and_rows_of_memory_are_answered(backend):
    t = backend.table("t")
    memory = ibis.memtable({"k": [1, 2, 500], "w": ["a", "b", "c"]})
    joined = t.join(memory, "k").select("k", "w").order_by("k")
    assert joined.to_pyarrow().to_pylist() == [{"k": 1, "w": "a"}, {"k": 2, "w": "b"}]
    assert backend.list_tables() == ["c", "t"]
    grouped = t.group_by("p").agg(n=_.count(), most=_.k.sum(), last=_.d.max()).order_by("p").limit(2)
    assert [(row["n"], row["most"]) for row in grouped.to_pyarrow().to_pylist()] == [(50, 4900), (50, 4950)]
    first = t.mutate(at=ibis.row_number().over(group_by="p", order_by="k")).filter(_.at == 0).order_by("p")
    assert first.k.to_pyarrow().to_pylist() == [0, 1, 2, 3]
    assert backend.sql("SELECT p, count(*) AS n FROM t GROUP BY p").filter(_.p > 2).to_pyarrow().to_pylist() == [
        {"p": 3, "n": 50}
    ]


def test_results_are_arrow_batches_and_pandas(backend):
    pytest.importorskip("pandas")
    t = backend.table("t").filter(_.k < 3).order_by("k")
    assert t.to_pyarrow().schema == t.schema().to_pyarrow()
    with t.to_pyarrow_batches() as reader:
        assert sum(batch.num_rows for batch in reader) == 3
    assert t.execute()["s"].tolist() == ["x0", "x1", "x2"]
    assert t.s.execute().tolist() == ["x0", "x1", "x2"]
    assert t.count().execute() == 3


def test_tables_and_views_are_made_and_dropped(backend):
    t = backend.table("t")
    assert backend.create_table("n", t.filter(_.p == 1).select("k")).count().to_pyarrow().as_py() == 50
    assert backend.create_table("n", pa.table({"a": [1, 2]}), overwrite=True).a.sum().to_pyarrow().as_py() == 3
    backend.insert("n", pa.table({"a": [3]}))
    assert backend.table("n").count().to_pyarrow().as_py() == 3
    assert backend.create_table("empty", schema=ibis.schema({"a": "int64"})).to_pyarrow().num_rows == 0
    view = backend.create_view("v", t.filter(_.k == 7).select("s"))
    assert (view.to_pyarrow().to_pylist(), backend.explain(view).files_selected) == ([{"s": "x7"}], 1)
    backend.drop_view("v")
    backend.drop_table("n")
    backend.drop_table("n", force=True)
    assert backend.list_tables() == ["c", "empty", "t"]
    with pytest.raises(KartosqlError, match="nope"):
        backend.drop_table("nope")


def test_ibis_finds_the_backend_by_its_entry_point_and_opens_stores_by_url(con, tmp_path, monkeypatch):
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    points = [EntryPoint(n, v, "ibis.backends") for n, v in project["entry-points"]["ibis.backends"].items()]
    monkeypatch.setattr(ibis.util, "backend_entry_points", lambda: points)
    monkeypatch.delattr(ibis, "kartosql", raising=False)
    for opened in (ibis.kartosql.connect(tmp_path, read_only=True), ibis.connect(f"kartosql:///{tmp_path}")):
        assert opened.list_tables() == ["c", "t"]
        opened.disconnect()
    for wrong in ("kartosql://host/folder", "kartosql://"):
        with pytest.raises(ValueError, match="kartosql:///"):
            ibis.connect(wrong)
    monkeypatch.delattr(ibis, "kartosql")


@pytest.mark.process
def test_strangers_may_ask_by_it_too(con, tmp_path):
    with kartosql.connect(tmp_path, untrusted=True) as untrusted:
        t = Backend.from_connection(untrusted).table("t")  # type: ignore[arg-type]
        assert t.filter(_.k == 7).s.to_pyarrow().to_pylist() == ["x7"]
