from __future__ import annotations

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql import Cube
from kartosql.errors import FormatError, UsageError

CUBE = Cube("c", "x", "p")


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.build_cube(
            CUBE,
            {
                "seed": pa.table({"x": [1, 2, 3], "p": ["a", "a", "b"], "v": [1, 2, 3]}),
                "whole": pa.table({"x": [1, 2], "w": [1, 2]}),
            },
            partition_on={"whole": []},
        )
        con.append_to_cube(CUBE, {"seed": pa.table({"x": [1], "p": ["a"], "v": [9]})})
        yield con


def test_files_partitions_rows_and_bytes_are_counted(con):
    found = con.collect_stats(CUBE)
    sizes = {
        name: sum(s for k, s in con.store.list_below(f"c++{name}/table/").items() if k.endswith(".parquet"))
        for name in found
    }
    assert found == {
        "seed": {"blobsize": sizes["seed"], "files": 3, "partitions": 2, "rows": 4},
        "whole": {"blobsize": sizes["whole"], "files": 1, "partitions": 1, "rows": 2},
    }
    assert con.collect_stats("c", "whole") == {"whole": found["whole"]}


def test_they_are_those_of_show_stats(con):
    shown = con.sql("SHOW STATS FROM c").arrow().to_pylist()
    found = con.collect_stats("c")
    assert {r["dataset"]: (r["bytes"], r["files"], r["partitions"], r["rows"]) for r in shown} == {
        name: tuple(f.values()) for name, f in found.items()
    }


def test_emptied_datasets_hold_nothing(con):
    con.remove_partitions("c", [])
    con.remove_partitions("c", [], ["whole"])
    zero = {"blobsize": 0, "files": 0, "partitions": 0, "rows": 0}
    assert con.collect_stats("c") == {"seed": zero, "whole": zero}


def test_files_that_are_missing_or_torn_are_named(con):
    key = next(iter(builders.read_document(con.store, "c++whole")["partitions"].values()))["files"]["table"]
    for data, code in ((b"PAR1", "corrupt-file"), (b"\xff" * 4 + b"PAR1", "corrupt-file"), (None, "missing-file")):
        con.store.delete([key])
        if data is not None:
            con.store.put(key, data)
        with pytest.raises(FormatError) as e:
            con.collect_stats("c")
        assert (e.value.code, key in e.value.message) == (code, True)


def test_names_that_are_none(con):
    with pytest.raises(UsageError) as e:
        con.collect_stats("nope")
    assert e.value.code == "unknown-table"
    with pytest.raises(UsageError) as e:
        con.collect_stats("c", "nope")
    assert e.value.code == "unknown-dataset"


def test_golden_cubes_have_the_numbers_of_the_original(copy_of):
    with kartosql.connect(copy_of("numpart++")) as con:
        found = con.collect_stats("numpart")
        for name, stats in found.items():
            document = builders.read_document(con.store, f"numpart++{name}")
            assert stats["files"] == len(document["partitions"])
