"""Large files of object stores: pages that may hold a match are read, and the answer is that of whole files."""

from __future__ import annotations

import datetime as dt
import io
import random
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.duckdb import large_files, remote
from kartosql.errors import KartosqlError
from kartosql.store import Store
from s3_server import BUCKET, Object, serve
from written import write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROWS = 12_000
LAYOUTS = {
    "as they are written": {"version": "2.6", "compression": "zstd", "max_rows_per_page": 500},
    "pages of other rows in each column": {"data_page_size": 2_000, "write_batch_size": 64, "compression": "snappy"},
    "pages of the second version": {"data_page_version": "2.0", "max_rows_per_page": 300, "compression": "none"},
    "no dictionaries": {"use_dictionary": False, "max_rows_per_page": 700, "compression": "gzip"},
    "no index of pages": {"write_page_index": False},
}


def rows():
    rng = random.Random(3)
    day = dt.date(2020, 1, 1)
    return pa.table(
        {
            "p": pa.array([0] * ROWS, pa.int64()),
            "id": pa.array(range(0, 2 * ROWS, 2), pa.int64()),
            "small": pa.array([None if n % 7 == 0 else n // 100 for n in range(ROWS)], pa.int16()),
            "word": pa.array([None if 3000 <= n < 5000 else f"wörd {n // 40:04d}" for n in range(ROWS)]),
            "few": pa.array([f"f{rng.randrange(5)}" for _ in range(ROWS)]),
            "day": pa.array([day + dt.timedelta(days=n // 30) for n in range(ROWS)]),
            "moment": pa.array(
                [dt.datetime(2020, 1, 1) + dt.timedelta(minutes=n) for n in range(ROWS)], pa.timestamp("us")
            ),
            "price": pa.array([Decimal(n) / 100 for n in range(ROWS)], pa.decimal128(12, 2)),
            "real": pa.array([float("nan") if n % 1000 == 0 else n / 3 for n in range(ROWS)], pa.float64()),
            "flag": pa.array([n > 6000 for n in range(ROWS)]),
        }
    )


CONDITIONS = [
    "id = 4000",
    "id = 4001",
    "id = -1",
    "id IN (2, 9000, 23998)",
    "id BETWEEN 5990 AND 6010",
    "id >= 23990",
    "id < 6 AND few = 'f1'",
    "id = 4000 OR id = 20000",
    "NOT (id > 10)",
    "id = 5000 AND word IS NULL",
    "id = 4000.0",
    "id + 1 = 4001",
    "id = 4000 AND real > 1",
    "small = 55",
    "small IS NULL AND id < 50",
    "small <> 3 AND id < 900",
    "word = 'wörd 0100'",
    "word IS NULL AND id = 7000",
    "word LIKE 'wörd 020%'",
    "word > 'wörd 0298'",
    "few = 'f3' AND id > 23900",
    "day = DATE '2020-03-01'",
    "day BETWEEN '2020-03-01' AND '2020-03-02'",
    "moment = TIMESTAMP '2020-01-05 10:00:00'",
    "moment < '2020-01-01 01:00:00'",
    "price = 44.01",
    "price BETWEEN 10.005 AND 10.1",
    "real = 1000",
    "real > 3990",
    "isnan(real) AND id < 3000",
    "flag AND id < 12010",
    "NOT flag AND id > 11990",
    "id = 4000 AND p = 0",
    "id IS NOT NULL AND id = 12",
    "id = 100 AND id = 200",
    "upper(few) = 'F2' AND id < 40",
    "id NOT IN (2, 4) AND id < 12",
    "id = (SELECT 4000)",
]


@pytest.fixture(autouse=True)
def files_are_large(monkeypatch):
    monkeypatch.setattr(remote, "WHOLE_FILE", 1_000)
    monkeypatch.setattr(remote, "FIRST", 8_000)
    remote.large_ends.clear()


@pytest.fixture
def parts(monkeypatch):
    """The parts of files that were read in place of all of them."""
    found = []
    made = large_files.part

    def part(*given):
        found.append(made(*given))
        return found[-1]

    monkeypatch.setattr(large_files, "part", part)
    return found


def put(server, folder, data, **layout):
    """Put a dataset of one file into the store, the file in a layout of its own."""
    write_dataset(Store(str(folder)), "t", data, partition_on=["p"])
    for path in sorted(folder.rglob("*")):
        key = path.relative_to(folder).as_posix()
        content = path.read_bytes() if path.is_file() else b""
        if "/p=0/" in key and content:
            sink = io.BytesIO()
            given = {"row_group_size": 5_000, "write_page_index": True, **layout}
            pq.write_table(data.select(pq.ParquetFile(path).schema_arrow.names), sink, **given)
            content = sink.getvalue()
        if path.is_file():
            server.objects[BUCKET, f"x/{key}"] = Object(content, server.etag_of(content), server.now())


def opened(server):
    return kartosql.connect(f"s3://{BUCKET}/x", storage_options=server.storage_options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_are_those_of_whole_files(layout, tmp_path, parts):
    data = rows()
    with serve() as server, duckdb.connect() as plain:
        put(server, tmp_path, data, **LAYOUTS[layout])
        plain.register("t", data)
        with opened(server) as con:
            for condition in CONDITIONS if layout == "as they are written" else CONDITIONS[::2]:
                for columns in (", ".join(data.schema.names), "count(*) AS n, sum(id) AS s"):
                    text = f"FROM (SELECT {columns} FROM t WHERE {condition}) ORDER BY ALL"
                    assert repr(con.sql(text).rows()) == repr(plain.sql(text).fetchall()), condition
    assert any(parts) == (layout != "no index of pages")


def test_a_point_query_reads_pages_of_a_large_file_and_keeps_its_footer(tmp_path):
    with serve() as server:
        put(server, tmp_path, rows(), **LAYOUTS["as they are written"])
        with opened(server) as con:
            ask = "SELECT id, day FROM t WHERE id = {}"
            assert con.sql(ask.format(4000)).rows() == [(4000, dt.date(2020, 3, 7))]
            server.answers.clear()
            assert con.sql(ask.format(20_000)).rows() == [(20_000, dt.date(2020, 11, 29))]
            ranges = [a.size for a in server.answers if a.range]
            assert len(server.answers) == 1 + len(ranges), "a listing, and pages"
            assert len(ranges) <= 4
            assert sum(ranges) < 8_000


def test_a_file_stands_for_itself_where_a_statement_names_it_twice(tmp_path, parts):
    with serve() as server:
        put(server, tmp_path, rows(), **LAYOUTS["as they are written"])
        with opened(server) as con:
            text = "SELECT a.id, b.id, (SELECT count(*) FROM t) FROM t a, t b WHERE a.id = 40 AND b.id = 20000"
            assert con.sql(text).rows() == [(40, 20_000, ROWS)]
            assert not any(parts)
            assert con.sql("SELECT id FROM t WHERE id = 40").rows() == [(40,)]
            assert any(parts)
            assert con.sql("SELECT count(*), count(id) FROM t WHERE few >= ''").rows() == [(ROWS, ROWS)]
            assert con.sql("SELECT sum(id) FROM t").rows() == [(sum(range(0, 2 * ROWS, 2)),)]


def test_a_file_that_was_replaced_is_no_part_of_the_former_one(tmp_path):
    with serve() as server:
        put(server, tmp_path, rows(), **LAYOUTS["as they are written"])
        with opened(server) as con:
            assert con.sql("SELECT small FROM t WHERE id = 4000").rows() == [(20,)]
            (key,) = (k for k in server.objects if "/p=0/" in k[1])
            sink = io.BytesIO()
            pq.write_table(rows().drop_columns(["p"]), sink, compression="none", write_page_index=True)
            server.objects[key] = Object(sink.getvalue(), server.etag_of(sink.getvalue()), server.now())
            with pytest.raises(KartosqlError) as caught:
                con.sql("SELECT small FROM t WHERE id = 4000").rows()
            assert caught.value.code == "corrupt-file"
            assert con.sql("SELECT small FROM t WHERE id = 4000").rows() == [(20,)]


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_index_of_pages_changes_no_answer(seed, tmp_path):
    rng = random.Random(seed)
    with serve() as server:
        put(server, tmp_path, rows(), **LAYOUTS["as they are written"])
        (key,) = (k for k in server.objects if "/p=0/" in k[1])
        data = bytearray(server.objects[key].data)
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        first = start - rng.randrange(200, 6_000)
        data[first:start] = rng.randbytes(start - first)
        server.objects[key] = Object(bytes(data), server.etag_of(bytes(data)), server.now())
        with opened(server) as con:
            for id_ in (0, 4000, 9998, 23_998):
                assert con.sql(f"SELECT id, small FROM t WHERE id = {id_}").rows() in (
                    [(id_, id_ // 200)],
                    [(id_, None)],
                )
