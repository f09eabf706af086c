"""Metadata of users: written with data or by ALTER DATASET, shown, and kept by whatever else is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlError, UsageError

GIVEN = {"owner": "Zoë", "unit": 5, "nested": {"a": [1, None, "é"]}, "none": None, "5": "5"}
SHOWN = [("5", "5"), ("nested", '{"a": [1, null, "é"]}'), ("none", "null"), ("owner", "Zoë"), ("unit", "5")]
ROWS = pa.table({"x": [1, 2], "p": [1, 2]})


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", ROWS, partition_on="p", metadata=GIVEN)
        seed = pa.table({"x": [1], "p": [1]})
        cube = kartosql.Cube("c", "x", "p")
        con.build_cube(cube, {"seed": seed, "e": seed.append_column("v", pa.array([7]))}, metadata={"e": GIVEN})
        yield con


def shown(con: kartosql.Connection, table: str) -> list[tuple[str, ...]]:
    of_kartothek = ("creation_time", "ktk_cube_")
    return [row for row in con.sql(f"SHOW METADATA FROM {table}").rows() if not row[-2].startswith(of_kartothek)]


def test_what_was_given_with_the_data_is_shown(con):
    assert con.sql("SHOW METADATA FROM d").columns == ["key", "value"]
    assert shown(con, "d") == shown(con, "c.e") == SHOWN
    assert con.sql("SHOW METADATA FROM c").columns == ["dataset", "key", "value"]
    assert shown(con, "c") == [("e", *row) for row in SHOWN]
    assert {k: v for k, v in con.metadata("d").items() if k in GIVEN} == GIVEN
    assert {name: found["ktk_cube_is_seed"] for name, found in con.metadata("c").items()} == {"seed": True, "e": False}
    assert con.metadata("c.e") == con.metadata("c++e") == con.metadata(con.cubes()["c"])["e"]


def test_what_kartosql_keeps_there_for_itself_is_hidden(con):
    con.create_skipping_index("d", minmax="x")
    assert {k for k in builders.read_document(con.store, "d")["metadata"] if k.startswith("kartosql_")}
    assert not [key for key in con.metadata("d") if key.startswith("kartosql_")]
    assert [key for key, _ in con.sql("SHOW METADATA FROM d").rows()] == sorted([*GIVEN, "creation_time"])


def test_alter_dataset_is_a_commit_that_changes_nothing_else(con):
    for name, uuid in (("d", "d"), ("c.e", "c++e")):
        before = builders.read_document(con.store, uuid)
        rows = con.sql(f"FROM {name}").rows()
        done = con.sql(
            f"ALTER DATASET {name} SET METADATA (owner = 'me', unit = NULL, \"two words\" = -1.5, f = TRUE, n = NULL)"
        ).arrow()
        assert done.to_pylist()[0] | {"id": None} == {
            "dataset": uuid, "files": 0, "rows": 0, "bytes": 0, "removed": 0, "sequence": 2, "id": None
        }  # fmt: skip
        after = builders.read_document(con.store, uuid)
        changed = {k for k in {**before, **after} if before.get(k) != after.get(k)}
        assert changed == {"metadata"}
        expected = {**GIVEN, "owner": "me", "two words": -1.5, "f": True}
        del expected["unit"]
        plain = {k: v for k, v in after["metadata"].items() if not k.startswith(("kartosql_", "ktk_", "creation"))}
        assert plain == expected
        kept = {k: v for k, v in before["metadata"].items() if k.startswith(("ktk_", "creation"))}
        assert {k: after["metadata"].get(k) for k in kept} == kept
        assert con.sql(f"FROM {name}").rows() == rows
    assert list(con.cubes()) == ["c"]
    assert [f for f in con.check("d", full=True) + con.check("c", full=True) if f.severity != "info"] == []


def test_whatever_is_written_later_keeps_them(con):
    con.set_metadata("d", {"note": ["kept"]})
    con.append_to_dataset("d", ROWS, metadata={"owner": "later"})
    con.replace_partitions("d", ROWS)
    con.create_index("d", "x")
    con.compact("d")
    con.delete_from_dataset("d", [("p", "==", 1)])
    found = con.metadata("d")
    assert (found["note"], found["owner"]) == (["kept"], "later")


def test_a_writer_who_was_faster_loses_nothing(con, monkeypatch):
    from kartosql.write.operation import Operation

    plain = Operation.commit

    def late(self, *given):
        monkeypatch.setattr(Operation, "commit", plain)
        with kartosql.connect(con.store.url) as rival:
            rival.append_to_dataset("d", ROWS, metadata={"unit": 6})
        return plain(self, *given)

    monkeypatch.setattr(Operation, "commit", late)
    con.set_metadata("d", {"owner": "me"})
    assert con.sql("SELECT count(*) FROM d").rows() == [(4,)]
    assert (con.metadata("d")["owner"], con.metadata("d")["unit"]) == ("me", 6)


@pytest.mark.parametrize("key", ["ktk_cube_is_seed", "ktk_cube_x", "creation_time", "kartosql_commit", "kartosql_x"])
def test_keys_that_mean_something_to_readers_are_refused(con, key):
    before = builders.read_document(con.store, "c++seed")
    for value in ("'x'", "NULL"):
        with pytest.raises(UsageError, match=f"'{key}'") as e:
            con.sql(f'ALTER DATASET c.seed SET METADATA (a = 1, "{key}" = {value})')
        assert e.value.code == "invalid-argument"
    assert builders.read_document(con.store, "c++seed") == before


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("ALTER DATASET nope SET METADATA (a = 1)", "unknown-table"),
        ("ALTER DATASET c SET METADATA (a = 1)", "unknown-table"),
        ("ALTER DATASET d SET METADATA (a = 1e999)", "syntax-error"),
        ("ALTER DATASET d SET METADATA ()", "syntax-error"),
        ("ALTER DATASET d SET METADATA (a)", "syntax-error"),
        ("ALTER DATASET d SET METADATA (a = )", "syntax-error"),
        ("ALTER DATASET d SET METADATA (a = b)", "syntax-error"),
        ("ALTER DATASET d SET METADATA (a = 1, a = 2)", "syntax-error"),
        ("ALTER DATASET d SET METADATA ('a' = 1)", "syntax-error"),
        ("ALTER DATASET d SET (a = 1)", "syntax-error"),
        ("ALTER DATASET d SET METADATA (a = 1) x", "syntax-error"),
        ("SHOW METADATA", "syntax-error"),
        ("SHOW METADATA FROM nope", "unknown-table"),
        ("SHOW METADATA FROM given", "unknown-table"),
    ],
)
def test_what_cannot_be_meant_is_refused(con, sql, code):
    con.register("given", ROWS)
    with pytest.raises(KartosqlError) as e:
        con.sql(sql)
    assert e.value.code == code


@pytest.mark.parametrize("given", [{}, {"a": float("nan")}, {1: "a"}, {"a": object()}, None, [("a", 1)]])
def test_metadata_are_what_json_can_hold(con, given):
    with pytest.raises(UsageError) as e:
        con.set_metadata("d", given)
    assert e.value.code == "invalid-argument"


def test_a_read_only_connection_shows_but_does_not_set(con):
    with kartosql.connect(con.store.url, read_only=True) as reader:
        assert reader.metadata("d") == con.metadata("d")
        assert reader.sql("SHOW METADATA FROM d").rows() == con.sql("SHOW METADATA FROM d").rows()
        for call in (
            lambda: reader.set_metadata("d", {"a": 1}),
            lambda: reader.sql("ALTER DATASET d SET METADATA (a = 1)"),
        ):
            with pytest.raises(UsageError) as e:
                call()
            assert e.value.code == "read-only"
