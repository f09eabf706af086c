"""Tables of all sources answer the same questions, so that what reads them need not ask where they are from."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.tables.table import Changelog, FileTable, Overlay, Plain, Table

MEMBERS = [name for name in vars(FileTable) if not name.startswith("_")]


@pytest.fixture
def con(tmp_path: Path):
    rows = pa.table({"x": [1, 1, 2], "p": ["a", "b", "b"], "v": [1.0, 2.0, None]})
    for name in ("store", "other"):
        (tmp_path / name).mkdir()
        with kartosql.connect(tmp_path / name) as made:
            made.create_dataset("plain", rows, partition_on="p", index_columns="x")
            cube = kartosql.Cube("cube", "x", "p", seed_dataset="seed")
            made.build_cube(cube, rows)
    for part, more in (("a", {}), ("b", {"v": [5.0, 6.0]})):
        (tmp_path / "folder" / f"p={part}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1, 2], **more}), tmp_path / "folder" / f"p={part}" / "f.parquet")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("x,v\n1,2\n")
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(tmp_path / "other", "other", type="kartothek")
        con.attach(tmp_path / "folder", "folder")
        con.attach(tmp_path / "texts", "texts", type="csv")
        con.register("data", rows)
        yield con


def table(con, *name: str) -> Table:
    return con.tables().find(name)


def test_tables_of_all_sources_answer_what_readers_ask(con):
    names = [("plain",), ("cube",), ("cube", "seed"), ("other", "plain"), ("other", "cube"), ("folder",), ("texts",)]
    for name in names:
        for part in table(con, *name).parts:
            found = part.table
            for member in MEMBERS:
                assert hasattr(found, member), (name, member)
            assert found.all_files == frozenset(range(len(found.files))), name
            assert len(found.labels) == len(found.files) == len(found.partitions.part_of_file), name
            assert len(found.writes) == len(found.files), name
            assert found.partitions.keys == found.partition_keys, name
            assert [f for v in found.variants(sorted(found.all_files)) for f in v.files] == sorted(found.all_files), (
                name
            )
            assert set(part.columns) <= set(found.types), name


def test_the_rule_of_the_rows_says_which_of_them_count(con):
    rules = {n: table(con, *n.split(".")).parts[0].rows for n in ("plain", "cube", "cube.seed", "other.cube", "folder")}
    assert rules.pop("plain") == rules.pop("folder") == Plain()
    assert set(rules.values()) == {Overlay(("x", "p"), frozenset({"x"}))}
    assert table(con, "cube").parts[0].join_key == ("x", "p")
    assert table(con, "plain").parts[0].join_key == ()
    assert Changelog("offset", "op", (), ("x", "v")).stable == {"x", "v"}
    assert Changelog("offset", "op", ("x",), ("x", "v")).stable == {"x"}


def test_what_can_be_done_with_a_table_does_not_follow_from_its_keys(con):
    names = ["plain", "cube", "other.plain", "folder", "texts", "data"]
    found = {n: table(con, *n.split(".")) for n in names}
    assert [n for n in names if found[n].is_attached] == ["other.plain", "folder", "texts"]
    assert [n for n in names if found[n].data is not None] == ["data"]
    assert [n for n in names if found[n].cube is not None] == ["cube"]


def test_one_file_of_a_table_has_its_own_values_and_columns(con):
    """Each of the others would do for the first file only."""
    for name in ("plain", "folder"):
        whole = table(con, name).parts[0].table
        for file in whole.all_files:
            one = whole.only(file)
            assert one.files == (whole.files[file],)
            assert one.all_files == {0}
            assert one.partitions.comparable(0, [0]) == whole.partitions.comparable(file, [0])
            assert [v.types for v in one.variants([0])] == [v.types for v in whole.variants([file])]
