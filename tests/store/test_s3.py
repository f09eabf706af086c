"""A cube in a bucket, through s3fs and an S3 server in this process."""

from __future__ import annotations

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import StoreError
from kartosql.formats.kartothek.snapshot import MetadataCache, Snapshot

pytestmark = [
    # The server and the client of the test are not ours to keep free of deprecations.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def endpoint():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="module")
def connection(endpoint):
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket="a-bucket")
    options = {"endpoint_url": endpoint, "key": "k", "secret": "s", "client_kwargs": {"region_name": "us-east-1"}}
    with kartosql.connect("s3://a-bucket/some/prefix", storage_options=options) as con:
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
        rows = {"x": [1, 2, 3], "p": ["a", "b/c", "b/c"], "i": [7, 8, 9], "v": [0.5, None, 1.5]}
        con.build_cube(cube, pa.table(rows))
        yield con


def test_a_cube_in_a_bucket_is_written_and_queried(connection):
    assert list(connection.cubes()) == ["c"]
    assert connection.sql("SELECT x, p, v FROM c ORDER BY x").rows() == [
        (1, "a", 0.5),
        (2, "b/c", None),
        (3, "b/c", 1.5),
    ]


def test_only_the_selected_file_is_read_from_the_bucket(connection):
    query = connection.sql("SELECT v FROM c WHERE i = 7")
    before = connection.store.counter.reads
    assert query.rows() == [(0.5,)]
    assert query.stats["files_read"] == 1
    assert connection.store.counter.reads - before == 2  # the index of i and one file


def test_a_server_that_does_not_answer_is_a_store_error(endpoint):
    options = {
        "endpoint_url": "http://127.0.0.1:1",
        "key": "k",
        "secret": "s",
        "config_kwargs": {"retries": {"max_attempts": 1}},
    }
    with pytest.raises(StoreError) as e:
        kartosql.connect("s3://a-bucket/x", storage_options=options).datasets()
    assert e.value.code == "store-failed"
    assert "s3://a-bucket/x" in e.value.message


def test_documents_in_a_bucket_are_read_again_only_when_their_etag_changes(connection):
    store, cache = connection.store, MetadataCache()
    key, schema = "c++seed.by-dataset-metadata.json", "c++seed/table/_common_metadata"

    def reads() -> tuple[object, list[str]]:
        before = len(store.counter.keys)
        state = Snapshot(store, cache).cube("c")
        return state, sorted(store.counter.keys[before:])

    connection.store.kept = None  # what an earlier process left is asked for elsewhere
    first = reads()
    assert first[1] == [key]
    assert reads() == (first[0], [])
    # Without the history of its schema, as other writers leave it, the schema file is read.
    builders.forget_history(store, "c++seed")
    store.put(key, store.read(key).replace(b'"metadata": {', b'"metadata": {"more": 1, '))
    second = reads()
    assert second[0].seed.table.metadata["more"] == 1
    assert second[1] == [key, schema]
    assert reads() == (second[0], [schema])
