from __future__ import annotations

import random
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
import kartosql
from kartosql import Cube
from kartosql.errors import ConcurrentCommit, FormatError, KartosqlError, KartosqlWarning, UsageError
from kartosql.store import Store
from kartosql.write.compact import compact
from kartosql.write.files import WriteOptions
from kartosql.write.layout import SpillingSorter
from kartosql.write.operation import Operation

CUBE = Cube("c", ["x", "y"], ["p"], index_columns="i")


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        yield con


def rows_of(con, table="c"):
    return con.sql(f"SELECT * FROM {table} ORDER BY ALL").rows()


def labels(con, dataset):
    return list(builders.read_document(con.store, dataset)["partitions"])


def files(con, dataset):
    return [e["files"]["table"] for e in builders.read_document(con.store, dataset)["partitions"].values()]


def check_index(con, dataset, column):
    """Check that an index tells of each value exactly the partitions whose files hold it."""
    document = builders.read_document(con.store, dataset)
    stored = builders.read_parquet(con.store, document["indices"][column]).to_pylist()
    real: dict[object, set[str]] = {}
    for label, entry in document["partitions"].items():
        for value in builders.read_parquet(con.store, entry["files"]["table"])[column].to_pylist():
            if value is not None:
                real.setdefault(value, set()).add(label)
    assert {r[column]: set(r["partition"]) for r in stored} == real


def seed(rng, count, value):
    cells = rng.sample([(x, y, p) for x in range(6) for y in range(3) for p in ("a", "b")], count)
    return pa.table(
        {
            "x": [c[0] for c in cells],
            "y": [c[1] for c in cells],
            "p": [c[2] for c in cells],
            "i": [rng.choice(["u", "v", "w", None]) if value else "u" for _ in cells],
            "v": pa.array([value * 1000 + n for n in range(count)], rng.choice([pa.int32(), pa.int64()])),
        }
    )


def enrichment(rng, count, value):
    cells = rng.sample([(x, q) for x in range(6) for q in (1, 2, 3)], count)
    seen: dict[int, int] = {}
    for x, q in cells:
        seen.setdefault(x, q)  # a cell once per write, in whichever partition
    return pa.table(
        {
            "x": list(seen),
            "q": list(seen.values()),
            "w": pa.array([None if rng.random() < 0.2 else value + x / 8 for x in seen], pa.float64()),
        }
    )


def overlaid(con, rng, writes):
    """Build a cube whose files overlay each other; ``en`` is partitioned by a column that tells no cells apart."""
    first = seed(rng, 20, 0)
    con.build_cube(CUBE, {"seed": first, "en": enrichment(rng, 6, 0)}, partition_on={"en": "q"})
    for n in range(1, writes):
        data = {"seed": seed(rng, rng.randint(1, 12), n).cast(first.schema.set(4, pa.field("v", pa.int64())))}
        data["seed"] = data["seed"].set_column(
            3, "i", pa.array(["u" if v is None else v for v in data["seed"]["i"].to_pylist()])
        )
        if rng.random() < 0.7:
            data["en"] = enrichment(rng, rng.randint(1, 8), n)
        con.append_to_cube(CUBE, data)


@pytest.mark.parametrize("number", range(6))
def test_answers_are_the_same_before_and_after(con, number):
    rng = random.Random(number)
    overlaid(con, rng, 8)
    queries = ["c", "c.seed", "c.en"]
    before = [rows_of(con, q) for q in queries]
    filtered = "SELECT * FROM c WHERE v < 3005 AND i = 'u' ORDER BY ALL"
    before.append(con.sql(filtered).rows())
    count = len(files(con, "c++seed"))
    report = con.compact("c", target_bytes=rng.choice([9000, 128_000_000]))
    assert [rows_of(con, q) for q in queries] + [con.sql(filtered).rows()] == before
    assert len(files(con, "c++seed")) < count
    assert report["seed"]["removed"] - report["seed"]["files"] == count - len(files(con, "c++seed"))
    assert set(report) == {"seed", "en"}
    for column in ("x", "y", "i"):
        check_index(con, "c++seed", column)
    con.compact(CUBE)
    assert [rows_of(con, q) for q in queries] + [con.sql(filtered).rows()] == before
    again = con.compact("c")
    assert all(r["files"] == r["removed"] == 0 and r["sequence"] is None for r in again.values())


def test_one_file_per_partition_is_left_with_each_cell_once_and_sorted(con):
    rng = random.Random(1)
    overlaid(con, rng, 6)
    con.compact("c", "seed")
    assert [label.rpartition("/")[0] for label in sorted(labels(con, "c++seed"))] == ["p=a", "p=b"]
    for key in files(con, "c++seed"):
        found = builders.read_parquet(con.store, key)
        cells = list(zip(found["x"].to_pylist(), found["y"].to_pylist(), strict=True))
        assert cells == sorted(set(cells))
        assert pq.ParquetFile(pa.BufferReader(con.store.read(key))).metadata.row_group(0).sorting_columns
    assert len({key.rpartition("/")[2] for key in files(con, "c++seed")}) == 2


def test_a_file_of_another_partition_in_between_that_may_hold_the_same_cells_ends_a_run(con):
    cube = Cube("c", "x", "p")
    con.build_cube(
        cube,
        {
            "seed": pa.table({"x": [1, 2], "p": [0, 0], "v": [1, 1]}),
            "en": pa.table({"x": [1, 2], "q": [1, 1], "w": [1, 1]}),
        },
        partition_on={"en": "q"},
    )
    con.append_to_cube(cube, {"en": pa.table({"x": [1], "q": [2], "w": [2]})})
    con.append_to_cube(cube, {"en": pa.table({"x": [2], "q": [1], "w": [3]})})
    before = rows_of(con)
    assert con.compact("c.en")["files"] == 0
    con.append_to_cube(cube, {"en": pa.table({"x": [7], "q": [1], "w": [4]})})
    report = con.compact("c.en")
    assert (report["files"], report["removed"]) == (1, 2)
    assert [label.split("/")[0] for label in labels(con, "c++en")] == ["q=1", "q=2", "q=1"]
    assert rows_of(con) == before


def test_the_new_file_takes_the_place_of_the_last_one(con):
    rng = random.Random(2)
    overlaid(con, rng, 5)
    last = {p: [label for label in labels(con, "c++seed") if label.startswith(f"p={p}/")][-1] for p in "ab"}
    places = sorted("ab", key=lambda p: labels(con, "c++seed").index(last[p]))
    con.compact("c")
    assert [label[2] for label in labels(con, "c++seed")] == places


def test_rows_of_a_plain_dataset_stay_all_and_in_their_order(con):
    for n in range(4):
        rows = pa.table({"k": [1, 1, 2], "p": ["a/b", "a/b", "c"], "v": [n, n, None]})
        con.create_dataset("d", rows, partition_on="p", index_columns="k") if not n else con.append_to_dataset(
            "d", rows
        )
    before = rows_of(con, "d")
    report = con.compact("d")
    assert (report["files"], report["removed"], report["rows"]) == (2, 8, 12)
    assert rows_of(con, "d") == before
    check_index(con, "d", "k")
    (key,) = [k for k in files(con, "d") if "a%2Fb" in k]
    assert builders.read_parquet(con.store, key)["v"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_datasets_of_several_tables_and_without_partitions(con):
    for n in range(3):
        rows = {"t": pa.table({"x": [n]}), "u": pa.table({"y": [n, n]})}
        con.create_dataset("d", rows) if not n else con.append_to_dataset("d", rows)
    before = [rows_of(con, "d.t"), rows_of(con, "d.u")]
    assert con.compact("d")["files"] == 2
    assert [rows_of(con, "d.t"), rows_of(con, "d.u")] == before
    assert len(labels(con, "d")) == 1


def test_types_of_files_that_differ_become_that_of_the_table(con):
    con.create_dataset(
        "d", pa.table({"v": pa.array([None, None], pa.null()), "w": pa.array([1], pa.int8()).take(pa.array([0, 0]))})
    )
    con.append_to_dataset("d", pa.table({"v": ["a"], "w": pa.array([2], pa.int64())}))
    before = rows_of(con, "d")
    con.compact("d")
    assert rows_of(con, "d") == before
    (key,) = files(con, "d")
    assert builders.read_parquet(con.store, key).schema.types == [pa.string(), pa.int64()]


def test_types_that_all_files_share_stay(con):
    schema = pa.schema([("v", pa.int8()), ("t", pa.timestamp("us"))])
    for n in range(2):
        rows = pa.table({"v": [n], "t": [n]}, schema=schema)
        con.create_dataset("d", rows) if not n else con.append_to_dataset("d", rows)
    con.compact("d")
    (key,) = files(con, "d")
    assert dict(
        zip(*[getattr(builders.read_parquet(con.store, key).schema, n) for n in ("names", "types")], strict=True)
    ) == {"v": pa.int8(), "t": pa.timestamp("us")}


def test_columns_that_only_the_files_know_are_dropped_and_missing_ones_are_named(con):
    con.create_dataset("d", pa.table({"v": [1]}))
    builders.append(con.store, "d", pa.table({"v": [2], "__index_level_0__": [9]}))
    before = rows_of(con, "d")
    with pytest.warns(KartosqlWarning):
        con.compact("d")
    assert rows_of(con, "d") == before
    (key,) = files(con, "d")
    assert builders.read_parquet(con.store, key).column_names == ["v"]
    builders.append(con.store, "d", pa.table({"w": [3]}))
    with pytest.raises(FormatError) as e:
        con.compact("d")
    assert (e.value.code, "'v' is missing" in e.value.message) == ("schema-mismatch", True)


@pytest.mark.parametrize("rows", [{"x": [5, 5], "v": [1, 2]}, {"x": [5, None], "v": [1, 2]}])
def test_files_that_break_the_rules_of_a_cube_are_left_alone(con, rows):
    cube = Cube("c", "x", "p", suppress_index_on="x")
    con.build_cube(cube, {"seed": pa.table({"x": [1, 2, 1], "p": [0, 0, 1], "v": [1, 2, 3]})})
    con.append_to_cube(cube, {"seed": pa.table({"x": [1, 1], "p": [0, 1], "v": [7, 8]})})
    tail = uuid.uuid4().hex
    builders.append(
        con.store,
        "c++seed",
        pa.table({**rows, "p": [0, 0]}, schema=pa.schema([("x", pa.int64()), ("v", pa.int64()), ("p", pa.int64())])),
        tail,
    )
    before = files(con, "c++seed")
    with pytest.warns(KartosqlWarning):
        report = con.compact("c")["seed"]
    assert (report["files"], report["removed"], report["skipped"]) == (1, 2, 3)
    assert [k for k in files(con, "c++seed") if "p=0" in k] == [k for k in before if "p=0" in k]


def test_more_rows_than_fit_into_memory_are_merged_by_the_sorter(con):
    count = 40_000
    rng = random.Random(3)
    cube = Cube("c", "x", "p", suppress_index_on="x")
    for n in range(3):
        xs = rng.sample(range(60_000), count)
        rows = pa.table({"x": xs, "p": [0] * count, "v": [n] * count, "t": [f"{x:0100d}" for x in xs]})
        con.build_cube(cube, {"seed": rows}) if not n else con.append_to_cube(cube, {"seed": rows})
    expected = rows_of(con)
    operation = Operation(con.store, "compact", options=WriteOptions(SpillingSorter(), 6_000_000))
    assert compact(operation, "c")["seed"]["files"] == 1
    assert rows_of(con) == expected


# -- others at the same time -------------------------------------------------------------------------------


class _During(Operation):
    """An operation in the middle of which somebody else acts, before its commit."""

    act = staticmethod(lambda: None)

    def commit(self, *args, **kwargs):
        self.act()
        return super().commit(*args, **kwargs)


def _during(con, act):
    operation = _During(Store(con.store.url), "compact")
    operation.act = act
    return operation


def test_an_append_meanwhile_comes_later_and_wins(con):
    overlaid(con, random.Random(4), 4)
    newer = pa.table({"x": [0], "y": [0], "p": ["a"], "i": ["z"], "v": [-1]})
    compact(_during(con, lambda: con.append_to_cube(CUBE, {"seed": newer})), "c")
    assert ("z", -1) in {
        (r[0], r[3]) for r in con.sql("SELECT i, p, q, v FROM c WHERE x = 0 AND y = 0 AND p = 'a'").rows()
    }
    assert labels(con, "c++seed")[-1].startswith("p=a/")
    check_index(con, "c++seed", "i")


@pytest.mark.parametrize("how", ["removed", "compacted", "replaced"])
def test_a_run_whose_files_went_meanwhile_is_a_conflict(con, how):
    overlaid(con, random.Random(5), 4)
    acts = {
        "removed": lambda: con.remove_partitions("c", [("p", "==", "a")]),
        "compacted": lambda: con.compact("c"),
        "replaced": lambda: con.replace_partitions(
            "c.seed", pa.table({"x": [0], "y": [0], "p": ["a"], "i": ["z"], "v": [-1]})
        ),
    }
    operation = _during(con, acts[how])
    with pytest.raises(ConcurrentCommit):
        compact(operation, "c", "seed")
    below = set(con.store.list_below("c++seed/"))
    con.compact("c", min_files=1000)
    after = rows_of(con)
    con.compact("c")
    assert rows_of(con) == after
    named = set(files(con, "c++seed"))
    assert {k for k in named if k.endswith(".parquet")} - below <= named


def test_nothing_is_left_of_a_compaction_that_fails(con):
    overlaid(con, random.Random(6), 4)
    key = [k for k in files(con, "c++seed") if "p=b" in k][-1]
    con.store.put(key, b"PAR1 torn")
    below = con.store.list_below("c++seed/")
    with pytest.raises(FormatError) as e:
        con.compact("c")
    assert (e.value.code, key in e.value.message) == ("corrupt-file", True)
    assert {k for k in con.store.list_below("c++seed/") if "/.commit/" not in k} == {
        k for k in below if "/.commit/" not in k
    }
    con.store.delete([key])
    with pytest.raises(FormatError) as e:
        con.compact("c")
    assert e.value.code == "missing-file"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda con: con.compact("nope"), "unknown-table"),
        (lambda con: con.compact("c", "nope"), "unknown-dataset"),
        (lambda con: con.compact("c", target_bytes=0), "invalid-argument"),
        (lambda con: con.compact("c", min_files=1), "invalid-argument"),
        (lambda con: con.compact("c", min_files="2"), "invalid-argument"),
        (lambda con: con.compact("implicit"), "implicit-partitions"),
    ],
)
def test_calls_that_make_no_sense(con, call, code):
    overlaid(con, random.Random(7), 2)
    builders.write_dataset(con.store, "implicit", {"x": pa.int64()}, partitions=...)
    with pytest.raises(KartosqlError) as e:
        call(con)
    assert e.value.code == code


def test_the_error_for_a_wrong_argument_is_a_usage_error(con):
    with pytest.raises(UsageError):
        con.compact("c", target_bytes=True)
