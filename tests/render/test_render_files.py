from __future__ import annotations

import os
import stat

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kartosql.errors import StoreError, UsageError
from kartosql.render.formats import SUFFIXES, format_of, write_file, write_folder
from kartosql.store import Store

TABLE = pa.table({"a": [1, 2]})


def broken() -> pa.RecordBatchReader:
    def batches():
        yield pa.record_batch({"a": [1]})
        raise ZeroDivisionError

    return pa.RecordBatchReader.from_batches(TABLE.schema, batches())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_gives_the_format(tmp_path, suffix):
    path = tmp_path / f"out{suffix.upper()}"
    assert write_file(TABLE.to_reader(), str(path)) == 2
    assert path.stat().st_size
    assert os.listdir(tmp_path) == [path.name]


def test_a_given_format_wins(tmp_path):
    path = tmp_path / "out.csv"
    write_file(TABLE.to_reader(), str(path), "parquet")
    assert pq.read_table(path).equals(TABLE)


@pytest.mark.parametrize("name", ["out.xlsx", "out", ".csv"])
def test_an_unknown_suffix_is_refused(tmp_path, name):
    with pytest.raises(UsageError) as e:
        write_file(TABLE.to_reader(), str(tmp_path / name))
    assert e.value.code == "invalid-argument"
    assert ".parquet" in e.value.hint
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_file(broken(), str(path))
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_a_link_stays_and_permissions_too(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("before")
    real.chmod(0o600)
    link.symlink_to(real)
    write_file(TABLE.to_reader(), str(link))
    assert link.is_symlink()
    assert real.read_text() == "a\n1\n2\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_device_is_not_replaced():
    assert write_file(TABLE.to_reader(), os.devnull, "csv") == 2
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("name", ["missing/out.csv", "file/out.csv", "folder"])
def test_refusals_of_the_system_are_store_errors(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="Cannot write") as e:
        write_file(TABLE.to_reader(), str(tmp_path / name), "csv")
    assert e.value.code == "store-failed"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_store_error():
    with pytest.raises(StoreError, match="No space left"):
        write_file(TABLE.to_reader(), "/dev/full", "csv")


def test_a_url_is_written_to_when_all_is_there():
    files = fsspec.filesystem("memory")
    assert write_file(TABLE.to_reader(), "memory://bucket/out.csv") == 2
    with files.open("/bucket/out.csv") as file:
        assert file.read() == b"a\n1\n2\n"
    with pytest.raises(ZeroDivisionError):
        write_file(broken(), "memory://bucket/other.csv")
    assert not files.exists("/bucket/other.csv")
    files.rm("/bucket", recursive=True)


@pytest.mark.parametrize("url", ["s3://out.csv", "memory://bucket/"])
def test_a_url_without_a_file_is_told(url):
    with pytest.raises(UsageError, match="names no file"):
        write_file(TABLE.to_reader(), url, "csv")


PARTS = pa.table({"p": ["a/b", "c", None, "c"], "q": [1, 1, 2, 1], "v": [1.5, None, 3.5, 4.5]})


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_folder_is_partitioned_by_values(tmp_path, format, place):
    url = str(tmp_path / "new") if place == "local" else f"memory://bucket/{format}"
    assert write_folder(PARTS.to_reader(), url, format, ["p", "q"]) == 4
    store = Store(url)
    found = ds.dataset(
        store.root,
        format="ipc" if format == "arrow" else format,
        partitioning=ds.partitioning(PARTS.select(["p", "q"]).schema, flavor="hive"),
        filesystem=None if store.is_local else store.fs,
    )
    assert found.to_table(columns=PARTS.schema.names).sort_by("v").to_pylist() == PARTS.sort_by("v").to_pylist()
    assert any("p=a%2Fb/q=1/" in file for file in found.files)
    with pytest.raises(UsageError, match="is not empty"):
        write_folder(PARTS.to_reader(), url, format, ["p"])


@pytest.mark.parametrize(
    ("format", "columns", "message"),
    [("csv", ["p"], "not 'csv'"), ("parquet", ["x"], "no column 'x'"), ("arrow", ["p", "q", "v"], "No column")],
)
def test_what_a_folder_cannot_be_partitioned_by_is_refused(tmp_path, format, columns, message):
    with pytest.raises(UsageError, match=message):
        write_folder(PARTS.to_reader(), str(tmp_path / "new"), format, columns)
    assert os.listdir(tmp_path) == []


def test_format_of_names_the_suffix():
    with pytest.raises(UsageError, match=r"\.docx"):
        format_of("report.docx")
