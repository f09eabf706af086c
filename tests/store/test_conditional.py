"""Compare-and-swap, deletes, outputs and times, on every kind of store."""

from __future__ import annotations

import datetime as dt
import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.errors import FormatError, StoreError
from kartosql.store import PreconditionFailed
from kartosql.store.keys import Version

DOC = "u.by-dataset-metadata.json"

pytestmark = pytest.mark.filterwarnings(
    # Clients of S3 leave connections to the collector; they are not ours.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


# -- compare and swap --------------------------------------------------------------------


def test_what_was_put_is_read_with_the_version_that_the_put_returned(any_store):
    for key in (DOC, "u/table/_common_metadata", "plain"):
        version = any_store.put_if(key, b"one", None)
        assert any_store.read_versioned(key) == (b"one", version)
        second = any_store.put_if(key, b"two", version)
        assert second != version
        assert any_store.read_versioned(key) == (b"two", second)


def test_only_the_expected_version_is_replaced(any_store):
    first = any_store.put_if(DOC, b"one", None)
    second = any_store.put_if(DOC, b"two", first)
    for expected in (None, first, Version("other")):
        with pytest.raises(PreconditionFailed):
            any_store.put_if(DOC, b"three", expected)
    assert any_store.read_versioned(DOC) == (b"two", second)


def test_nothing_is_made_where_a_version_is_expected(any_store):
    with pytest.raises(PreconditionFailed):
        any_store.put_if(DOC, b"one", Version("0" * 40))
    assert any_store.list_root() == []


def test_only_the_expected_version_is_deleted(any_store):
    first = any_store.put_if(DOC, b"one", None)
    second = any_store.put_if(DOC, b"two", first)
    with pytest.raises(PreconditionFailed):
        any_store.delete_if(DOC, first)
    assert any_store.read(DOC) == b"two"
    any_store.delete_if(DOC, second)
    with pytest.raises(KeyError):
        any_store.read_versioned(DOC)
    any_store.delete_if(DOC, second)


def test_after_a_delete_only_a_new_object_can_be_put(any_store):
    version = any_store.put_if(DOC, b"one", None)
    any_store.delete_if(DOC, version)
    with pytest.raises(PreconditionFailed):
        any_store.put_if(DOC, b"two", version)
    any_store.put_if(DOC, b"two", None)
    assert any_store.read(DOC) == b"two"


def test_reading_a_version_of_what_is_not_there_is_a_key_error(any_store):
    with pytest.raises(KeyError, match="none"):
        any_store.read_versioned("none")


def test_empty_and_large_documents_keep_their_bytes(any_store):
    large = os.urandom(3 << 20)
    version = any_store.put_if(DOC, b"", None)
    version = any_store.put_if(DOC, large, version)
    assert any_store.read_versioned(DOC) == (large, version)


@pytest.mark.parametrize("key", ["../a", "/a", "", "u/../../a"])
def test_unsafe_keys_are_refused_by_every_write(any_store, key):
    writes = (
        lambda: any_store.put_if(key, b"1", None),
        lambda: any_store.delete_if(key, Version("1")),
        lambda: any_store.delete([key]),
        lambda: any_store.output(key).__enter__(),
    )
    for write in writes:
        with pytest.raises(FormatError) as e:
            write()
        assert e.value.code == "unsafe-key"


def test_of_many_threads_that_create_a_key_one_wins(any_store):
    won = []

    def create(i):
        try:
            any_store.put_if(DOC, b"%d" % i, None)
            won.append(i)
        except PreconditionFailed:
            pass

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert any_store.read(DOC) == b"%d" % won[0]


def test_the_probe_passes_and_leaves_nothing(any_store):
    any_store.require_conditional_put("u")
    any_store.require_conditional_put()
    assert any_store.details() == {}


# -- outputs -------------------------------------------------------------------------------


def test_parquet_is_written_through_an_output(any_store):
    table = pa.table({"x": range(100_000)})
    with any_store.output("u/table/p=1/a.parquet") as file, pq.ParquetWriter(file, table.schema) as writer:
        for batch in table.to_batches(10_000):
            writer.write_batch(batch)
    assert pq.read_table(pa.BufferReader(any_store.read("u/table/p=1/a.parquet"))) == table


def test_an_output_that_fails_is_removed_and_its_error_kept(any_store):
    for error in (ValueError("of the caller"), KeyboardInterrupt(), StoreError("ours"), KeyError("x")):

        def write_a_part(error=error):
            with any_store.output("u/table/a") as file:
                file.write(b"x" * 10)
                raise error

        with pytest.raises(type(error)) as e:
            write_a_part()
        assert e.value is error
    assert any_store.details("u/") == {}


def test_a_large_output_is_uploaded_whole(any_store, monkeypatch):
    monkeypatch.setattr("kartosql.store.remote.SPOOL_BYTES", 1 << 20)
    data = os.urandom(7 << 20)
    with any_store.output("u/table/a") as file:
        for start in range(0, len(data), 1 << 19):
            file.write(data[start : start + (1 << 19)])
    assert any_store.read("u/table/a") == data


def test_outputs_can_be_made_durable_together(any_store):
    keys = [f"u/table/p={i}/a" for i in range(3)]
    for key in keys:
        with any_store.output(key, sync_folders=False) as file:
            file.write(b"1")
    any_store.sync(keys)
    assert list(any_store.details("u/")) == keys


# -- deletes and what stands there ---------------------------------------------------------


def test_deletes_are_silent_about_missing_keys(any_store):
    for key in ("u/t/p=1/a", "u/t/p=1/b", "u/t/p=2/a", "v/a"):
        any_store.put(key, b"1")
    any_store.delete(["u/t/p=1/a", "u/t/none", "none/x", "u/t/p=2/a"])
    assert list(any_store.details()) == ["u/t/p=1/b", "v/a"]
    any_store.delete([])


def test_many_keys_are_deleted(any_store):
    keys = [f"u/t/p={i % 3}/{i} ü%2F" for i in range(1100 if any_store.is_local else 120)]
    for key in keys:
        with any_store.output(key, sync_folders=False) as file:
            file.write(b"1")
    any_store.delete(keys)
    assert any_store.list_root() == []


def test_details_are_those_below_the_prefix(any_store):
    before = any_store.now()
    for key in ("u/t/a", "u/t/bb", "u/x", "uu/x", "u.json"):
        any_store.put(key, b"12")
    found = any_store.details("u/")
    assert list(found) == ["u/t/a", "u/t/bb", "u/x"]
    assert list(any_store.details("u/t/b")) == ["u/t/bb"]
    assert list(any_store.details("none/")) == []
    assert list(any_store.details("u")) == ["u.json", "u/t/a", "u/t/bb", "u/x", "uu/x"]
    second = dt.timedelta(seconds=1)  # what S3 tells times by
    for detail in found.values():
        assert detail.size == 2
        assert before - second <= detail.modified <= any_store.now() + second


def test_times_are_those_of_the_store(s3, s3_server):
    s3_server.clock_ahead = dt.timedelta(hours=5)
    s3.put("a", b"1")
    ahead = s3.now() - dt.datetime.now(dt.timezone.utc)
    assert dt.timedelta(hours=4, minutes=59) < ahead < dt.timedelta(hours=5, minutes=1)
    assert abs(s3.details()["a"].modified - s3.now()) < dt.timedelta(minutes=4)
