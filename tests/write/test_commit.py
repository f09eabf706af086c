from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest

from kartosql.errors import StoreError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.write import build_cube

CUBE = Cube("c", "x", "p", suppress_index_on="x", index_columns="i")
DATA = {
    "seed": pa.table({"x": [1, 2], "p": ["b", "a"], "i": ["u", "v"]}),
    "en": pa.table({"x": [1], "p": ["b"], "w": [1.5]}),
}


def test_the_document_has_the_keys_of_the_format_in_their_order(local):
    build_cube(local, CUBE, DATA, metadata={"seed": {"owner": "me"}})
    document = json.loads(local.read("c++seed.by-dataset-metadata.json"))
    assert list(document) == [
        "dataset_metadata_version",
        "dataset_uuid",
        "indices",
        "metadata",
        "partitions",
        "partition_keys",
    ]
    created = dt.datetime.fromisoformat(document["metadata"].pop("creation_time"))
    assert created.tzinfo is None
    assert abs(dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) - created) < dt.timedelta(minutes=5)
    assert document["metadata"] == {
        "owner": "me",
        "ktk_cube_dimension_columns": ["x"],
        "ktk_cube_is_seed": True,
        "ktk_cube_partition_columns": ["p"],
        "ktk_cube_suppress_index_on": ["x"],
    }
    assert [label.split("/")[0] for label in document["partitions"]] == ["p=a", "p=b"]
    assert all(v == {"files": {"table": f"c++seed/table/{k}.parquet"}} for k, v in document["partitions"].items())
    assert list(document["indices"]) == ["i"]


def test_a_dataset_without_indices_has_no_such_key(local):
    build_cube(local, CUBE, DATA)
    document = json.loads(local.read("c++en.by-dataset-metadata.json"))
    assert "indices" not in document
    assert document["metadata"]["ktk_cube_is_seed"] is False


def test_metadata_documents_are_put_last_and_the_seed_after_all(local, monkeypatch):
    puts = []
    put = local.put
    monkeypatch.setattr(local, "put", lambda key, data: (puts.append(key), put(key, data)))
    build_cube(local, CUBE, DATA)
    kinds = ["json" if k.endswith("json") else k.rsplit("/")[1] + k[-3:] for k in puts]
    assert kinds == ["tableuet"] * 3 + ["tableata"] * 2 + ["indicesuet"] + ["json"] * 2
    assert puts[-1] == "c++seed.by-dataset-metadata.json"


@pytest.mark.parametrize("failing", ["c++seed/table/p=b", "_common_metadata", "indices", "c++seed.by-dataset"])
def test_a_put_that_fails_leaves_no_cube(local, monkeypatch, failing):
    put = local.put

    def fragile(key, data):
        if failing in key:
            raise StoreError(f"Cannot write {key!r}")
        put(key, data)

    monkeypatch.setattr(local, "put", fragile)
    with pytest.raises(StoreError):
        build_cube(local, CUBE, DATA)
    assert Snapshot(local).cubes() == {}
