"""Damaged and hostile stores, seen through ``con.sql``: an error that names file and reason, and nothing else."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x"], ["p"], index_columns=["i"])
SEED = {"x": [0, 1, 2, 3], "p": [0, 0, 1, 1], "i": [5, 6, 7, 8], "v": [1.5, 2.5, 3.5, 4.5], "s": ["a", "b", "c", "d"]}
E = {"x": [0, 2], "p": [0, 1], "w": ["A", "B"]}


MEMBERS = ("c++seed", "c++e")


@pytest.fixture
def cube(local: Store) -> Store:
    build_cube(local, CUBE, {"seed": pa.table(SEED), "e": pa.table(E)})
    return local


def _data(store: Store, folder: str = "p=1") -> str:
    labels = builders.read_document(store, "c++seed")["partitions"]
    return str(next(e["files"]["table"] for e in labels.values() if folder in e["files"]["table"]))


def _index(store: Store, column: str = "i") -> str:
    return str(builders.read_document(store, "c++seed")["indices"][column])


def _path(store: Store, key: str) -> Path:
    return Path(store.local_path(key))


def _failure(store: Store, sql: str = "SELECT * FROM c") -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        kartosql.connect(store.root).sql(sql).rows()
    return e.value


def _rewrite(store: Store, key: str, change: Callable[[pa.Table], pa.Table]) -> None:
    store.put(key, builders.parquet(change(builders.read_parquet(store, key))))


def _with(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.column_names.index(name), name, values)


# -- data files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM c", "SELECT count(*) FROM c", "SELECT x FROM c WHERE i = 7", "FROM c.seed"]
)
def test_a_missing_data_file(cube, sql):
    _path(cube, _data(cube)).unlink()
    error = _failure(cube, sql)
    assert error.code == "missing-file"
    assert _data(cube) in error.message


def test_files_that_are_not_read_may_be_missing(cube):
    _path(cube, _data(cube)).unlink()
    assert kartosql.connect(cube.root).sql("SELECT x FROM c WHERE p = 0 ORDER BY x").rows() == [(0,), (1,)]


CORRUPT = {
    "empty": b"",
    "text": b"not parquet at all, but long enough to have a footer",
    "magic only": b"PAR1PAR1",
    "huge footer": b"PAR1" + b"\0" * 50 + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
    "encrypted": b"PARE" + b"\0" * 50 + (10).to_bytes(4, "little") + b"PARE",
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
@pytest.mark.parametrize("sql", ["SELECT * FROM c", "SELECT count(*) FROM c", "SELECT x FROM c WHERE i = 7"])
def test_a_corrupt_data_file(cube, data, sql):
    cube.put(_data(cube), data)
    error = _failure(cube, sql)
    assert error.code == "corrupt-file"
    assert _data(cube) in error.message


def test_a_truncated_data_file(cube):
    data = cube.read(_data(cube))
    cube.put(_data(cube), data[: len(data) // 2])
    assert _failure(cube).code == "corrupt-file"


def test_a_data_file_whose_pages_are_damaged(cube):
    rows = builders.read_parquet(cube, _data(cube))
    data = bytearray(builders.parquet(rows, compression="zstd"))
    data[4:200] = b"\xff" * 196
    cube.put(_data(cube), bytes(data))
    error = _failure(cube)
    assert error.code == "corrupt-file"
    assert _data(cube) in error.message


def _change_name(cube, key, name):
    """Let a bit flip in each name of a column in the footer, which is no UTF-8 then."""
    head = bytes([0x18, len(name)])
    builders.change_footer(cube, key, head + name, head + name[:-1] + bytes([name[-1] ^ 0x80]))


def test_a_data_file_with_a_name_that_is_no_text(cube):
    cube.put(_data(cube), builders.parquet(builders.read_parquet(cube, _data(cube)), store_schema=False))
    _change_name(cube, _data(cube), b"v")
    for sql in ("SELECT * FROM c", "SELECT v FROM c", "SELECT v FROM c WHERE i = 7"):
        error = _failure(cube, sql)
        assert error.code in ("corrupt-file", "schema-mismatch")
        assert _data(cube) in error.message


def test_a_foreign_data_file(cube):
    cube.put(_data(cube), builders.parquet({"other": [1, 2]}))
    for sql in ("SELECT * FROM c", "SELECT x FROM c", "SELECT v FROM c WHERE i = 7"):
        error = _failure(cube, sql)
        assert error.code == "schema-mismatch"
        assert _data(cube) in error.message


@pytest.mark.parametrize("column", ["x", "v", "s"])
def test_a_data_file_without_a_column_of_the_schema(cube, column):
    _rewrite(cube, _data(cube), lambda t: t.drop_columns([column]))
    error = _failure(cube, f"SELECT {column} FROM c")
    assert error.code == "schema-mismatch"
    assert _data(cube) in error.message
    assert repr(column) in error.message


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("x", pa.array([2.0, 3.0])),
        ("x", pa.array(["2", "3"])),
        ("x", pa.array([2, 3], pa.uint64())),
        ("i", pa.array([True, False])),
        ("v", pa.array([1, 2])),
        ("v", pa.array(["1", "2"])),
        ("s", pa.array([1, 2])),
        ("s", pa.array([b"a", b"b"])),
        ("s", pa.array([["a"], ["b"]])),
        ("s", pa.array([{"s": "a"}, {"s": "b"}])),
    ],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else v,
)
def test_a_data_file_whose_types_do_not_fit_the_schema(cube, column, values):
    _rewrite(cube, _data(cube), _with(column, values))
    for sql in (f"SELECT {column} FROM c", f"SELECT {column} FROM c.seed WHERE p = 1"):
        error = _failure(cube, sql)
        assert error.code == "schema-mismatch"
        assert _data(cube) in error.message
        assert repr(column) in error.message


@pytest.mark.parametrize(
    ("column", "values"),
    [("x", pa.array([2, 3], pa.int8())), ("v", pa.array([1, 2], pa.float32())), ("v", pa.nulls(2)), ("s", pa.nulls(2)),
     ("s", pa.array(["c", "d"]).dictionary_encode()), ("s", pa.array(["c", "d"], pa.large_string()))],
    ids=lambda v: str(v.type) if isinstance(v, pa.Array) else v,
)  # fmt: skip
def test_types_that_kartothek_itself_writes_are_fine(cube, column, values):
    _rewrite(cube, _data(cube), _with(column, values))
    found = kartosql.connect(cube.root).sql(f"SELECT {column} FROM c.seed WHERE p = 1 ORDER BY x").rows()
    assert found == [(v,) for v in values.to_pylist()]


def test_a_column_in_another_case_is_no_column_of_the_schema(cube):
    _rewrite(cube, _data(cube), lambda t: t.rename_columns(["V" if c == "v" else c for c in t.column_names]))
    assert _failure(cube, "SELECT v FROM c").code == "schema-mismatch"


def test_text_that_is_no_utf8(cube):
    raw = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    _rewrite(cube, _data(cube), _with("s", raw))
    error = _failure(cube, "SELECT s, length(s) FROM c")
    assert error.code in ("corrupt-file", "invalid-value")


# -- links and what is no file ---------------------------------------------------------------------


def test_a_data_file_that_is_a_link(cube, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.parquet"
    path = _path(cube, _data(cube))
    path.rename(outside)
    path.symlink_to(outside)
    error = _failure(cube)
    assert error.code == "unsafe-key"
    assert _path(cube, "c++seed").name in error.message


def test_a_partition_folder_that_is_a_link(cube, tmp_path_factory):
    folder = _path(cube, _data(cube)).parent
    outside = tmp_path_factory.mktemp("outside") / "p"
    folder.rename(outside)
    folder.symlink_to(outside)
    assert _failure(cube).code == "unsafe-key"


@pytest.mark.parametrize("what", ["data", "index", "schema", "document"])
def test_a_pipe_in_place_of_a_file_does_not_block(cube, what):
    builders.forget_history(cube, *MEMBERS)
    key = {
        "data": _data(cube), "index": _index(cube), "schema": "c++seed/table/_common_metadata",
        "document": "c++seed.by-dataset-metadata.json",
    }[what]  # fmt: skip
    path = _path(cube, key)
    path.unlink()
    os.mkfifo(path)
    error = _failure(cube, "SELECT * FROM c WHERE i = 7")
    assert error.code == "unsafe-key"
    assert key in error.message


@pytest.mark.parametrize("what", ["data", "index", "schema"])
def test_a_folder_in_place_of_a_file(cube, what):
    builders.forget_history(cube, *MEMBERS)
    key = {"data": _data(cube), "index": _index(cube), "schema": "c++seed/table/_common_metadata"}[what]
    path = _path(cube, key)
    path.unlink()
    path.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        error = _failure(cube, "SELECT * FROM c WHERE i = 7")
    assert error.code in ("missing-file", "missing-metadata", "invalid-cube", "unsafe-key")


@pytest.mark.parametrize(
    "key",
    [
        "../outside.parquet",
        "/etc/passwd",
        "c++seed/table/../../c++e/table/x.parquet",
        "c++e/table/p=0/x.parquet",
        "c++seed/../x",
    ],
)
def test_keys_that_leave_their_dataset(cube, key):
    document = builders.read_document(cube, "c++seed")
    document["partitions"]["p=0/evil"] = {"files": {"table": key}}
    builders.write_document(cube, document)
    assert _failure(cube).code == "unsafe-key"
    document = builders.read_document(cube, "c++seed")
    document["partitions"].pop("p=0/evil")
    document["indices"]["i"] = key
    builders.write_document(cube, document)
    assert _failure(cube, "SELECT x FROM c WHERE i = 7").code == "unsafe-key"


# -- metadata --------------------------------------------------------------------------------------


def test_a_torn_document(cube):
    key = "c++seed.by-dataset-metadata.json"
    cube.put(key, cube.read(key)[:-20])
    error = _failure(cube)
    assert error.code == "invalid-metadata"
    assert key in error.message


def test_a_missing_schema_of_the_seed(cube):
    builders.forget_history(cube, *MEMBERS)
    _path(cube, "c++seed/table/_common_metadata").unlink()
    with pytest.warns(KartosqlWarning, match="left out"):
        error = _failure(cube)
    assert error.code in ("missing-metadata", "invalid-cube")


def test_an_incomplete_member_is_left_out_with_a_warning(cube):
    builders.forget_history(cube, *MEMBERS)
    _path(cube, "c++e/table/_common_metadata").unlink()
    with pytest.warns(KartosqlWarning, match="'e' of cube 'c' is left out"):
        assert kartosql.connect(cube.root).sql("SELECT * FROM c").columns == ["i", "p", "s", "v", "x"]


def test_an_invalid_member_is_an_error(cube):
    builders.forget_history(cube, *MEMBERS)
    cube.put("c++e/table/_common_metadata", b"PAR1 torn")
    error = _failure(cube)
    assert error.code == "invalid-schema"
    assert "c++e/table/_common_metadata" in error.message


def test_a_missing_schema_of_a_dataset(cube):
    builders.forget_history(cube, *MEMBERS)
    _path(cube, "c++e/table/_common_metadata").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        error = _failure(cube, 'SELECT * FROM "c++e"')
    assert error.code in ("missing-metadata", "unknown-table")


@pytest.mark.parametrize("version", [3, 5, "4", None, 4.5])
def test_a_document_of_another_version(cube, version):
    document = builders.read_document(cube, "c++seed") | {"dataset_metadata_version": version}
    builders.write_document(cube, document)
    error = _failure(cube)
    assert error.code in ("unsupported-version", "invalid-metadata")
    assert "c++seed.by-dataset-metadata.json" in error.message


def test_a_partition_value_that_is_not_of_its_type(cube):
    document = builders.read_document(cube, "c++seed")
    label = "p=one/x"
    document["partitions"][label] = {"files": {"table": f"c++seed/table/{label}.parquet"}}
    builders.write_document(cube, document)
    error = _failure(cube)
    assert error.code == "invalid-partition-value"
    assert "'one'" in error.message


# -- indices ---------------------------------------------------------------------------------------

BY_INDEX = "SELECT x FROM c WHERE i = 7"


def test_a_missing_index_file(cube):
    _path(cube, _index(cube)).unlink()
    error = _failure(cube, BY_INDEX)
    assert error.code == "missing-file"
    assert _index(cube) in error.message
    assert kartosql.connect(cube.root).sql("SELECT count(*) FROM c").rows() == [(4,)]


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_index_file(cube, data):
    cube.put(_index(cube), data)
    error = _failure(cube, BY_INDEX)
    assert error.code == "invalid-index"
    assert _index(cube) in error.message


@pytest.mark.parametrize(
    "table",
    [
        {"i": ["5"], "partition": [["p=0/x"]]},
        {"i": [5.0], "partition": [["p=0/x"]]},
        {"other": [5], "partition": [["p=0/x"]]},
        {"i": [5]},
        {"i": [5], "partition": ["p=0/x"]},
        {"i": [5], "partition": [[1]]},
        {"i": [[5]], "partition": [["p=0/x"]]},
    ],
    ids=repr,
)
def test_an_index_of_another_type(cube, table):
    cube.put(_index(cube), builders.parquet(table))
    error = _failure(cube, BY_INDEX)
    assert error.code == "invalid-index"
    assert _index(cube) in error.message


def test_an_index_whose_pages_are_damaged(cube):
    data = bytearray(builders.parquet(builders.read_parquet(cube, _index(cube)), compression="none"))
    data[4:120] = b"\xff" * 116
    cube.put(_index(cube), bytes(data))
    # The rows are right without the index too; what must not happen is anything else.
    try:
        outcome = kartosql.connect(cube.root).sql(BY_INDEX).rows()
    except KartosqlError as e:
        outcome = (e.code, _index(cube) in e.message)
    assert outcome in ([(2,)], ("invalid-index", True), ("corrupt-file", True))


def test_an_index_with_a_name_that_is_no_text(cube):
    cube.put(_index(cube), builders.parquet(builders.read_parquet(cube, _index(cube)), store_schema=False))
    _change_name(cube, _index(cube), b"partition")
    error = _failure(cube, BY_INDEX)
    assert error.code in ("invalid-index", "corrupt-file")
    assert _index(cube) in error.message
    with kartosql.connect(cube.root) as con:
        assert [f.key for f in con.check("c", full=True) if f.check == "index"] == [_index(cube)]


def test_an_index_without_rows_finds_nothing(cube):
    # The writer's own word; but rows that are not asked by index stay.
    _rewrite(cube, _index(cube), lambda t: t.slice(0, 0))
    assert kartosql.connect(cube.root).sql(BY_INDEX).rows() == []
