from __future__ import annotations

import random
import threading
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import StoreError, UsageError
from kartosql.formats.kartothek.naming import write_id
from kartosql.write import files
from kartosql.write.files import WriteProgress, discard
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout, SpillingSorter
from written import write_rows

CUBE = Layout("c++seed", "seed", ("p",), ("p", "x"), ("x", "i"), ("p", "x", "i"))
PLAIN = Layout("d", "d", ("p",), (), ("i",), ("p",))
SMALL = 3_000_000  # memory with which some megabytes are sorted outside and written in several runs


def shuffled(count: int, partitions: int = 3) -> pa.Table:
    order = list(range(count))
    random.Random(5).shuffle(order)
    return pa.table(
        {
            "x": order,
            "i": pa.array([k % 10 for k in order], pa.int16()),
            "p": [f"p{k % partitions}" for k in order],
            "v": [f"text {k}" for k in order],
        }
    )


def contents(store, written) -> dict[str, list[dict]]:
    """Rows of each partition folder, as its one file holds them."""
    found = {}
    for label, key in zip(written.labels, written.keys, strict=True):
        folder = label.rpartition("/")[0]
        assert folder not in found
        found[folder] = pq.read_table(pa.BufferReader(store.read(key))).to_pylist()
    return found


def stored(store, uuid="c++seed") -> set[str]:
    return set(store.list_below(uuid))


@pytest.fixture
def streamed(monkeypatch):
    """Let partitions count as large, and streams as larger than memory, from few rows on."""
    monkeypatch.setattr(files, "MIN_FLUSH_BYTES", 20_000)
    monkeypatch.setattr("kartosql.write.layout.MIN_MEMORY", 100_000)
    monkeypatch.setattr("kartosql.write.inputs.PIECE_BYTES", 50_000)


def test_files_are_sorted_and_what_was_written_is_told(store):
    table = pa.table({"x": [3, 1, 2], "i": pa.array([7, 8, 7], pa.int8()), "p": ["b", "a", "b"], "v": [1.5, None, 2.5]})
    written = write_rows(store, open_rows(table, "seed"), CUBE)
    assert contents(store, written) == {
        "p=a": [{"x": 1, "i": 8, "v": None}],
        "p=b": [{"x": 2, "i": 7, "v": 2.5}, {"x": 3, "i": 7, "v": 1.5}],
    }
    assert written.keys == tuple(f"c++seed/table/{label}.parquet" for label in written.labels)
    assert len({write_id(key) for key in written.keys} - {None}) == 1
    assert (written.rows, written.layout.table, written.schema) == (3, "table", table.schema)
    assert written.bytes == sum(len(store.read(key)) for key in written.keys)
    a, b = written.labels
    labels = pa.dictionary(pa.int32(), pa.string())
    assert written.pairs["i"].schema == pa.schema({"value": pa.int64(), "label": labels})
    assert sorted(zip(*written.pairs["i"].to_pydict().values(), strict=True)) == [(7, b), (8, a)]
    assert sorted(zip(*written.pairs["x"].to_pydict().values(), strict=True)) == [(1, a), (2, b), (3, b)]
    assert stored(store) == set(written.keys)


@pytest.mark.parametrize("source", ["table", "reader", "sorted"])
@pytest.mark.parametrize("layout", [CUBE, PLAIN], ids=["cube", "plain"])
def test_rows_larger_than_memory_become_the_same_files(store, streamed, source, layout):
    table = shuffled(60_000)
    if source == "sorted":
        table = table.sort_by([("p", "ascending"), ("x", "ascending")])
    given = table.to_reader() if source == "reader" else table
    written = write_rows(
        store, open_rows(given, "seed"), layout, sorter=SpillingSorter(), memory=400_000, row_group_rows=1000
    )
    at_once = write_rows(store, open_rows(table, "seed"), layout, row_group_rows=1000)
    assert contents(store, written) == contents(store, at_once)
    assert written.bytes == sum(len(store.read(key)) for key in written.keys)
    for key in written.keys:
        metadata = pq.read_metadata(pa.BufferReader(store.read(key)))
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert set(sizes[:-1]) == {1000}
    for column in layout.index_columns:
        ours, theirs = (
            {(v, label.split("/")[0]) for v, label in zip(*w.pairs[column].to_pydict().values(), strict=True)}
            for w in (written, at_once)
        )
        assert ours == theirs
        assert written.pairs[column].num_rows == len(ours)


def test_plain_rows_keep_their_order_within_a_partition_when_sorted_outside(store, streamed):
    rng = random.Random(1)
    table = pa.table({"p": [rng.randrange(3) for _ in range(50_000)], "n": range(50_000), "i": [1] * 50_000})
    written = write_rows(store, open_rows(table.to_reader(), "d"), PLAIN, sorter=SpillingSorter(), memory=300_000)
    for rows in contents(store, written).values():
        numbers = [row["n"] for row in rows]
        assert numbers == sorted(numbers)
    assert written.rows == 50_000


def test_an_unpartitioned_dataset_is_one_file_in_the_order_given(store, streamed):
    layout = Layout("d", "d", index_columns=("i",))
    table = shuffled(30_000)
    written = write_rows(store, open_rows(table.to_reader(), "d"), layout, memory=100_000, row_group_rows=500)
    assert contents(store, written) == {"": table.to_pylist()}
    assert len(written.labels[0]) == 32
    assert written.pairs["i"].num_rows == 10


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "spilled"
    made.mkdir()
    return made


def test_pairs_that_are_too_many_for_memory_are_sorted_on_disk_which_is_free_again(store, streamed, folder):
    sorter = SpillingSorter(str(folder))
    layout = Layout("c++seed", "seed", ("p",), ("p", "x"), ("v", "x", "i"), ("p", "x", "v", "i"))
    table = shuffled(60_000, 7)
    written = write_rows(store, open_rows(table, "seed"), layout, sorter=sorter, memory=1_000_000)
    values = written.pairs["v"]["value"].to_pylist()
    assert values == sorted(table["v"].to_pylist())
    assert written.pairs["x"]["value"].to_pylist() == list(range(60_000))
    assert written.pairs["i"].num_rows == 70
    folders = {label: label.split("/")[0] for label in written.labels}
    of_row = dict(zip(table["v"].to_pylist(), table["p"].to_pylist(), strict=True))
    assert all(
        folders[label] == f"p={of_row[v]}"
        for v, label in zip(values, written.pairs["v"]["label"].to_pylist(), strict=True)
    )
    assert list(folder.iterdir()) == []


def test_a_failed_write_leaves_no_pairs_on_disk(store, streamed, monkeypatch, folder):
    Failing(store, monkeypatch, 3)
    with pytest.raises(StoreError):
        write_rows(store, open_rows(shuffled(60_000), "seed"), CUBE, sorter=SpillingSorter(str(folder)), memory=100_000)
    assert list(folder.iterdir()) == []


def test_dictionaries_are_for_values_that_repeat(store):
    table = shuffled(5000, 1)
    written = write_rows(store, open_rows(table, "seed"), CUBE)
    group = pq.read_metadata(pa.BufferReader(store.read(written.keys[0]))).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"i"}


@pytest.mark.parametrize(("layout", "files"), [(Layout("d", "d"), 1), (PLAIN, 0)])
def test_a_plain_dataset_without_rows(store, layout, files):
    written = write_rows(
        store, open_rows(pa.table({"p": pa.array([], pa.int64()), "i": pa.array([], pa.string())}), "d"), layout
    )
    assert (len(written.keys), written.rows) == (files, 0)
    assert stored(store, "d") == set(written.keys)
    assert all(
        pairs.num_rows == 0 and pairs.schema.field("value").type == pa.string() for pairs in written.pairs.values()
    )


def test_no_rows_make_no_file_of_a_cube(store):
    written = write_rows(store, open_rows(shuffled(0), "seed"), CUBE)
    assert (written.keys, written.rows) == ((), 0)


def test_tables_of_other_names_have_folders_of_their_own(store):
    written = write_rows(store, open_rows(shuffled(3), "d"), replace(PLAIN, table="t2"))
    assert all(key.startswith("d/t2/p=p") for key in written.keys)


def later(table: pa.Table, change: pa.Table):
    yield from table.to_batches(max_chunksize=1000)
    yield from change.cast(table.schema).to_batches()


@pytest.mark.parametrize("memory", [400_000, 512_000_000], ids=["outside", "in memory"])
@pytest.mark.parametrize(
    ("bad", "code", "message"),
    [
        ({"x": [0], "i": [1], "p": ["p0"], "v": ["again"]}, "duplicate-cells", "a cell occurs again .*p = p0, x = 0"),
        ({"x": [None], "i": [1], "p": ["p0"], "v": [""]}, "null-in-key", "'x' holds NULL, first in row 20,000"),
        ({"x": [-1], "i": [None], "p": ["p0"], "v": [""]}, "null-in-key", "index column 'i' holds NULL"),
        ({"x": [-1], "i": [1], "p": ["z" * 254], "v": [""]}, "invalid-data", "255 bytes"),
        ({"x": [-1], "i": [1], "p": ["ü" * 50], "v": [""]}, "invalid-data", "255 bytes"),
    ],
)
def test_bad_rows_late_in_a_stream_leave_nothing_behind(store, streamed, memory, bad, code, message):
    table = shuffled(20_000)
    rows = open_rows(later(table, pa.table(bad)), "seed")
    with pytest.raises(UsageError, match=message) as e:
        write_rows(store, rows, CUBE, sorter=SpillingSorter(), memory=memory, row_group_rows=500)
    assert e.value.code == code
    assert stored(store) == set()


@pytest.mark.parametrize("memory", [400_000, 512_000_000], ids=["outside", "in memory"])
def test_cells_repeat_across_partitions_that_are_not_of_the_cube(store, streamed, memory):
    layout = Layout("c++e", "e", ("r",), ("x",), (), ("r", "x"))
    table = pa.table({"x": range(20_000), "r": [k % 5 for k in range(20_000)]})
    again = pa.table({"x": [7], "r": [0]})
    written = write_rows(store, open_rows(table.to_reader(), "e"), layout, sorter=SpillingSorter(), memory=memory)
    assert sorted(row["x"] for rows in contents(store, written).values() for row in rows) == list(range(20_000))
    assert all(rows == sorted(rows, key=lambda r: r["x"]) for rows in contents(store, written).values())
    with pytest.raises(UsageError, match="x = 7") as e:
        write_rows(store, open_rows(later(table, again), "e"), layout, sorter=SpillingSorter(), memory=memory)
    assert e.value.code == "duplicate-cells"


def test_minus_zero_and_zero_are_one_partition_wherever_they_stand(store):
    layout = Layout("d", "d", ("p",), (), (), ("p",))
    pieces = iter([pa.table({"p": [-0.0], "v": [1]}), pa.table({"p": [0.0], "v": [2]})])
    written = write_rows(store, open_rows(pieces, "d"), layout)
    assert contents(store, written) == {"p=0.0": [{"v": 1}, {"v": 2}]}


class Failing:
    """Lets the n-th file fail."""

    def __init__(self, store, monkeypatch, at: int) -> None:
        self.count, self.lock = 0, threading.Lock()
        output = store.output

        def fragile(key, **options):
            with self.lock:
                self.count += 1
                if self.count == at:
                    raise StoreError("no space", code="disk-full")
            return output(key, **options)

        monkeypatch.setattr(store, "output", fragile)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("memory", [400_000, 512_000_000], ids=["outside", "in memory"])
def test_a_store_that_fails_keeps_no_files(store, streamed, monkeypatch, at, memory):
    Failing(store, monkeypatch, at)
    with pytest.raises(StoreError) as e:
        write_rows(
            store,
            open_rows(shuffled(20_000).to_reader(), "seed"),
            CUBE,
            sorter=SpillingSorter(),
            memory=memory,
            row_group_rows=500,
        )
    assert e.value.code == "disk-full"
    assert stored(store) == set()


def test_an_error_of_the_producer_keeps_its_kind_through_the_sort(store, streamed):
    def batches():
        yield from shuffled(20_000).to_batches(max_chunksize=1000)
        raise StoreError("gone away")

    with pytest.raises(StoreError, match="gone away"):
        write_rows(store, open_rows(batches(), "seed"), CUBE, sorter=SpillingSorter(), memory=400_000)
    assert stored(store) == set()


def test_an_interrupt_leaves_nothing_behind(store, streamed):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(store, open_rows(shuffled(20_000), "seed"), CUBE, progress=stop, row_group_rows=500)
    assert stored(store) == set()


def test_progress_counts_up_to_everything(store):
    seen: list[WriteProgress] = []
    written = write_rows(store, open_rows(shuffled(100, 20), "seed"), CUBE, progress=seen.append)
    assert [p.files for p in seen] == list(range(1, 21))
    assert seen[-1] == WriteProgress("seed", 100, 20, written.bytes)
    assert [p.rows for p in seen] == sorted(p.rows for p in seen)


def test_files_that_will_not_be_committed_can_be_discarded(store):
    written = write_rows(store, open_rows(shuffled(9), "seed"), CUBE)
    discard(store, written.keys)
    assert stored(store) == set()


def test_columns_are_checked_before_rows_are_read(store):
    def never():
        yield pa.table({"x": [1]})
        raise AssertionError

    with pytest.raises(UsageError, match="'p' is missing"):
        write_rows(store, open_rows(never(), "seed"), CUBE)


def test_files_for_point_queries(store):
    table = shuffled(5000, 1)
    written = write_rows(store, open_rows(table, "seed"), CUBE, row_group_rows=1000)
    file = pq.ParquetFile(pa.BufferReader(store.read(written.keys[0])))
    group = file.metadata.row_group(0)
    names = [group.column(i).path_in_schema for i in range(group.num_columns)]
    assert [(c.column_index, c.descending) for c in group.sorting_columns] == [(names.index("x"), False)]
    assert all(group.column(i).has_offset_index and group.column(i).has_column_index for i in range(3))
    assert file.metadata.num_row_groups == 5


@pytest.mark.parametrize("memory", [10**6, 10**9])
@pytest.mark.parametrize("count", [1, 7, 1000, 3333, 10**6])
def test_files_have_as_many_rows_as_are_allowed(store, streamed, memory, count):
    rows = pa.table({"p": [x % 3 for x in range(10_000)], "x": range(10_000), "s": ["text" * 20] * 10_000})
    rows = rows.slice(0, 100) if count < 10 else rows
    layout = Layout("d", "d", ("p",), ("p", "x"), ("x",), ("p", "x"))
    written = write_rows(
        store, open_rows(rows, "d"), layout, sorter=SpillingSorter(), memory=memory, rows_per_file=count
    )
    found = [pq.read_table(pa.BufferReader(store.read(key))) for key in written.keys]
    sizes: dict[str, list[int]] = {}
    for label, table in zip(written.labels, found, strict=True):
        sizes.setdefault(label.partition("/")[0], []).append(table.num_rows)
    for p, given in enumerate(sizes.values()):
        total = len(range(p, rows.num_rows, 3))
        assert given == [min(count, total - start) for start in range(0, total, count)]
    assert len({write_id(key) for key in written.keys}) == 1
    assert len(set(written.keys)) == len(written.keys)
    place = {x: label for label, table in zip(written.labels, found, strict=True) for x in table["x"].to_pylist()}
    pairs = dict(zip(written.pairs["x"]["value"].to_pylist(), written.pairs["x"]["label"].to_pylist(), strict=True))
    assert pairs == place
    assert sorted(place) == list(range(rows.num_rows))


def test_files_of_one_write_are_known_to_hold_different_cells(tmp_path, monkeypatch):
    monkeypatch.setattr("kartosql.plan.overlays.MAX_PROBES", 0)  # nothing but names tells which files overlay others
    rows = pa.table({"p": ["a"] * 9, "x": range(9), "v": range(9)})
    with kartosql.connect(str(tmp_path)) as con:
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["v"], suppress_index_on=["x"])
        con.build_cube(cube, rows, rows_per_file=3)
        # Were they taken for overlays, those behind the one that is found would be read as well.
        assert con.explain("SELECT x FROM c WHERE v = 4").files_selected == 1
        con.append_to_cube("c", pa.table({"p": ["a"], "x": [4], "v": [40]}))
        assert con.sql("SELECT x FROM c WHERE v = 4").rows() == []
        assert con.sql("SELECT v FROM c WHERE x = 4").rows() == [(40,)]


def test_rows_that_come_in_order_are_checked_from_piece_to_piece(store):
    layout = Layout("d", "d", ("p",), ("p", "x"), (), ("p", "x"))
    some = [pa.table({"p": ["a", "a"], "x": [1, 2]}), pa.table({"p": ["a", "b"], "x": [3, 1]})]
    written = write_rows(store, open_rows(iter(some), "d"), layout, presorted=True, write_id="f" * 32)
    assert [label.partition("-")[0] for label in written.labels] == ["p=a/" + "f" * 32, "p=b/" + "f" * 32]
    for bad, code in (({"p": ["a"], "x": [2]}, "duplicate-cells"), ({"p": ["b"], "x": [None]}, "null-in-key")):
        more = [*some[:1], pa.table(bad, some[0].schema)]
        with pytest.raises(UsageError) as e:
            write_rows(store, open_rows(iter(more), "d"), layout, presorted=True)
        assert e.value.code == code
    with pytest.raises(AssertionError, match="not in the order"):
        write_rows(store, open_rows(iter(some[::-1]), "d"), layout, presorted=True)
    assert {key for key in store.list_below("d/") if key not in written.keys} == set()
