from __future__ import annotations

import json

import pyarrow as pa
import pytest

from builders import WRITE_ID, document, schema_bytes, write_dataset
from kartosql.errors import FormatError
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store

SCHEMA = {"p": pa.int64(), "x": pa.int64(), "v": pa.null()}


def test_a_dataset_has_its_tables_files_and_values(local):
    indices = {"x": "u/indices/x/1.parquet", "v": {"a": []}, "none": "u/indices/none.parquet"}
    write_dataset(local, "u", SCHEMA, ["p=2", "p=1"], partition_keys=["p"], indices=indices)
    table = Snapshot(local).dataset("u").tables["table"]
    assert table.files == (f"u/table/p=2/{WRITE_ID}.parquet", f"u/table/p=1/{WRITE_ID}.parquet")
    assert table.labels == (f"p=2/{WRITE_ID}", f"p=1/{WRITE_ID}")
    assert table.partitions.tuples == ((2,), (1,))
    assert table.types == {"p": pa.int64(), "x": pa.int64(), "v": pa.null()}
    # An index of a column that the schema does not have, or has no type for, says nothing.
    assert {c: (i.key, i.embedded) for c, i in table.indices.items()} == {"x": ("u/indices/x/1.parquet", None)}


def test_an_index_may_stand_in_the_document(local):
    write_dataset(local, "u", SCHEMA, ["p=2"], partition_keys=["p"], indices={"x": {"1": ["a label"]}})
    index = Snapshot(local).dataset("u").tables["table"].indices["x"]
    assert (index.key, index.embedded) == (None, {"1": ["a label"]})


def test_labels_are_opaque_and_values_come_from_the_path(local):
    partitions = {"any label": {"files": {"table": "u/table/p=7/x.parquet"}}}
    write_dataset(local, "u", SCHEMA, partitions=partitions, partition_keys=["p"])
    table = Snapshot(local).dataset("u").tables["table"]
    assert (table.labels, table.partitions.tuples) == (("any label",), ((7,),))


def test_partition_keys_are_derived_where_the_document_has_none(local):
    write_dataset(local, "u", SCHEMA, ["p=2"], partition_keys=...)
    assert Snapshot(local).dataset("u").tables["table"].partition_keys == ("p",)


def test_a_partition_key_of_type_null_is_text(local):
    write_dataset(local, "u", {"p": pa.null(), "x": pa.int64()}, ["p=a"], partition_keys=["p"])
    table = Snapshot(local).dataset("u").tables["table"]
    assert table.types["p"] == pa.string()
    assert table.partitions.tuples == (("a",),)


@pytest.mark.parametrize("key", ["none", "P", "a\0b", "n" * 100_000, "\ud800"], ids=lambda key: repr(key)[:20])
def test_partition_keys_that_the_schema_lacks_are_refused(local, key):
    write_dataset(local, "u", SCHEMA, partition_keys=[key])
    with pytest.raises(FormatError) as e:
        _ = Snapshot(local).dataset("u").tables
    assert e.value.code in ("invalid-schema", "invalid-metadata")
    assert "u/table/_common_metadata" in e.value.message or "u.by-dataset-metadata.json" in e.value.message
    assert len(str(e.value)) < 1000


def test_bad_partition_values_are_found_when_they_are_needed(local):
    write_dataset(local, "u", SCHEMA, ["p=one"], partition_keys=["p"])
    table = Snapshot(local).dataset("u").tables["table"]
    with pytest.raises(FormatError, match="'one'") as e:
        _ = table.partitions
    assert e.value.code == "invalid-partition-value"


def test_a_partition_may_lack_a_table(local):
    partitions = {
        "a": {"files": {"core": "u/core/a.parquet", "help": "u/help/a.parquet"}},
        "b": {"files": {"core": "u/core/b.parquet"}},
    }
    write_dataset(local, "u", {"x": pa.int64()}, table="core", partitions=partitions)
    local.put("u/help/_common_metadata", schema_bytes({"h": pa.int64()}))
    tables = Snapshot(local).dataset("u").tables
    assert tables["core"].files == ("u/core/a.parquet", "u/core/b.parquet")
    assert (tables["help"].labels, tables["help"].files) == (("a",), ("u/help/a.parquet",))


# -- implicit partitions ---------------------------------------------------------------------


def test_files_without_partitions_in_the_document_are_found_by_listing(local):
    write_dataset(local, "u", SCHEMA, partitions=..., partition_keys=["p"])
    for key in ("table/p=1/b", "table/p=1/a", "table/p=2/c", "indices/x/i"):
        local.put(f"u/{key}.parquet", b"")
    local.put("u/table/p=3/readme.txt", b"")
    local.put("u2/table/p=4/a.parquet", b"")
    table = Snapshot(local).dataset("u").tables["table"]
    assert table.labels == ("p=1/a", "p=1/b", "p=2/c")
    assert table.files == ("u/table/p=1/a.parquet", "u/table/p=1/b.parquet", "u/table/p=2/c.parquet")
    assert table.partitions.tuples == ((1,), (2,))


def test_the_golden_dataset_with_implicit_partitions_is_listed(ktk_store):
    store = Store(str(ktk_store))
    table = Snapshot(store).dataset("pd-implicit").tables["table"]
    assert len(table.files) == 8
    assert [row[0] for row in table.partitions.tuples] == ["g0", "g1", "g2", "g3"]
    assert store.counter.lists == 2


def test_an_emptied_dataset_keeps_the_name_of_its_table(local):
    write_dataset(local, "u", SCHEMA, table="core", partition_keys=["p"])
    tables = Snapshot(local).dataset("u").tables
    assert list(tables) == ["core"]
    assert tables["core"].files == ()
    assert tables["core"].partitions.tuples == ()


# -- metadata and schema files ---------------------------------------------------------------


def test_a_dataset_without_its_schema_file_is_incomplete(local):
    local.put("u.by-dataset-metadata.json", json.dumps(document("u", ["p=1"])).encode())
    with pytest.raises(FormatError, match="u/table/_common_metadata is missing") as e:
        Snapshot(local).dataset("u")
    assert e.value.code == "missing-metadata"
    assert e.value.hint


def test_a_dataset_that_is_not_there_is_an_error(local):
    with pytest.raises(FormatError, match="'u'") as e:
        Snapshot(local).dataset("u")
    assert e.value.code == "missing-metadata"


def test_a_torn_schema_file_is_an_error(local):
    write_dataset(local, "u", SCHEMA)
    local.put("u/table/_common_metadata", b"PAR1")
    with pytest.raises(FormatError, match=r"^u/table/_common_metadata: ") as e:
        Snapshot(local).dataset("u")
    assert e.value.code == "invalid-schema"
