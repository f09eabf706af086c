from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
import random
import tempfile
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
from kartosql.errors import FormatError
from kartosql.formats import row_groups
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.parquet import DAMAGE
from kartosql.store import Store
from kartosql.write import files, indexing
from kartosql.write.files import pairs_of_files, parquet_bytes
from kartosql.write.indexing import VALUES_PER_ROW_GROUP, StoredIndex, index_key, index_schema, merged, pairs_of
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout
from written import write_dataset, write_rows


def merge(old, removed, added, column):
    return pa.concat_tables([index_schema(added, column).empty_table(), *merged(old, removed, added, column)])


def index_of(values, partitions):
    table = pa.table({"i": values, "p": partitions, "x": range(len(partitions))})
    layout = Layout("u", "u", ("p",), index_columns=("i",), not_null=("p",))
    written = write_rows(Store(f"memory://{uuid.uuid4().hex}"), open_rows(table, "u"), layout)
    names = {label: label.split("/")[0] for label in written.labels}
    index = merge(None, frozenset(), written.pairs["i"], "i")
    return index, [(v, [names[n] for n in labels]) for v, labels in zip(*index.to_pydict().values(), strict=True)]


def as_stored(index):
    return pq.read_table(pa.BufferReader(parquet_bytes(index, VALUES_PER_ROW_GROUP)))


def test_values_are_sorted_and_labels_follow_the_files():
    _, rows = index_of(["b", "a", "b", "a", "a"], [2, 2, 1, 1, 1])
    assert rows == [("a", ["p=1", "p=2"]), ("b", ["p=1", "p=2"])]


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        (pa.array([1, 2], pa.int8()), pa.int64()),
        (pa.array([1, 2], pa.uint16()), pa.uint64()),
        (pa.array([1, 2], pa.float32()), pa.float64()),
        (pa.array([True, False]), pa.bool_()),
        (pa.array(["a", "b"]), pa.string()),
        (pa.array([b"a", b"b"]), pa.binary()),
        (pa.array([dt.date(1960, 1, 1), dt.date(2020, 1, 1)]), pa.date32()),
        (pa.array([dt.datetime(1960, 1, 1), dt.datetime(2020, 1, 1)]), pa.timestamp("us")),
    ],
    ids=lambda v: str(getattr(v, "type", v)),
)
def test_types_are_normalised(values, stored):
    index, rows = index_of(values, [1, 2])
    assert as_stored(index).schema == pa.schema({"i": stored, "partition": pa.list_(pa.string())})
    assert dict(rows) == dict(zip(values.to_pylist(), [["p=1"], ["p=2"]], strict=True))


def test_nulls_of_a_plain_dataset_are_left_out():
    assert index_of([None, "a", None], [1, 2, 3])[1] == [("a", ["p=2"])]


def test_zero_and_minus_zero_are_one_value():
    assert index_of([0.0, -0.0, -0.0], [1, 1, 2])[1] == [(0.0, ["p=1", "p=2"])]


@pytest.mark.parametrize("values", [[], [None]])
def test_an_index_without_values_has_no_rows(values):
    assert index_of(pa.array(values, pa.int64()), pa.array([1] * len(values), pa.int64()))[0].num_rows == 0


def test_key():
    assert index_key("u", "a/b", "2026-11-20T08:38:09.108658") == (
        "u/indices/a%2Fb/2026-11-20T08%3A38%3A09.108658.by-dataset-index.parquet"
    )


# -- pairs and merging ---------------------------------------------------------------------------


def pairs(values, labels, type_=None):
    return pa.table({"value": pa.array(values, type_), "label": pa.array(labels, pa.string())})


def listed(index):
    return dict(zip(*index.to_pydict().values(), strict=True))


def test_a_new_index_is_sorted_and_keeps_the_order_of_labels():
    index = merge(None, frozenset(), pairs([3, 1, 3, 2], ["b", "b", "a", "a"]), "i")
    assert as_stored(index).schema == pa.schema({"i": pa.int64(), "partition": pa.list_(pa.string())})
    assert list(listed(index).items()) == [(1, ["b"]), (2, ["a"]), (3, ["b", "a"])]


def test_merging_adds_and_removes_labels_and_values_without_any_go():
    old = merge(None, frozenset(), pairs([1, 1, 2, 3], ["a", "b", "a", "b"]), "i")
    index = merge(old, {"a", "unknown"}, pairs([3, 4], ["c", "c"]), "i")
    assert listed(index) == {1: ["b"], 3: ["b", "c"], 4: ["c"]}
    assert merge(old, {"a", "b"}, pairs([], [], pa.int64()), "i").equals(index.schema.empty_table())
    assert merge(old, frozenset(), pairs([], [], pa.int64()), "i").equals(old)


def test_labels_that_are_removed_go_wherever_they_stand():
    old = merge(None, frozenset(), pairs([1, 2], ["a", "a"]), "i")
    assert listed(merge(old, {"a"}, pairs([2, 3], ["b", "a"]), "i")) == {2: ["b"]}


def test_pairs_that_stand_there_already_are_not_doubled():
    old = pa.table({"i": [2, 1, 2], "partition": [["b", "b"], ["a"], ["b", "c"]]})
    assert listed(merge(old, frozenset(), pairs([2, 1], ["c", "a"]), "i")) == {1: ["a"], 2: ["b", "c"]}


@pytest.mark.parametrize(
    ("old", "added"),
    [
        (pa.array(["b", "a"], pa.large_string()), pa.array(["a", "c"])),
        (pa.array(["b", "a"]).dictionary_encode(), pa.array(["a", "c"])),
        (pa.array([2, 1], pa.timestamp("us")).cast(pa.timestamp("ns")), pa.array([1, 3], pa.timestamp("us"))),
        (pa.array([2, 1], pa.int32()), pa.array([1, 3], pa.int64())),
        (pa.array([b"\0b", b""]), pa.array([b"", b"c"])),
        (pa.array([True, False]), pa.array([False, False])),
        (pa.array([2.5, -0.0]), pa.array([0.0, math.inf])),
        (pa.array([2, 1], pa.date32()), pa.array([1, 3], pa.date32())),
        (pa.array([2**63, 1], pa.uint64()), pa.array([1, 2**64 - 1], pa.uint64())),
    ],
    ids=lambda a: str(a.type),
)
def test_indices_of_other_writers_are_merged(old, added):
    lists = pa.array([["x"], ["y"]], pa.large_list(pa.large_string()))
    index = merge(
        pa.table({"i": old, "partition": lists}), frozenset(), pa.table({"value": added, "label": ["z", "z"]}), "i"
    )
    assert index.schema.field("i").type == added.type
    expected: dict = {}
    for value, label in [*zip(old.to_pylist(), "xy", strict=True), *zip(added.to_pylist(), "zz", strict=True)]:
        expected.setdefault(value, {})[label] = None
    assert listed(index) == {value: list(labels) for value, labels in expected.items()}
    if not pa.types.is_binary(added.type):
        assert index["i"].to_pylist() == sorted(expected)


def test_nulls_of_a_foreign_index_are_dropped():
    old = pa.table({"i": [None, 1, 2], "partition": [["a"], [None, "b"], None]})
    assert listed(merge(old, frozenset(), pairs([], [], pa.int64()), "i")) == {1: ["b"]}


@pytest.mark.parametrize(
    "old",
    [
        pa.table({"i": ["x"], "partition": [["a"]]}),
        pa.table({"other": [1], "partition": [["a"]]}),
        pa.table({"i": [1], "partition": ["a"]}),
    ],
)
def test_an_index_that_does_not_fit_is_refused(old):
    with pytest.raises(FormatError, match="'i'") as e:
        merge(old, frozenset(), pairs([1], ["b"]), "i")
    assert e.value.code == "invalid-index"


def test_nan_is_one_value_of_an_index():
    nan = math.nan
    index = merge(None, frozenset(), pairs([nan, 1.0, nan], ["a", "a", "b"]), "i")
    assert index["partition"].to_pylist() == [["a"], ["a", "b"]]
    assert math.isnan(index["i"][1].as_py())


def test_many_pairs_against_a_plain_dictionary():
    rng = random.Random(11)
    model: dict = {}
    index = None
    for turn in range(6):
        labels = [f"{turn}/{n}" for n in range(5)]
        given = {(rng.randrange(25_000), rng.choice(labels)) for _ in range(20_000)}
        removed = {f"{turn - 2}/{n}" for n in range(3)}
        index = merge(index, removed, pairs(*zip(*sorted(given), strict=True)), "i")
        model = {v: kept for v, found in model.items() if (kept := found - removed)}
        for value, label in given:
            model.setdefault(value, set()).add(label)
        assert {v: set(found) for v, found in listed(index).items()} == model
        assert index["i"].to_pylist() == sorted(model)
        assert all(len(found) == len(set(found)) for found in index["partition"].to_pylist())


def test_the_pieces_of_an_index_have_one_size_whatever_the_pairs():
    for values in (range(25_000), [v // 3 for v in range(75_000)], [v % 25_000 for v in range(75_000)]):
        labels = [f"{n % 3}" for n in range(len(values))]
        found = list(merged(None, frozenset(), pairs(values, labels), "i"))
        assert [piece.num_rows for piece in found] == [2_000] * 12 + [1_000]
        for piece in found:
            dictionary = piece["partition"].combine_chunks().values.dictionary
            assert set(dictionary.to_pylist()) == {label for row in piece["partition"].to_pylist() for label in row}


def test_the_labels_of_a_row_group_are_those_it_needs():
    files = [pa.array(range(n * 2_000, (n + 1) * 2_000)) for n in range(3)]
    found = merged(None, frozenset(), pairs_of(pa.int64(), ["a", "b", "c"], files), "i")
    assert [piece["partition"].combine_chunks().values.dictionary.to_pylist() for piece in found] == [
        ["a"],
        ["b"],
        ["c"],
    ]


def runs_of(kind, rng):
    if kind == "numbers":
        return pa.int64(), [sorted(rng.sample(range(-9000, 9000), 3000)) for _ in range(7)]
    if kind == "far numbers":
        return pa.uint64(), [sorted({0, 2**64 - 1, *(rng.randrange(2**64) for _ in range(3000))}) for _ in range(5)]
    if kind == "times":
        return pa.timestamp("us"), [sorted(rng.sample(range(-(10**6), 10**15), 2500)) for _ in range(5)]
    if kind == "days":
        return pa.date32(), [sorted(rng.sample(range(-5000, 5000), 2500)) for _ in range(5)]
    if kind == "text":
        return pa.string(), [[f"ä{k}" for k in rng.sample(range(9000), 2500)] for _ in range(4)]
    if kind == "one file":
        return pa.int64(), [sorted(rng.sample(range(10**12), 20_000))]
    if kind == "one text":
        return pa.string(), [sorted(f"{k}" for k in range(20_000))]
    if kind == "many files of few":
        return pa.int64(), [sorted(rng.sample(range(500), 5)) for _ in range(3000)]
    return pa.int64(), [[7], *([] for _ in range(4)), [7], list(range(12_000)), [7]]


@pytest.mark.parametrize(
    "kind",
    ["numbers", "far numbers", "times", "days", "text", "one file", "one text", "many files of few", "one value"],
)
def test_ranges_of_values_are_the_whole(kind, monkeypatch):
    monkeypatch.setattr(indexing, "RANGE_PAIRS", 1000)
    type_, files = runs_of(kind, random.Random(7))
    arrays = [pa.array(values, type_) for values in files]
    labels = [f"f{n}" for n in range(len(files))]
    expected: dict = {}
    for label, array in zip(labels, arrays, strict=True):
        for value in array.to_pylist():
            expected.setdefault(value, []).append(label)
    index = merge(None, frozenset(), pairs_of(type_, labels, arrays), "i")
    assert list(listed(index).items()) == sorted(expected.items())
    assert as_stored(index).to_pydict() == index.to_pydict()


@pytest.mark.parametrize("values", [["a", None, "b"], [1.5, -0.0, 0.0], [1, 2, 1]])
def test_pairs_are_read_from_files(store, values):
    table = pa.table({"i": values, "p": [1, 1, 2]})
    write_dataset(store, "d", table, partition_on="p", index_columns=["i"])
    dataset = Snapshot(store).dataset("d").tables["table"]
    found = pairs_of_files(store, dataset, dataset.labels, "i")
    index = pq.read_table(pa.BufferReader(store.read(dataset.indices["i"].key)))
    assert listed(merge(None, frozenset(), found, "i")) == listed(index)
    assert pairs_of_files(store, dataset, (), "i").num_rows == 0
    assert set(pairs_of_files(store, dataset, dataset.labels[:1], "i")["label"].to_pylist()) <= {dataset.labels[0]}


def test_files_of_other_types_and_without_the_column_are_read(store):
    builders.write_dataset(store, "d", {"i": pa.int64(), "x": pa.int64()}, ["n=1", "n=2", "n=3"])
    for n, table in enumerate([{"i": pa.array([7, None], pa.int8())}, {"x": [1]}, {"i": pa.nulls(1)}], 1):
        store.put(f"d/table/n={n}/{builders.WRITE_ID}.parquet", builders.parquet(pa.table(table)))
    dataset = Snapshot(store).dataset("d").tables["table"]
    found = pairs_of_files(store, dataset, dataset.labels, "i")
    assert found.to_pydict() == {"value": [7], "label": [f"n=1/{builders.WRITE_ID}"]}


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "missing-file"), (b"PAR1 torn", "corrupt-file"), (builders.parquet({"i": ["text"]}), "schema-mismatch")],
)
def test_files_that_cannot_be_indexed_are_named(store, content, code):
    builders.write_dataset(store, "d", {"i": pa.int64()}, [""])
    if content is not None:
        store.put(f"d/table/{builders.WRITE_ID}.parquet", content)
    dataset = Snapshot(store).dataset("d").tables["table"]
    with pytest.raises(FormatError, match=builders.WRITE_ID) as e:
        pairs_of_files(store, dataset, dataset.labels, "i")
    assert e.value.code == code


KINDS_OF_VALUES = {
    "integer": (pa.int64(), lambda n: n - 50),
    "unsigned": (pa.uint64(), lambda n: n + 2**63),
    "text": (pa.string(), lambda n: f"v{n}é" * (n % 3)),
    "bytes": (pa.binary(), lambda n: bytes([n % 250]) * (n % 3)),
    "date": (pa.date32(), lambda n: dt.date(2026, 1, 1) + dt.timedelta(n)),
    "time": (pa.timestamp("us", "UTC"), lambda n: dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(n)),
    "truth": (pa.bool_(), lambda n: n % 2 == 0),
    "number": (pa.float64(), lambda n: n / 3),
    "decimal": (pa.decimal128(10, 2), lambda n: decimal.Decimal(n - 50)),
}


@pytest.mark.parametrize("files_of_each", [1, 7])
def test_an_index_has_few_row_groups_however_many_values_it_has(monkeypatch, files_of_each):
    monkeypatch.setattr(indexing, "VALUES_PER_ROW_GROUP", 10)
    monkeypatch.setattr(indexing, "MOST_ROW_GROUPS", 8)
    store = Store(f"memory://{uuid.uuid4().hex}")
    old = None
    for number, values in enumerate((range(0, 8000, 8), [4, 12, 4004], range(8001, 8021))):
        labels = [f"p={number}-{n}" for n in range(files_of_each)]
        added = pairs([v for v in values for _ in labels], [label for _ in values for label in labels], pa.int64())
        with store.output(f"{number}") as file:
            files.write_index(file, old, set(), None, added, "i")
        old = StoredIndex(store, f"{number}", "i")
        assert len(old.lows()) == 8, number
    assert old.count == 1023


def rows_of(index):
    return [(v, sorted(p)) for v, p in zip(*index.to_pydict().values(), strict=True)]


@pytest.mark.parametrize("kind", KINDS_OF_VALUES)
@pytest.mark.parametrize(("size", "most_groups"), [(3, 256), (3, 4), (1000, 256)])
def test_an_index_with_few_pairs_that_change_is_what_merging_all_makes(kind, size, most_groups, monkeypatch):
    monkeypatch.setattr(indexing, "VALUES_PER_ROW_GROUP", size)
    monkeypatch.setattr(indexing, "MOST_ROW_GROUPS", most_groups)
    cuts = []
    monkeypatch.setattr(files, "_with_groups", lambda *given: cuts.extend(given[1]) or with_groups(*given))
    type_, make = KINDS_OF_VALUES[kind]
    rng, store = random.Random(kind), Store(f"memory://{uuid.uuid4().hex}")
    old, labels = None, {f"p={n}": set() for n in range(60)}
    for number in range(24):
        values = [rng.randrange(100) for _ in range(rng.choice([0, 1, 3, 30]) if number else 300)]
        gone = rng.sample(sorted(labels), rng.choice([0, 0, 1, 2]) if number else 0)
        known = [[make(n) for n in sorted(labels[label])] for label in gone]
        taken = pairs_of(type_, gone, [pa.array(list(dict.fromkeys(v)), type_) for v in known])
        for label in gone:
            labels[label] = set()
        new = {(rng.choice(sorted(labels.keys() - gone)), n) for n in values}
        for label, n in new:
            labels[label].add(n)
        added = pairs([make(n) for _, n in new], [label for label, _ in new], type_)
        expected = merge(old, set(gone), added, "i")
        index = None if old is None else StoredIndex(store, f"{number - 1}", "i")
        with store.output(f"{number}") as file:
            files.write_index(file, index, set(gone), taken, added, "i")
        old = StoredIndex(store, f"{number}", "i").read()
        assert rows_of(old) == rows_of(expected)
        names = {make(n) for ns in labels.values() for n in ns}
        assert {v: set(p) for v, p in rows_of(old)} == {
            v: {label for label, ns in labels.items() if v in map(make, ns)} for v in names
        }
        groups = pq.ParquetFile(pa.BufferReader(store.read(f"{number}"))).metadata
        sizes = [groups.row_group(g).num_rows for g in range(groups.num_row_groups)]
        assert max(sizes, default=0) <= 2 * max(size, -(-100 // most_groups)) - 1
    assert bool(cuts) == (size == 3 and kind in ("integer", "unsigned", "text", "date", "time"))


with_groups = files._with_groups


def stored(values, labels, size, type_=pa.int64()):
    store = Store(f"memory://{uuid.uuid4().hex}")
    index = merge(None, frozenset(), pairs(values, labels, type_), "i")
    store.put("0", parquet_bytes(index, size))
    return store, StoredIndex(store, "0", "i")


def test_row_groups_without_a_change_are_copied_as_bytes():
    store, index = stored(range(100), [f"p={n % 7}" for n in range(100)], 10)
    before = store.read("0")
    with store.output("1") as file:
        files.write_index(file, index, set(), None, pairs([42, 1000], ["p=new", "p=new"]), "i")
    old, new = (row_groups.cut(data).groups for data in (before, store.read("1")))
    assert len(old) == len(new) == 10
    row_groups._recent.clear()  # what was written is what is read
    assert row_groups.cut(store.read("1")) == row_groups.Cut(
        row_groups.cut(before).head, new, row_groups.cut(before).tail
    )
    assert [a.data == b.data for a, b in zip(old, new, strict=True)] == [n not in (4, 9) for n in range(10)]
    assert [v for v, p in rows_of(StoredIndex(store, "1", "i").read()) if "p=new" in p] == [42, 1000]
    metadata = pq.ParquetFile(pa.BufferReader(store.read("1"))).metadata
    assert metadata.num_rows == 101
    assert duckdb_rows(store.read("1")) == list(
        zip(*StoredIndex(store, "1", "i").read().to_pydict().values(), strict=True)
    )


def duckdb_rows(data):
    import duckdb

    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(data)
        file.flush()
        return duckdb.sql(f"SELECT * FROM '{file.name}' ORDER BY 1").fetchall()


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.timestamp("us")])
def test_a_label_in_the_place_of_another_is_exchanged_in_row_groups(type_):
    def make(n):
        return {pa.int64(): n, pa.string(): f"{n:03}"}.get(type_, dt.datetime(2026, 1, 1) + dt.timedelta(n))

    rng = random.Random(str(type_))
    labels = [f"p={n % 9}/é{n:03}" for n in range(120)]
    owned = {label: sorted(rng.sample(range(300), rng.choice([1, 3, 20]))) for label in labels}
    given = sorted((n, label) for label, ns in owned.items() for n in ns)
    store, index = stored([make(n) for n, _ in given], [label for _, label in given], 10, type_)
    exchanges = 0
    for number in range(40):
        old, new = rng.choice(sorted(owned)), f"p={rng.choice([7, 8, 9, 10])}/ä{number:03}"
        ns = owned.pop(old)
        stay = ns[rng.choice([0, 0, 1]) :] + rng.choice([[], [300 + number]])
        owned[new] = stay
        taken, added = (
            pairs([make(n) for n in some], [label] * len(some), type_) for some, label in ((ns, old), (stay, new))
        )
        expected = merge(index.read(), {old}, added, "i")
        made = indexing.patched(index, {old}, taken, added, "i", exchanging=True)
        exchanges += sum(isinstance(some, tuple) for some in (made or {}).values())
        with store.output(f"{number + 1}") as file:
            files.write_index(file, index, {old}, taken, added, "i")
        index = StoredIndex(store, f"{number + 1}", "i")
        data = store.read(f"{number + 1}")
        assert rows_of(pq.read_table(pa.BufferReader(data), page_checksum_verification=True)) == rows_of(expected)
        assert [(v, sorted(p)) for v, p in duckdb_rows(data)] == rows_of(expected)
        row_groups._recent.clear()
        pieces = row_groups.cut(data)
        assert b"".join(row_groups.joined(pieces)) == data
        assert [g.rows for g in pieces.groups] == [
            index._file.metadata.row_group(g).num_rows for g in range(len(pieces.groups))
        ]
        sizes = [index._file.metadata.row_group(g).column(1).total_compressed_size for g in range(len(pieces.groups))]
        assert all(0 < size < len(group.data) for size, group in zip(sizes, pieces.groups, strict=True))
    assert exchanges > 10


@pytest.mark.parametrize(
    ("labels", "old", "new", "options"),
    [
        (["a", "b"], "c", "d", {}),  # which it has not
        (["a", "b"], "a", "b", {}),  # it has the other one, too
        (["a", "b"], "a", "cc", {}),
        (["a", "b"], "a", "", {}),
        (["a", "b"], "a", "c", {"use_dictionary": False}),
        (["a", "b"], "a", "c", {"write_page_checksum": False}),
        (["a", "b"], "a", "c", {"compression": "snappy"}),
        ([f"{n:09}" for n in range(3000)], "000000007", "x00000007", {"dictionary_pagesize_limit": 1000}),
    ],
)
def test_a_label_that_is_stored_in_another_way_is_not_exchanged(labels, old, new, options):
    table = pa.table({"i": range(len(labels)), "partition": [[label] for label in labels]})
    sink, given = pa.BufferOutputStream(), {"compression": "zstd", "write_page_checksum": True, **options}
    pq.write_table(table, sink, **given)
    (group,) = row_groups.cut(sink.getvalue().to_pybytes()).groups
    with pytest.raises((*DAMAGE, OSError)):
        row_groups.exchanged(group, old, new)


def test_damaged_pages_are_not_exchanged_or_give_what_they_gave():
    table = pa.table({"i": range(50), "partition": [[f"p={n % 7}"] for n in range(50)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    (group,) = row_groups.cut(sink.getvalue().to_pybytes()).groups
    rng, refused = random.Random(5), 0
    for _ in range(500):
        broken = bytearray(group.data)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            row_groups.exchanged(dataclasses.replace(group, data=memoryview(bytes(broken))), "p=3", "p=x")
        except (*DAMAGE, OSError):
            refused += 1
    assert refused > 50


def test_an_index_is_made_anew_where_other_pairs_stand_than_the_files_have():
    store, index = stored([*range(100), 7], ["p=1"] * 5 + ["p=2"] * 95 + ["p=1"], 10)
    gone = pairs(range(5), ["p=1"] * 5)  # the index has 7, too
    assert indexing.patched(index, {"p=1"}, gone, pairs([], [], pa.int64()), "i") is None
    with store.output("1") as file:
        files.write_index(file, index, {"p=1"}, gone, pairs([], [], pa.int64()), "i")
    assert rows_of(StoredIndex(store, "1", "i").read()) == [(n, ["p=2"]) for n in range(5, 100)]


def test_a_foreign_index_with_values_in_any_order_is_made_anew():
    store, index = stored(range(100), ["p=1"] * 100, 10)
    table = index.read()
    store.put("0", parquet_bytes(table.take(list(range(99, -1, -1))), 10))
    index = StoredIndex(store, "0", "i")
    assert index.lows() is None
    with store.output("1") as file:
        files.write_index(file, index, set(), None, pairs([42], ["p=2"]), "i")
    assert rows_of(StoredIndex(store, "1", "i").read())[42] == (42, ["p=1", "p=2"])


def test_a_damaged_footer_is_no_reason_to_copy():
    store, _ = stored(range(100), ["p=1"] * 100, 10)
    data = store.read("0")
    length = int.from_bytes(data[-8:-4], "little")
    rng, refused = random.Random(4), 0
    for _ in range(300):
        broken = bytearray(data)
        broken[len(data) - 8 - rng.randrange(1, length)] = rng.randrange(256)
        try:
            row_groups.cut(bytes(broken))
        except DAMAGE:
            refused += 1
    assert refused
