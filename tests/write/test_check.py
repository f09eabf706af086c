from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql import Cube
from kartosql.errors import UsageError
from kartosql.formats.kartothek.versions import read_entries
from kartosql.write.commit import commit
from write.rivals import adding

CUBE = Cube("c", "x", "p", index_columns="i")


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        yield con


@pytest.fixture
def cube(con):
    con.build_cube(
        CUBE,
        {
            "seed": pa.table({"x": [1, 2, 3], "p": ["a", "a", "b"], "i": ["u", "v", "v"], "v": [1, 2, 3]}),
            "en": pa.table({"x": [1, 2], "p": ["a", "a"], "w": [0.5, float("inf")]}),
        },
    )
    return con


def problems(con, table="c", **options):
    return [(f.dataset, f.check, f.severity, f.repairable) for f in con.check(table, **options)]


def first_file(con, uuid="c++seed"):
    document = builders.read_document(con.store, uuid)
    return next(iter(document["partitions"].values()))["files"]["table"]


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_found_in_a_sound_cube(cube, full):
    assert cube.check("c", full=full) == []
    assert cube.check(CUBE, full=full) == []
    assert cube.check("c.en", full=full) == []


@pytest.mark.parametrize("number", range(11))
def test_nothing_worse_than_facts_is_found_in_golden_cubes(copy_of, number, ktk_store):
    prefix = sorted({p.name.split("++")[0] for p in ktk_store.iterdir() if "++" in p.name})[number]
    with kartosql.connect(copy_of(f"{prefix}++")) as con:
        found = con.check(prefix, full=True)
        assert [f for f in found if f.severity != "info"] == []


def test_a_missing_file_is_named(cube):
    key = first_file(cube)
    cube.store.delete([key])
    (found,) = cube.check("c")
    assert (found.dataset, found.check, found.severity, found.key, found.repairable) == (
        "seed",
        "missing-file",
        "error",
        key,
        False,
    )


def test_a_torn_file_is_named(cube):
    key = first_file(cube)
    cube.store.put(key, cube.store.read(key)[:-20])
    assert problems(cube) == [("seed", "corrupt-file", "error", False)]


def test_only_a_full_check_finds_a_page_that_rotted(con):
    con.create_dataset("d", pa.table({"x": list(range(1000)), "t": [f"text {n}" for n in range(1000)]}))
    key = first_file(con, "d")
    data = bytearray(con.store.read(key))
    data[len(data) // 4] ^= 0xFF
    con.store.put(key, bytes(data))
    assert problems(con, "d") == []
    assert problems(con, "d", full=True) == [("d", "corrupt-file", "error", False)]


def test_a_full_check_reads_files_that_only_earlier_versions_have(con):
    con.create_dataset("d", pa.table({"x": list(range(1000))}), index_columns=["x"])
    key = first_file(con, "d")
    con.sql("DELETE FROM d WHERE x = 5")
    assert con.check("d", full=True) == con.check("d")
    data = bytearray(con.store.read(key))
    data[len(data) // 4] ^= 0xFF
    con.store.put(key, bytes(data))
    assert problems(con, "d") == []
    assert problems(con, "d", full=True) == [("d", "versions", "error", False)]
    (found,) = [f for f in con.check("d", full=True) if f.check == "versions"]
    assert found.key == key
    con.store.delete([key])
    assert problems(con, "d", full=True) == []


def test_only_a_full_check_compares_what_footers_say_with_rows(con):
    con.create_dataset("d", pa.table({"t": ["aaaa", "bbbb", "cccc"], "x": [1, 2, 3]}))
    key = first_file(con, "d")
    builders.change_footer(con.store, key, b"aaaa", b"bbbb")
    assert con.sql("SELECT x FROM d WHERE t = 'aaaa'").rows() == []  # as any engine has it
    assert problems(con, "d") == []
    (found,) = con.check("d", full=True)
    assert (found.check, found.severity, found.key, found.repairable) == ("statistics", "error", key, False)
    assert "'t'" in found.message


def test_a_full_check_compares_footers_of_earlier_versions(con):
    con.create_dataset("d", pa.table({"t": ["aaaa", "bbbb", "cccc"], "x": [1, 2, 3]}))
    key = first_file(con, "d")
    con.sql("DELETE FROM d WHERE x = 2")
    builders.change_footer(con.store, key, b"cccc", b"bbbb")
    assert problems(con, "d", full=True) == [("d", "versions", "error", False)]


def test_an_index_whose_footer_leaves_out_values_is_built_again(con):
    con.create_dataset("d", pa.table({"t": ["aaaa", "bbbb", "cccc"], "x": [1, 2, 3]}), index_columns=["t"])
    key = next(iter(con.store.list_below("d/indices/")))
    builders.change_footer(con.store, key, b"cccc", b"bbbb")
    assert problems(con, "d") == []
    assert problems(con, "d", full=True) == [("d", "index", "error", True)]
    con.check("d", full=True, repair=True)
    assert problems(con, "d", full=True) == [("d", "versions", "error", False)]  # which have the former index
    assert con.sql("SELECT x FROM d WHERE t = 'cccc'").rows() == [(3,)]


def test_a_time_of_the_last_commit_that_is_not_that_of_the_history_is_named(con):
    con.create_dataset("d", pa.table({"x": [1]}))
    con.append_to_dataset("d", pa.table({"x": [2]}))
    document = builders.read_document(con.store, "d")
    text = json.dumps(document)
    (_, entry) = read_entries(con.store, "d")
    assert entry.time in text
    builders.write_document(con.store, json.loads(text.replace(entry.time, entry.time.replace("20", "21", 1))))
    assert ("d", "versions", "error", False) in problems(con, "d")


def test_a_file_of_another_schema_is_named(cube):
    key = first_file(cube)
    cube.store.put(key, builders.parquet({"x": ["text"], "i": ["u"]}))
    found = cube.check("c")
    assert [(f.check, f.key) for f in found] == [("schema", key), ("schema", key)]
    assert ["'v' is missing" in f.message or "'x' is VARCHAR" in f.message for f in found] == [True, True]


def test_a_partition_value_that_does_not_parse_is_named(con):
    con.create_dataset("d", pa.table({"x": [1], "p": [7]}), partition_on="p")
    document = builders.read_document(con.store, "d")
    label, entry = next(iter(document["partitions"].items()))
    key = "d/table/p=seven/f.parquet"
    con.store.put(key, con.store.read(entry["files"]["table"]))
    document["partitions"]["other"] = {"files": {"table": key}}
    builders.write_document(con.store, document)
    found = con.check("d")
    assert [(f.check, f.key) for f in found if f.severity == "error"] == [("partition-value", key)]
    assert label


@pytest.mark.parametrize(
    ("rows", "lacks", "has"),
    [
        ([("u", ["A"]), ("v", ["A"])], 1, 0),
        ([("u", ["A", "B"]), ("v", ["A", "B"])], 0, 1),
        ([("u", ["A"]), ("v", ["A", "B"]), ("zz", ["nowhere"])], 0, 1),
        ([("v", ["B", "A"]), ("u", ["B"])], 1, 1),
    ],
)
def test_an_index_that_says_something_else_than_the_data_is_found(cube, rows, lacks, has):
    document = builders.read_document(cube.store, "c++seed")
    names = dict(zip("AB", document["partitions"], strict=True))
    table = pa.table({"i": [v for v, _ in rows], "partition": [[names.get(n, n) for n in found] for _, found in rows]})
    cube.store.put(document["indices"]["i"], builders.parquet(table))
    (found,) = cube.check("c")
    assert (found.check, found.key, found.repairable) == ("index", document["indices"]["i"], True)
    assert f"lacks {lacks} " in found.message
    assert f"has {has} " in found.message


@pytest.mark.parametrize("data", [None, b"torn", builders.parquet({"other": [1]})])
def test_an_index_that_cannot_be_read_is_found(cube, data):
    key = builders.read_document(cube.store, "c++seed")["indices"]["i"]
    if data is None:
        cube.store.delete([key])
    else:
        cube.store.put(key, data)
    assert problems(cube) == [("seed", "index", "error", True)]


def test_cells_twice_in_a_file_and_overwritten_ones_are_told(cube):
    cube.append_to_cube("c", {"seed": pa.table({"x": [1, 4], "p": ["a", "a"], "i": ["u", "u"], "v": [7, 8]})})
    assert [(f.check, f.severity, f.message) for f in cube.check("c") if f.check != "orphans"] == [
        ("overlays", "info", "1 rows were overwritten by later files; COMPACT drops them")
    ]
    key = first_file(cube)
    rows = builders.read_parquet(cube.store, key)
    cube.store.put(key, builders.parquet(pa.concat_tables([rows, rows.slice(0, 1)])))
    found = {f.check: f for f in cube.check("c")}
    assert found["duplicate-cells"].key == key
    assert "1 rows" in found["duplicate-cells"].message
    cube.create_dataset("d", pa.table({"x": [1, 1]}))
    assert cube.check("d") == []


def test_files_that_belong_to_nothing_are_counted(cube):
    cube.store.put("c++seed/table/p=a/old.parquet", b"x" * 1234)
    cube.store.put("c++lost/table/p=a/old.parquet", b"x")
    found = cube.check("c")
    assert [(f.dataset, f.check, f.severity) for f in found] == [
        ("lost", "metadata", "warning"),
        ("lost", "orphans", "info"),
        ("seed", "orphans", "info"),
    ]
    assert "1 files of 1,234 bytes" in found[2].message


@pytest.mark.parametrize(
    ("key", "data", "check"),
    [
        ("c++seed.by-dataset-metadata.json", b"{torn", "metadata"),
        ("c++seed/table/_common_metadata", b"torn", "schema"),
        ("c++seed/table/_common_metadata", None, "schema"),
        ("c++seed/.commit/garbage.json", b"torn", "orphans"),
    ],
)
def test_metadata_that_cannot_be_read_are_findings(cube, key, data, check):
    if data is None:
        cube.store.delete([key])
    else:
        cube.store.put(key, data)
    found = cube.check("c")
    assert check in {f.check for f in found if f.severity == "error"}
    assert any(f.dataset == "seed" and f.check == check for f in found)


def test_a_schema_file_that_says_something_else_than_the_document_is_a_finding(cube):
    cube.store.put("c++seed/table/_common_metadata", builders.schema_bytes({"x": pa.int64(), "other": pa.string()}))
    found = [f for f in cube.check("c") if f.severity == "error"]
    assert [(f.check, f.key) for f in found] == [("schema", "c++seed/table/_common_metadata")]


def test_a_cube_that_is_none_is_a_finding(cube):
    document = builders.read_document(cube.store, "c++seed")
    document["metadata"]["ktk_cube_is_seed"] = False
    builders.write_document(cube.store, document)
    found = cube.check("c")
    assert [(f.dataset, f.check, f.severity) for f in found if f.check == "cube"] == [("c", "cube", "error")]


def test_a_foreign_write_and_what_it_dropped_are_told(local):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    stale = builders.read_document(local, "d")
    done = commit(local, adding(local, "d", {2: "b"}))
    stale["partitions"] = {}
    stale.pop("indices")
    builders.write_document(local, stale)
    with kartosql.connect(local.url) as con:
        found = {f.check: f for f in con.check("d")}
    assert set(found) == {"foreign-write", "lost-commit"}
    assert done.id in found["lost-commit"].message
    assert found["lost-commit"].repairable
    assert found["foreign-write"].severity == "warning"


def test_a_lost_commit_whose_files_are_gone_cannot_be_repaired(local):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    stale = builders.read_document(local, "d")
    change = adding(local, "d", {2: "b"})
    commit(local, change)
    builders.write_document(local, stale)
    local.delete([next(iter(change.added.values()))["table"]])
    with kartosql.connect(local.url) as con:
        (found,) = [f for f in con.check("d") if f.check == "lost-commit"]
    assert not found.repairable
    assert "is gone" in found.message


def test_a_change_of_several_datasets_that_stands_still_is_told(cube):
    document = builders.read_document(cube.store, "c++en")
    document["metadata"]["kartosql_intent"] = {
        "tx": "t",
        "seed": "c++seed",
        "kind": "delete",
        "time": dt.datetime.now(dt.timezone.utc).isoformat(),
    }
    builders.write_document(cube.store, document)
    assert problems(cube) == [("en", "transaction", "warning", True)]
    assert [f.repaired for f in cube.check("c", repair=True)] == [True]
    assert cube.check("c") == []


def test_several_tables_and_datasets_whose_files_are_listed(con):
    con.create_dataset("d", {"t": pa.table({"x": [1]}), "u": pa.table({"y": [1]})}, index_columns="x")
    assert con.check("d", full=True) == []
    builders.write_dataset(con.store, "e", {"x": pa.int64()}, partitions=...)
    con.store.put("e/table/f.parquet", builders.parquet({"x": [1]}))
    assert con.check("e") == []


def test_names_that_are_none(con):
    with pytest.raises(UsageError) as e:
        con.check("nope")
    assert e.value.code == "unknown-table"
    with pytest.raises(UsageError):
        con.check(3)


def test_a_connection_that_may_not_write_can_check_but_not_repair(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"x": [1]}))
    with kartosql.connect(tmp_path, read_only=True) as con:
        assert con.check("d") == []
        with pytest.raises(UsageError) as e:
            con.check("d", repair=True)
        assert e.value.code == "read-only"


def test_the_statement_tells_the_same(cube):
    key = first_file(cube)
    cube.store.delete([key])
    (row,) = cube.sql("CHECK c FULL").arrow().to_pylist()
    assert (row["dataset"], row["check"], row["key"]) == ("seed", "missing-file", key)
    assert json.dumps(row)
