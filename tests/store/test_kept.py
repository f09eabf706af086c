"""What is kept of a remote store beside the user: fewer requests, and never an old answer."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql import session_pool
from kartosql.engines.duckdb import remote
from kartosql.errors import KartosqlError
from s3_server import BUCKET, Object, S3Server, serve

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
VALUES = 4_000
FILES = 20


def write(server: S3Server, shift: int = 0, overwrite: bool = False) -> None:
    rows = range(VALUES)
    data = pa.table(
        {"p": [n % FILES for n in rows], "i": [n * 10 + shift for n in rows], "v": [n + shift for n in rows]}
    )
    with kartosql.connect(f"s3://{BUCKET}/x", storage_options=server.storage_options, single_writer=True) as con:
        con.create_dataset("d", data, partition_on="p", index_columns="i", overwrite=overwrite)


def ask(server: S3Server, cache: Any, value: int, **changed: str) -> tuple[list[Any], list[str]]:
    """Return the rows as another process finds them, and what it asked for."""
    session_pool.clear()
    server.answers.clear()
    options = server.storage_options | changed
    with kartosql.connect(f"s3://{BUCKET}/x", storage_options=options, cache=str(cache)) as con:
        rows = con.sql(f"SELECT v FROM d WHERE i = {value}").rows()
    session_pool.clear()
    kinds = {".json": "document", "ndex.parquet": "index", "/": "listing"}
    asked = [next((k for end, k in kinds.items() if (a.key or "/").endswith(end)), "file") for a in server.answers]
    return rows, asked


@pytest.fixture
def large_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read of an index its footer first, and of the rest what a lookup needs."""
    monkeypatch.setattr(remote, "WHOLE_INDEX", 0)
    monkeypatch.setattr(remote, "FIRST", 64)


def test_another_process_asks_for_the_listing_and_the_file(tmp_path: Path) -> None:
    with serve() as server:
        write(server)
        assert ask(server, tmp_path, 50) == ([(5,)], ["listing", "document", "index", "file"])
        assert ask(server, tmp_path, 70) == ([(7,)], ["listing", "file"])
        assert ask(server, "off", 70)[1] == ["listing", "document", "index", "file"]


def test_of_a_large_index_the_footer_is_kept(tmp_path: Path, large_index: None) -> None:
    with serve() as server:
        write(server)
        assert ask(server, tmp_path, 50)[0] == [(5,)]
        assert next(a.range for a in server.answers if a.key.endswith("index.parquet")) == "bytes=-8"
        rows, asked = ask(server, tmp_path, 70)
        assert rows == [(7,)]
        assert list(dict.fromkeys(asked)) == ["listing", "index", "file"]
        ranges = [a.range or "" for a in server.answers if a.key.endswith("index.parquet")]
        assert not [span for span in ranges if span.startswith("bytes=-")]


@pytest.mark.parametrize("etag_of", [lambda data: uuid.uuid4().hex, lambda data: "the-same"])
def test_what_an_etag_does_not_prove_is_not_kept(tmp_path: Path, etag_of: Any) -> None:
    with serve(etag_of=etag_of) as server:
        write(server)
        assert ask(server, tmp_path, 50)[0] == [(5,)]
        assert not list(tmp_path.glob("*.kartosql"))
        write(server, 1, overwrite=True)
        assert [ask(server, tmp_path, key)[0] for key in (50, 51)] == [[], [(6,)]]


@pytest.mark.parametrize("careless", [{}, {"ignore_get_conditions": True}])
def test_a_dataset_that_is_written_anew_is_read_anew(tmp_path: Path, large_index: None, careless: Any) -> None:
    with serve(**careless) as server:
        write(server)
        assert [ask(server, tmp_path, key)[0] for key in (50, 51)] == [[(5,)], []]
        write(server, 1, overwrite=True)
        assert [ask(server, tmp_path, key)[0] for key in (50, 51)] == [[], [(6,)]]


@pytest.mark.parametrize("careless", [{}, {"ignore_get_conditions": True}])
def test_an_index_under_an_old_name_is_noticed_and_read_anew(tmp_path: Path, large_index: None, careless: Any) -> None:
    with serve(**careless) as server:
        write(server)
        (name,) = [key for key in server.objects if key[1].endswith("index.parquet")]
        old = server.objects[name]
        assert ask(server, tmp_path, 50)[0] == [(5,)]
        data = old.data[:4] + bytes(100) + old.data[4:]  # its footer tells places where others stand now
        server.objects[name] = Object(data, server.etag_of(data), server.now())
        with pytest.raises(KartosqlError):
            ask(server, tmp_path, 70)
        server.objects[name] = Object(old.data, "another", server.now())
        assert [ask(server, tmp_path, 70)[0] for _ in range(3)][1:] == [[(7,)]] * 2


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-9], lambda d: d[:200] + bytes(50) + d[250:]])
def test_damaged_entries_are_no_answer(tmp_path: Path, damage: Any) -> None:
    with serve() as server:
        write(server)
        ask(server, tmp_path, 50)
        entries = list(tmp_path.glob("*.kartosql"))
        assert len(entries) == 2
        for entry in entries:
            entry.write_bytes(damage(entry.read_bytes()))
        assert ask(server, tmp_path, 70) == ([(7,)], ["listing", "document", "index", "file"])


def test_other_credentials_find_nothing(tmp_path: Path) -> None:
    with serve() as server:
        write(server)
        assert ask(server, tmp_path, 50)[1] == ask(server, tmp_path, 50, key="other")[1]
