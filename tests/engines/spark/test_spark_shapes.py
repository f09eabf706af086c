"""Schemas of files as Spark reads them, remembered as long as the table that names the files."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import builders
from kartosql.engines.spark.scan import FileShapes
from kartosql.errors import FormatError
from kartosql.store import Store


class Table:
    """Something that names files."""


@pytest.fixture(params=["disk", "memory"])
def store(request: Any, tmp_path: Any) -> Store:
    return Store(str(tmp_path) if request.param == "disk" else f"memory://{uuid.uuid4().hex}")


def put(store: Store, key: str, rows: pa.Table) -> tuple[str, int]:
    data = builders.parquet(rows)
    store.put(key, data)
    return key, len(data)


def test_a_file_written_anew_is_read_anew_with_the_table_that_names_it(store):
    shapes, before = FileShapes(), Table()
    old = put(store, "t/a.parquet", pa.table({"x": [1, 2]}))
    (number,) = shapes.of(store, before, [old])
    new = put(store, "t/a.parquet", pa.table({"y": [1, 2]}))
    assert new == old  # neither its key nor its size tells
    assert shapes.of(store, before, [new]) == [number]
    (other,) = shapes.of(store, Table(), [new])
    assert [*shapes.shape(number)] == ["x"]
    assert [*shapes.shape(other)] == ["y"]


def test_each_footer_is_read_once_and_each_schema_told_once(store):
    shapes, table = FileShapes(), Table()
    files = [put(store, f"t/{n}.parquet", pa.table({"x": [n]})) for n in range(5)]
    files.append(put(store, "t/z.parquet", pa.table({"z": [1]})))
    numbers = shapes.of(store, table, files)
    assert len({*numbers[:5]}) == 1
    assert numbers[5] != numbers[0]
    reads = store.counter.reads
    assert shapes.of(store, table, [*files, *files]) == numbers * 2
    assert store.counter.reads == reads


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1 no footer PAR1", b"PAR1" + b"\x19" * 5000 + b"\x88\x13\0\0PAR1"])
def test_what_is_no_parquet_file_is_corrupt(store, data):
    store.put("t/a.parquet", data)
    with pytest.raises(FormatError, match="t/a") as e:
        FileShapes().of(store, Table(), [("t/a.parquet", len(data))])
    assert e.value.code == "corrupt-file"
