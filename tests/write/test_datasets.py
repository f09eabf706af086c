"""Plain datasets: made, appended to, replaced in part and deleted; several tables."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
import kartosql
from kartosql.errors import ConcurrentCommit, KartosqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.write import datasets
from kartosql.write.operation import Operation
from kartosql.write.removal import Removal, everything
from written import build_cube

ROWS = pa.table({"p": ["a", "a", "b"], "x": [1, 1, 2], "s": ["k", None, "l"]})
ONE = pa.table({"p": ["a", "b"], "x": [1, 2], "v": [10, 20]})
TWO = pa.table({"p": ["b", "c"], "x": [2, 3], "w": ["k", "l"]})


def create(store, data=ROWS, uuid="d", **options):
    return datasets.create_dataset(
        Operation(store, "create_dataset"), uuid, data, **{"partition_on": "p", "index_columns": "s", **options}
    )


def append(store, data, uuid="d", **options):
    return datasets.append_to_dataset(Operation(store, "append_to_dataset"), uuid, data, **options)


def replace(store, data, uuid="d"):
    return append(store, data, uuid, replace_partitions=True)


def rows_of(store, uuid="d", table="table"):
    found = Snapshot(store).dataset(uuid).tables[table]
    rows = []
    for i, key in enumerate(found.files):
        values = found.partitions.tuples[found.partitions.part_of_file[i]]
        keys = dict(zip(found.partition_keys, values, strict=True))
        rows += [row | keys for row in pq.read_table(pa.BufferReader(store.read(key))).to_pylist()]
    return in_order(rows)


def in_order(*rows):
    return sorted(repr(sorted(r.items())) for t in rows for r in (t if isinstance(t, list) else t.to_pylist()))


def index_of(store, column, uuid="d"):
    table = builders.read_parquet(store, builders.read_document(store, uuid)["indices"][column])
    return {r[column]: set(r["partition"]) for r in table.to_pylist()}


def values_of(store, column, uuid="d"):
    """Return the labels by value as the data files hold them, of all tables."""
    found = {}
    for label, entry in builders.read_document(store, uuid)["partitions"].items():
        for key in entry["files"].values():
            table = builders.read_parquet(store, key)
            for value in table[column].to_pylist() if column in table.column_names else ():
                if value is not None:
                    found.setdefault(value, set()).add(label)
    return found


def everything_in(store):
    found = set()
    for entry in store.list_root():
        found |= set(store.list_below(f"{entry.name}/")) if entry.is_dir else {entry.name}
    return {key: store.read(key) for key in found}


# -- one table -----------------------------------------------------------------------------------


def test_appended_rows_come_on_top_and_may_repeat(store):
    create(store)
    done = append(store, ROWS, metadata={"owner": "me"})
    assert (done["files"], done["rows"], done["removed"]) == (2, 3, 0)
    assert rows_of(store) == in_order(ROWS, ROWS)
    assert index_of(store, "s") == values_of(store, "s")
    assert builders.read_document(store, "d")["metadata"]["owner"] == "me"


def test_the_partitions_that_occur_are_replaced_and_no_others(store):
    create(store)
    append(store, ROWS)
    new = pa.table({"p": ["b", "c"], "x": [7, 8], "s": ["n", "k"]})
    done = replace(store, new)
    assert (done["files"], done["removed"]) == (2, 2)
    kept = ROWS.slice(0, 2)
    assert rows_of(store) == in_order(kept, kept, new)
    assert index_of(store, "s") == values_of(store, "s")


def test_a_dataset_without_partition_columns_is_replaced_as_a_whole(store):
    create(store, partition_on=())
    replace(store, ROWS.slice(0, 1))
    assert rows_of(store) == in_order(ROWS.slice(0, 1))


def test_replacing_by_no_rows_is_refused(store):
    create(store)
    before = everything_in(store)
    for empty in (ROWS.slice(0, 0), iter([ROWS.slice(0, 0)])):
        with pytest.raises(UsageError, match="no rows") as e:
            replace(store, empty)
        assert e.value.code == "invalid-data"
    assert everything_in(store) == before


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.1, float("inf"), -0.0]),
        pa.array([True, False, True]),
        pa.array([1, 2**62, -1]),
        pa.array(["a/b", "=%", ""]),
        pa.array([0, 1, 2], pa.date32()),
        pa.array([0, 1, 86_400_000_000], pa.timestamp("us")),
    ],
    ids=lambda v: str(v.type),
)
def test_partitions_of_any_type_are_found_again(local, values):
    rows = pa.table({"p": values, "x": [1, 2, 3]})
    create(local, rows, index_columns=())
    replace(local, rows.set_column(1, "x", pa.array([4, 5, 6])))
    assert sorted(int(r[r.rindex("'x', ") + 5]) for r in rows_of(local)) == [4, 5, 6]


def test_partitions_are_deleted(store):
    create(store)

    def select(table):
        return [label for label in table.labels if label.startswith("p=a/")]

    done = datasets.delete_from_dataset(Operation(store, "t"), "d", Removal(frozenset("p"), select))
    assert done["removed"] == 1
    assert rows_of(store) == in_order(ROWS.slice(2))
    datasets.delete_from_dataset(Operation(store, "t"), "d", Removal())
    assert rows_of(store) == []
    assert index_of(store, "s") == {}


def test_a_deleted_dataset_leaves_no_file_and_its_neighbour_alone(store):
    create(store)
    create(store, uuid="d2")
    before = {k for k in everything_in(store) if k.startswith(("d2", ".kartosql/history/d2/"))}
    assert datasets.delete_dataset(Operation(store, "t"), "d")["files"] == 2
    assert set(everything_in(store)) == before


def test_msgpack_documents_stay_msgpack(store):
    create(store, format="msgpack")
    append(store, ROWS)
    assert rows_of(store) == in_order(ROWS, ROWS)
    assert [e.name for e in store.list_root() if not e.is_dir] == ["d.by-dataset-metadata.msgpack.zstd"]


def test_overwriting_may_change_the_schema(store):
    create(store)
    new = pa.table({"q": [1, 2], "x": ["a", "b"]})
    create(store, new, partition_on="q", index_columns="x", overwrite=True)
    assert rows_of(store) == in_order(new)
    assert index_of(store, "x") == values_of(store, "x")


BAD = {
    "exists": (lambda s: create(s), "dataset-exists"),
    "format": (lambda s: create(s, uuid="e", format="xml"), "invalid-argument"),
    "name": (lambda s: create(s, uuid="a.b"), "invalid-argument"),
    "no tables": (lambda s: create(s, {}, uuid="e"), "invalid-data"),
    "index column": (lambda s: create(s, uuid="e", index_columns="zz"), "invalid-data"),
    "unknown": (lambda s: append(s, ROWS, "zz"), "unknown-table"),
    "no name": (lambda s: append(s, ROWS, 3), "unknown-table"),
    "type": (lambda s: append(s, ROWS.set_column(1, "x", pa.array(["1"] * 3))), "incompatible-schema"),
    "missing": (lambda s: append(s, ROWS.drop_columns(["x"])), "incompatible-schema"),
    "extra": (lambda s: append(s, ROWS.append_column("k", ROWS["x"])), "incompatible-schema"),
    "null": (lambda s: append(s, ROWS.set_column(0, "p", pa.array([None, "a", "b"]))), "null-in-key"),
    "long": (lambda s: append(s, ROWS.set_column(0, "p", pa.array(["ä" * 50, "a", "b"]))), "invalid-data"),
    "other table": (lambda s: append(s, {"t": ROWS}), "invalid-data"),
    "delete": (lambda s: datasets.delete_dataset(Operation(s, "t"), "zz"), "unknown-table"),
}


@pytest.mark.parametrize(("call", "code"), BAD.values(), ids=BAD)
def test_bad_calls_leave_nothing_behind(store, call, code):
    create(store)
    before = everything_in(store)
    with pytest.raises(KartosqlError) as e:
        call(store)
    assert e.value.code == code
    assert everything_in(store) == before


def test_any_text_is_a_partition_value(local):
    values = ["", "..", ".", "a/../b", "../..", "/etc/passwd", "//", "...", "./x", "\0", "\1", "x\ny", "\x7f"]
    values += ["a b", " ", "a=b", "q=..", "a:b", "a/b", "a+b", "a%41", "%2F", "%2e%2e", "%00", "é", "e\u0301", "日本"]
    values += ["'", '"', "\\", "*", "?", "[a]", "{a,b}", "#", "&", "~", "file://x", "s3://b/k", "\u202e", "\U0001f600"]
    values += ["None", "nan", "null", "NULL", "__HIVE_DEFAULT_PARTITION__", "True", "01", "1", "1.0", "2020-01-01"]
    data = pa.table({"p": values, "x": range(len(values)), "s": values})
    with kartosql.connect(local.url) as con:
        con.create_dataset("d", data, partition_on="p", index_columns="s")
        con.append_to_dataset("d", data)
        con.compact("d")
        assert sorted(con.sql("SELECT p, s, count(*) FROM d GROUP BY ALL").rows()) == sorted((v, v, 2) for v in values)
        for value in values:
            assert con.sql("SELECT DISTINCT s FROM d WHERE p = ?", [value]).rows() == [(value,)]
            con.delete_from_dataset("d", [("p", "==", value)])
        assert con.sql("SELECT count(*) FROM d").rows() == [(0,)]


@pytest.mark.parametrize("name", ["indices", "a/b", ".commit", "..", "", "a\0", "x" * 300])
def test_a_table_needs_a_name_that_is_free(local, name):
    with pytest.raises(UsageError, match="no legal table name"):
        create(local, {name: ROWS})
    assert everything_in(local) == {}


def test_a_replacement_does_not_take_rows_that_it_did_not_see(store):
    create(store)
    late = Operation(store, "replace_partitions")
    datasets.find_dataset(late, "d")
    append(store, ROWS.slice(0, 1))
    before = everything_in(store)
    with pytest.raises(ConcurrentCommit):
        datasets.append_to_dataset(late, "d", ROWS, replace_partitions=True)
    assert everything_in(store) == before


def test_replacements_of_different_partitions_that_began_together_are_both_there(store):
    create(store)
    late = Operation(store, "replace_partitions")
    datasets.find_dataset(late, "d")
    a, b = (pa.table({"p": [p], "x": [9], "s": ["n"]}) for p in "ab")
    replace(store, a)
    datasets.append_to_dataset(late, "d", b, replace_partitions=True)
    assert rows_of(store) == in_order(a, b)
    assert index_of(store, "s") == values_of(store, "s")


# -- several tables --------------------------------------------------------------------------------


def test_tables_share_their_partitions(store):
    done = create(store, {"one": ONE, "two": TWO}, index_columns=["x", "w"])
    assert done["rows"] == 4
    partitions = builders.read_document(store, "d")["partitions"]
    assert [label.split("/")[0] for label in partitions] == ["p=a", "p=b", "p=c"]
    assert all(set(entry["files"]) == {"one", "two"} for entry in partitions.values())
    assert rows_of(store, table="one") == in_order(ONE)
    assert rows_of(store, table="two") == in_order(TWO)
    for column in ("x", "w"):
        assert index_of(store, column) == values_of(store, column)


def test_tables_are_appended_to_and_replaced_together(store):
    create(store, {"one": ONE, "two": TWO}, index_columns="x")
    append(store, {"two": TWO, "one": ONE})
    assert rows_of(store, table="one") == in_order(ONE, ONE)
    new = pa.table({"p": ["b"], "x": [5], "v": [50]})
    replace(store, {"one": new, "two": TWO.slice(0, 0)})
    assert rows_of(store, table="one") == in_order(ONE.slice(0, 1), ONE.slice(0, 1), new)
    assert rows_of(store, table="two") == in_order(TWO.slice(1), TWO.slice(1))
    assert index_of(store, "x") == values_of(store, "x")


def test_every_table_of_a_dataset_is_needed(store):
    create(store, {"one": ONE, "two": TWO}, index_columns=())
    before = everything_in(store)
    with pytest.raises(UsageError, match="of the tables one, but it has one, two"):
        append(store, {"one": ONE})
    assert everything_in(store) == before


def test_tables_agree_on_the_types_of_columns_they_share(store):
    with pytest.raises(UsageError, match="'x' is VARCHAR in 'two', but BIGINT in 'one'"):
        create(store, {"one": ONE, "two": TWO.set_column(1, "x", pa.array(["2", "3"]))})
    assert everything_in(store) == {}


def test_a_table_may_have_any_name(store):
    create(store, table="facts")
    append(store, ROWS)
    assert rows_of(store, table="facts") == in_order(ROWS, ROWS)


# -- datasets of cubes -----------------------------------------------------------------------------

CUBE = Cube("c", "x", "p")
SEED = pa.table({"x": [1, 2], "p": ["a", "b"], "v": [1, 2]})


def test_datasets_of_cubes_keep_the_rules_of_the_cube(store):
    build_cube(store, CUBE, {"seed": SEED})
    with pytest.raises(UsageError) as e:
        append(store, pa.concat_tables([SEED, SEED]), "c.seed")
    assert e.value.code == "duplicate-cells"
    new = pa.table({"x": [7], "p": ["a"], "v": [1]})
    assert replace(store, new, "c.seed")["removed"] == 1
    assert rows_of(store, "c++seed") == in_order(SEED.slice(1), new)
    assert append(store, SEED, "c++seed")["files"] == 2
    assert Snapshot(store).cube("c").cube == CUBE


def test_a_plain_dataset_does_not_slip_into_a_cube(store):
    build_cube(store, CUBE, {"seed": SEED})
    with pytest.raises(UsageError, match="extend_cube") as e:
        create(store, uuid="c++d")
    assert e.value.code == "invalid-cube"


def test_everything_is_selected_in_order(store):
    create(store)
    table = Snapshot(store).dataset("d").tables["table"]
    assert everything(table) == table.labels


@pytest.mark.parametrize("call", ["append_to_dataset", "replace_partitions"])
@pytest.mark.parametrize("lacking", ["p", "x"])
def test_data_without_a_column_of_the_dataset_are_refused(tmp_path, call, lacking):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"p": [1], "x": [1]}), partition_on=["p"])
        with pytest.raises(kartosql.KartosqlError, match=f"'{lacking}' is missing") as caught:
            getattr(con, call)("d", pa.table({"p": [1], "x": [2]}).drop_columns([lacking]))
        assert caught.value.code == "incompatible-schema"
        assert con.sql("SELECT p, x FROM d").rows() == [(1, 1)]


def test_a_folder_of_other_files_does_not_become_a_dataset(tmp_path):
    files = [tmp_path / "sales" / "year=2024" / "a.parquet", tmp_path / "flat" / "b.parquet"]
    for path in files:
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), path)
    with (
        kartosql.connect(tmp_path, read_only=False) as con,
        kartosql.connect("memory://other", read_only=False) as other,
    ):
        other.create_dataset("sales", {"x": [2]})
        for call in (
            lambda: con.create_dataset("flat", {"x": [2]}),
            lambda: con.sql("CREATE OR REPLACE DATASET sales AS SELECT 2 AS x"),
            lambda: other.copy_dataset("sales", con),
        ):
            with pytest.raises(UsageError, match="belong to no dataset") as e:
                call()
            assert e.value.code == "target-taken"
        assert con.datasets() == []
        assert con.sql("SELECT x, year FROM sales").rows() == [(1, 2024)]
        # What a write that did not end has left is no obstacle.
        (tmp_path / "d" / "table" / "p=1").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / "d" / "table" / "p=1" / "c.parquet")
        (tmp_path / "d" / ".commit").mkdir()
        (tmp_path / "d" / ".commit" / "x").write_text("")
        con.create_dataset("d", {"x": [2]})
        assert con.sql("FROM d").rows() == [(2,)]
