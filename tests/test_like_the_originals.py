"""Where the originals set the example: projections, operands, types that files disagree on."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kartosql
from kartosql import C
from kartosql.errors import UsageError

CUBE = kartosql.Cube("c", ["x", "y"], ["p"])


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    from kartosql.store import Store

    folder = str(tmp_path_factory.mktemp("projection"))
    Store(folder, create=True)
    with kartosql.connect(folder) as con:
        seed = pa.table({"x": [0, 0, 1], "y": [1, 2, 1], "p": ["a", "a", "b"]})
        wide = pa.table({"x": [0, 0, 1], "y": [1, 2, 1], "w": [5, 6, 7], "s": ["é", "f", "g"]})
        con.build_cube(CUBE, {"seed": seed, "e": wide}, partition_on={"e": []})
        yield con


def test_a_projected_cell_stands_once(connection):
    result = connection.query_cube(CUBE, dimension_columns=["x"], payload_columns=[])
    assert result.rows() == [("a", 0), ("b", 1)]


def test_a_dimension_that_is_projected_away_shows_one_value_of_the_cell(connection):
    result = connection.query_cube(CUBE, dimension_columns=["x"], payload_columns=["y"])
    assert (result.columns, result.rows()) == (["p", "x", "y"], [("a", 0, 2), ("b", 1, 1)])


def test_by_default_all_visible_columns_are_shown(connection):
    result = connection.query_cube(CUBE, dimension_columns=["x"], datasets=["seed"])
    assert (result.columns, result.rows()) == (["p", "x", "y"], [("a", 0, 2), ("b", 1, 1)])


def test_groups_of_a_projected_dimension_keep_their_values(connection):
    results = connection.query_cube(CUBE, dimension_columns=["x"], payload_columns=[], partition_by=["y"])
    assert [r.rows() for r in results] == [[("a", 0, 1), ("b", 1, 1)], [("a", 0, 2)]]


def test_an_open_interval_is_no_condition(connection):
    conditions = C("w").in_interval(None, None)
    result = connection.query_cube(CUBE, dimension_columns=["y"], payload_columns=[], conditions=conditions)
    assert result.rows() == [("a", 1), ("b", 1), ("a", 2)]


@pytest.mark.parametrize(("condition", "found"), [(C("w").isin(5), [5]), (C("s") == "é".encode(), [5])])
def test_single_values_and_bytes_are_taken_as_the_column_has_them(connection, condition, found):
    result = connection.query_cube(CUBE, payload_columns=["w"], conditions=condition)
    assert [row[1] for row in result.rows()] == found


@pytest.mark.parametrize("arguments", [{"dimension_columns": ["x", "x"]}, {"partition_by": ["p", "p"]}])
def test_a_name_that_stands_twice_is_refused(connection, arguments):
    with pytest.raises(UsageError, match="twice"):
        connection.query_cube(CUBE, **arguments)


def test_an_index_of_an_unpartitioned_dataset_prunes(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        cube = kartosql.Cube("d", ["x"], ["p"], index_columns=["w"])
        data = {"seed": pa.table({"x": [0, 1], "p": ["a", "b"]}), "e": pa.table({"x": [0, 1], "w": [5, 6]})}
        con.build_cube(cube, data, partition_on={"e": []})
        query = con.sql("SELECT x, p, w FROM d WHERE w = 7")
        assert query.rows() == []
        assert query.report.files_selected == 0
        assert con.sql("SELECT x, p, w FROM d WHERE w = 5").rows() == [(0, "a", 5)]


def test_durations_keep_their_unit_from_file_to_file():
    import datetime as dt
    import uuid

    import builders
    from kartosql.store import Store

    store = Store(f"memory://{uuid.uuid4().hex}")
    builders.write_dataset(
        store, "d", {"p": pa.int64(), "v": pa.duration("us"), "x": pa.int64()}, ["p=0", "p=1"], partition_keys=["p"]
    )
    for p, unit in enumerate(["s", "ms"]):
        rows = {"v": pa.array([3, None], pa.duration(unit)), "x": [2 * p, 2 * p + 1]}
        store.put(f"d/table/p={p}/{builders.WRITE_ID}.parquet", builders.parquet(rows))
    with kartosql.connect(store.url) as con:
        found = con.sql("SELECT x, p, v FROM d ORDER BY x").rows()
        second, millisecond = dt.timedelta(seconds=3), dt.timedelta(milliseconds=3)
        assert found == [(0, 0, second), (1, 0, None), (2, 1, millisecond), (3, 1, None)]
        assert con.sql("SELECT x FROM d WHERE v > INTERVAL 2 SECONDS").rows() == [(0,)]
        assert con.sql("SELECT count(x) FROM d").rows() == [(4,)]


def test_files_may_have_a_type_where_the_schema_has_none(tmp_path):
    """As after create_empty_dataset_header with a column of NULLs and write_single_partition."""
    import pyarrow.parquet as pq

    with kartosql.connect(str(tmp_path)) as con:
        con.build_cube(kartosql.Cube("n", ["x"], ["p"]), pa.table({"x": [0, 1], "p": ["a", "b"], "v": pa.nulls(2)}))
        assert con.sql("SELECT v FROM n").rows() == [(None,), (None,)]
        (file,) = (tmp_path / "n++seed" / "table" / "p=b").iterdir()
        pq.write_table(pa.table({"x": [1], "v": ["q"]}), file)
        assert con.sql("SELECT x, v FROM n ORDER BY x").rows() == [(0, None), (1, "q")]
        assert con.sql("SELECT x FROM n WHERE v = 'q'").rows() == [(1,)]
        (file,) = (tmp_path / "n++seed" / "table" / "p=a").iterdir()
        pq.write_table(pa.table({"x": [0], "v": [1]}), file)
        with pytest.raises(kartosql.KartosqlError) as e:
            con.sql("SELECT v FROM n").rows()
        assert e.value.code == "schema-mismatch"
