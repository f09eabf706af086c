"""How many requests a query takes on S3, exactly, and that a careless server gives no wrong answer."""

from __future__ import annotations

import datetime as dt
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.duckdb import remote
from kartosql.store import PreconditionFailed, Store
from s3_server import BUCKET, Object, _Handler, serve

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CUBE = kartosql.Cube("c", ["x"], ["p"])


def build(server, value, overwrite=False):
    options = server.storage_options
    with kartosql.connect(f"s3://{BUCKET}/x", storage_options=options, single_writer=True) as con:
        data = pa.table({"x": [1, 2], "p": ["a", "b"], "v": [value, value]})
        con.build_cube(CUBE, data, overwrite=overwrite)


def ask(con):
    return con.sql("SELECT v FROM c WHERE p = 'b'").rows()


def test_a_warm_query_takes_a_listing_and_one_request_for_each_file():
    with serve() as server:
        build(server, 1)
        with kartosql.connect(f"s3://{BUCKET}/x", storage_options=server.storage_options) as con:
            assert ask(con) == ask(con) == [(1,)]
            server.answers.clear()
            assert ask(con) == [(1,)]
            asked = [(a.method, a.range is not None, a.status) for a in server.answers]
            assert asked == [("GET", False, 200), ("GET", True, 206)]


def test_a_cube_is_joined_without_asking_for_sizes():
    with serve() as server:
        size = range(12)
        seed = pa.table({"x": list(size), "p": list(size), "i": [n * 2 for n in size]})
        more = pa.table({"x": list(size), "p": list(size), "w": [f"w{n}" for n in size]})
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
        with kartosql.connect(f"s3://{BUCKET}/x", storage_options=server.storage_options) as con:
            con.build_cube(cube, {"seed": seed, "more": more})
            server.answers.clear()
            for key in range(3):
                asked = len(server.answers)
                text = f"SELECT i, w FROM c WHERE x = {key} AND p IN ({key}, {key + 1})"
                assert con.sql(text).rows() == [(2 * key, f"w{key}")]
            assert {a.method for a in server.answers} == {"GET"}
            assert len(server.answers) - asked == 3, "a listing, and a file of each dataset"


@pytest.mark.parametrize(
    "careless",
    [
        {"ignore_ranges": True},
        {"ignore_get_conditions": True},
        {"always_unmodified": True},
        {"etag_of": lambda data: "the-same"},
        {"etag_of": lambda data: str(len(data))},
        {"etag_of": lambda data: uuid.uuid4().hex},
        {"etag_of": lambda data: "the-same", "clock_ahead": dt.timedelta(hours=1)},
    ],
)
def test_a_careless_server_gives_no_old_answer(careless):
    with serve(**careless) as server:
        build(server, 1)
        with kartosql.connect(f"s3://{BUCKET}/x", storage_options=server.storage_options) as con:
            assert ask(con) == ask(con) == [(1,)]
            build(server, 2, overwrite=True)
            assert ask(con) == ask(con) == [(2,)]


def test_the_footer_of_a_large_file_is_read_once_and_never_for_another_file(monkeypatch):
    monkeypatch.setattr(remote, "WHOLE_FILE", 1_000)
    monkeypatch.setattr(remote, "FIRST", 4_000)
    with serve() as server:
        options = server.storage_options
        numbers = list(range(30_000))
        with kartosql.connect(f"s3://{BUCKET}/x", storage_options=options, single_writer=True) as con:
            con.create_dataset("t", pa.table({"id": numbers, "v": numbers[::-1]}))
        (place,) = (place for place in server.objects if place[1].endswith(".parquet"))
        size = len(server.objects[place].data)
        with kartosql.connect(f"s3://{BUCKET}/x", storage_options=options) as con:
            for number, footers in ((4, 1), (5, 0), (29_000, 0)):
                server.answers.clear()
                assert con.sql(f"SELECT v FROM t WHERE id = {number}").rows() == [(29_999 - number,)]
                ranges = [a.range for a in server.answers if a.key == place[1]]
                assert ranges
                assert sum(text.startswith("bytes=-") or text.endswith(f"-{size - 1}") for text in ranges) == footers
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"id": numbers, "v": numbers}), sink, row_group_size=5_000)
            data = sink.getvalue().to_pybytes()
            server.objects[place] = Object(data, server.etag_of(data), server.now())
            with pytest.raises(kartosql.KartosqlError) as caught:
                con.sql("SELECT v FROM t WHERE id = 6").rows()
            assert caught.value.code == "corrupt-file"
            assert con.sql("SELECT v FROM t WHERE id = 6").rows() == [(6,)]


def test_a_conditional_write_does_not_ask_whether_it_may_send(monkeypatch):
    asked = []
    answer = _Handler.handle_expect_100
    monkeypatch.setattr(_Handler, "handle_expect_100", lambda self: asked.append(self.path) or answer(self))
    with serve() as server:
        store = Store(f"s3://{BUCKET}/x", server.storage_options)
        version = store.put_if("a", b"1", None)
        with pytest.raises(PreconditionFailed):
            store.put_if("a", b"2", None)
        store.put_if("a", b"3", version)
    assert server.objects[BUCKET, "x/a"].data == b"3"
    assert asked == []
