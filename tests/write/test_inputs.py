from __future__ import annotations

import contextlib
import gzip
import sqlite3

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import LimitError, UsageError
from kartosql.write.inputs import PIECE_BYTES, converted, open_rows

TABLE = pa.table({"x": [1, 2, 3], "v": ["a", None, "c"]})


def read(rows) -> pa.Table:
    return pa.concat_tables([rows.schema.empty_table(), *rows.pieces()])


@pytest.fixture
def path(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


class Stream:
    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        Stream(TABLE),
        [TABLE.slice(0, 1), TABLE.slice(1)],
        (TABLE,),
        iter(TABLE.to_batches(max_chunksize=2)),
        (t for t in [TABLE.slice(0, 2), TABLE.slice(2)]),
        [TABLE.slice(0, 1).to_reader(), [TABLE.slice(1, 1)], iter([TABLE.slice(2)])],
    ],
    ids=["table", "batch", "reader", "stream", "list", "tuple", "batches", "generator", "nested"],
)
def test_every_source_gives_the_same_rows(data):
    rows = open_rows(data, "seed")
    assert rows.schema == TABLE.schema
    assert read(rows).equals(TABLE)


def test_duckdb_relations_pandas_and_polars_are_read():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    with duckdb.connect() as con:
        relation = con.sql("SELECT * FROM (VALUES (1, 'a'), (2, NULL), (3, 'c')) t(x, v)")
        assert read(open_rows(relation, "s")).to_pydict() == TABLE.to_pydict()
    assert read(open_rows(pl.from_arrow(TABLE), "s")).equals(TABLE)
    frame = pd.DataFrame({"x": [1, 2, 3], "v": ["a", None, "c"]}, index=[7, 8, 9])
    assert read(open_rows(frame, "s")).equals(TABLE)


@pytest.mark.parametrize("given", [str, lambda p: p, lambda p: [p, str(p)]], ids=["text", "Path", "list"])
def test_parquet_files_are_read_by_their_path(path, given):
    data = given(path)
    assert read(open_rows(data, "seed")).num_rows == (6 if isinstance(data, list) else 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "carries no Arrow data"),
        (3, "carries no Arrow data"),
        (b"x", "carries no Arrow data"),
        ({"x": 1}, "cannot be read"),
        ([{"x": [1]}, {"x": "a"}], "cannot be read"),
        ([], "empty list"),
        ([TABLE, 3], "carries no Arrow data"),
        (iter([]), "yields nothing"),
        (iter([3]), "carries no Arrow data"),
        ("/no/such.parquet", "cannot be read as Parquet, Arrow, CSV or JSON"),
        (pa.table({"x": pa.array([1], pa.duration("s"))}), "cannot be stored"),
        (pa.table({"x": pa.array([1], pa.duration("s"))}).to_reader(), "cannot be stored"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(data, message):
    with pytest.raises(UsageError, match=f"'seed': .*{message}") as e:
        open_rows(data, "seed")
    assert e.value.code == "invalid-data"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError) as e:
        open_rows(tmp_path, "seed")
    assert "/*.parquet" in e.value.hint


def test_a_file_that_is_no_parquet_file_is_named(tmp_path):
    (tmp_path / "b").write_bytes(b"PAR1 or not")
    with pytest.raises(UsageError, match=r"/b' cannot be read"):
        open_rows(tmp_path / "b", "seed")


FILES = {
    "a.csv": b"x,v\n1,a\n2,\n3,c\n",
    "a.tsv": b"\xef\xbb\xbfx\tv\n1\ta\n2\t\n3\tc\n",
    "a.csv.gz": gzip.compress(b"x;v\n1;a\n2;\n3;c\n"),
    "a.json": b'[{"x": 1, "v": "a"}, {"x": 2}, {"v": "c", "x": 3}]',
    "a.jsonl": b'{"x": 1, "v": "a"}\n{"x": 2, "v": null}\n{"x": 3, "v": "c"}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_text_are_read_by_their_path(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    for place in (str(tmp_path / name), (tmp_path / name).as_uri(), str(tmp_path / "a.*")):
        assert read(open_rows(place, "seed")).to_pydict() == TABLE.to_pydict()


def test_csv_distinguishes_null_from_the_empty_text(tmp_path):
    (tmp_path / "a.csv").write_text('s,n\n"",1\n,2\n"a,b\nc",\n')
    assert read(open_rows(tmp_path / "a.csv", "d")).to_pydict() == {"s": ["", None, "a,b\nc"], "n": [1, 2, None]}


def test_files_of_a_pattern_and_a_url_are_read_in_order():
    files = fsspec.filesystem("memory")
    for number in (2, 1):
        files.pipe(f"/inputs/{number}.csv", f"x\n{number}\n".encode())
    with files.open("/inputs/3.arrow", "wb") as out, pa.ipc.new_file(out, TABLE.schema) as writer:
        writer.write(TABLE)
    assert read(open_rows("memory://inputs/*.csv", "d")).to_pydict() == {"x": [1, 2]}
    assert read(open_rows("memory://inputs/3.arrow", "d")).equals(TABLE)
    with pytest.raises(UsageError, match="no file matches"):
        open_rows("memory://inputs/*.parquet", "d")
    files.rm("/inputs", recursive=True)


@pytest.mark.parametrize("name", ["a.parquet", "a", "a.bin"])
def test_text_is_no_table_without_a_name_that_says_so(tmp_path, name):
    (tmp_path / name).write_bytes(b"x,v\n1,2\n")
    with pytest.raises(UsageError, match="neither Parquet nor Arrow"):
        open_rows(tmp_path / name, "d")


def test_rows_of_python_and_databases_are_data():
    pl = pytest.importorskip("polars")
    values = TABLE.to_pydict()
    rows = [{"x": 1, "v": "a"}, {"x": 2}, {"v": "c", "x": 3}]
    with contextlib.closing(sqlite3.connect(":memory:")) as database, duckdb.connect() as con:
        sql = "SELECT 1 AS x, 'a' AS v UNION ALL SELECT 2, NULL UNION ALL SELECT 3, 'c'"
        for data in (values, rows, pl.LazyFrame(values), database.execute(sql), con.execute(sql)):
            assert read(open_rows(data, "d")).to_pydict() == values
        assert read(open_rows(database.execute("SELECT 1 AS x WHERE false"), "d")).num_rows == 0
        with pytest.raises(UsageError, match="the cursor has no rows"):
            open_rows(database.cursor(), "d")


def test_parts_of_a_list_may_differ_in_order_and_width():
    parts = [
        pa.table({"x": pa.array([1], pa.int8()), "v": pa.nulls(1), "w": pa.array([1.5], pa.float32())}),
        pa.table({"v": ["a"], "w": [0.1], "x": pa.array([2**40], pa.int64())}),
    ]
    rows = open_rows(parts, "seed")
    assert rows.schema == pa.schema({"x": pa.int64(), "v": pa.string(), "w": pa.float64()})
    assert read(rows).to_pydict() == {"x": [1, 2**40], "v": [None, "a"], "w": [1.5, 0.1]}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (pa.table({"x": [1]}), "'v' is missing in a later part"),
        (pa.table({"x": [1], "v": ["a"], "w": [1]}), "'w' is missing in an earlier part"),
        (pa.table({"x": [1.5], "v": ["a"]}), "'x' is DOUBLE, but BIGINT in an earlier part"),
        (pa.table({"x": pa.array([1], pa.uint64()), "v": ["a"]}), "'x' is UBIGINT, but BIGINT"),
    ],
)
@pytest.mark.parametrize("kind", [list, iter])
def test_parts_that_do_not_fit_together_are_refused(second, message, kind):
    with pytest.raises(UsageError, match=message) as e:
        read(open_rows(kind([TABLE, second]), "seed"))
    assert e.value.code == "invalid-data"


def test_later_pieces_of_a_stream_have_to_fit_the_first():
    tables = [pa.table({"x": pa.array([1], pa.int8())}), pa.table({"x": [300]})]
    with pytest.raises(UsageError, match="'x' does not fit into TINYINT"):
        read(open_rows(iter(tables), "seed"))
    with pytest.raises(UsageError, match="'x' is BIGINT, but NULL"):
        read(open_rows(iter([pa.table({"x": pa.nulls(1)}), tables[1]]), "seed"))
    assert read(open_rows(iter([tables[1], pa.table({"x": pa.nulls(1)})]), "seed")).to_pydict() == {"x": [300, None]}


@pytest.mark.parametrize(("raised", "expected"), [(RuntimeError("boom"), UsageError), (LimitError("late"), LimitError)])
def test_errors_in_the_middle_of_a_stream_are_ours(raised, expected):
    def batches():
        yield TABLE.to_batches()[0]
        raise raised

    reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
    for data in (reader, batches()):
        with pytest.raises(expected) as e:
            read(open_rows(data, "seed"))
        assert expected is LimitError or "its Arrow data cannot be read: boom" in str(e.value)


def test_a_stream_is_read_piece_by_piece():
    seen = []

    def batches():
        for i in range(8):
            seen.append(i)
            yield pa.record_batch({"x": pa.array([i] * (PIECE_BYTES // 16), pa.int64())})

    pieces = open_rows(batches(), "seed").pieces()
    assert seen == [0]
    next(pieces)
    assert len(seen) <= 3
    reader = open_rows(pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int64()}), batches()), "seed").pieces()
    assert next(reader).nbytes >= PIECE_BYTES


def test_a_large_table_is_cut_without_a_copy():
    table = pa.table({"x": pa.array(range(3 * PIECE_BYTES // 8), pa.int64())})
    pieces = list(open_rows(table, "seed").pieces())
    assert [p.num_rows for p in pieces] == [PIECE_BYTES // 8] * 3
    assert pieces[0]["x"].chunk(0).buffers()[1].address == table["x"].chunk(0).buffers()[1].address


def test_rows_in_memory_know_their_size_and_streams_do_not():
    rows = open_rows([TABLE, TABLE], "seed")
    assert rows.num_rows == 6
    assert rows.columns(["v"]).to_pydict() == {"v": ["a", None, "c"] * 2}
    stream = open_rows([TABLE, TABLE.to_reader()], "seed")
    assert (stream.num_rows, stream.columns(["x"])) == (None, None)


def test_columns_without_values_take_the_type_of_the_table_they_join():
    known = pa.schema({"i": pa.int64(), "x": pa.string()})
    rows = open_rows(pa.table({"i": pa.nulls(2), "x": pa.array([1, 2], pa.int8())}), "seed").typed(known)
    assert rows.schema == pa.schema({"i": pa.int64(), "x": pa.int8()})
    assert read(rows).to_pydict() == {"i": [None, None], "x": [1, 2]}


def test_an_unnamed_index_of_pandas_is_no_column_however_the_data_come(tmp_path):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    plain = pd.DataFrame({"x": [1, 2], "v": [1.5, None]})
    tuples = pd.MultiIndex.from_tuples([(7, "k"), (8, "l")])
    frames = {
        (): [plain, plain.set_axis([7, 8]), plain.set_axis(tuples), plain[plain["x"] > 0], plain.rename_axis("day")],
        ("day",): [plain.set_axis([7, 8]).rename_axis("day"), plain.set_axis(tuples).rename_axis([None, "day"])],
    }
    for (index, number), frame in {(i, n): f for i, fs in frames.items() for n, f in enumerate(fs)}.items():
        path = tmp_path / f"{number}{index}.parquet"
        frame.to_parquet(path)
        table = pa.Table.from_pandas(frame)
        ways = {
            "frame": frame,
            "path": path,
            "paths": [path, str(path)],
            "frame and path": [frame, path],
            "table": table,
            "stream": Stream(table),
            "reader": table.to_reader(),
            "batches": iter(table.to_batches()),
            "path and frame": iter([pq.read_table(path), frame]),
            "dataset": ds.dataset(path),
            "polars": pl.read_parquet(path),
            "relation": duckdb.connect().from_parquet(str(path)),
        }
        for way, data in ways.items():
            rows = open_rows(data, "seed")
            assert rows.schema.names == ["x", "v", *index], way
            assert read(rows).slice(0, 2)["x"].to_pylist() == [1, 2], way


def test_a_table_that_has_an_index_of_pandas_as_column_keeps_it():
    table = pa.table({"x": [1], "__index_level_0__": [7]})
    for data in (table, [table, table.select([1, 0])], table.to_reader()):
        assert open_rows(data, "seed").typed(table.schema).schema == table.schema
    given = open_rows([table, table.select(["x"])], "seed").typed(table.schema)
    assert given.schema.names == ["x"]


def test_torn_values_are_refused_before_they_are_used():
    torn = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xff"))
    with pytest.raises(UsageError, match="cannot be read"):
        read(open_rows(pa.table({"x": torn}), "seed"))
    with pytest.raises(UsageError, match="cannot be read"):
        open_rows(pa.table({"x": torn}), "seed").columns(["x"])


def test_times_within_rows_that_no_python_has_are_refused():
    far = pa.StructArray.from_arrays([pa.array([0, 1 << 62], pa.timestamp("s"))], ["t"])
    with pytest.raises(ValueError, match="a value in row 2"):
        converted(pa.chunked_array([far]), pa.struct({"t": pa.timestamp("us")}))


def test_dictionaries_of_lists_are_stored_as_lists(tmp_path):
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array([[1], [2, 3]]))
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("o", pa.table({"x": dictionary}))
        assert con.sql("FROM o").rows() == [([1],), ([2, 3],), ([1],)]
