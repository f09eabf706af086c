"""changes(): applied to what a version was, they give what a later one is."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError

CONDITIONS = ("p = 'a'", "x > 2", "v IS NULL", "v = 2 AND p = 'b'", "_change = 'insert'", "_version > 2 OR x = 1")
CUBE = kartosql.Cube("c", "x", "p")


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        yield con


def rows(con, text):
    return con.sql(text).rows()


def changes(con, after, until=None, name="d", columns="p, x, v"):
    end = "" if until is None else f", {until}"
    text = f"SELECT _version, _change, {columns} FROM changes('{name}', {after}{end}) ORDER BY _version"
    return [(version, change, tuple(values)) for version, change, *values in rows(con, text)]


def applied(state, found, *, key=None):
    """Apply changes to a state, version by version, and check that they fit."""
    for version in sorted({v for v, _, _ in found}):
        here = [(change, values) for v, change, values in found if v == version]
        gone = Counter(values for change, values in here if change in ("delete", "update_before"))
        come = Counter(values for change, values in here if change in ("insert", "update_after"))
        assert not gone - state, version
        assert not gone & come, version
        state = state - gone + come
        pairs = (
            [{values[key] for change, values in here if change == kind} for kind in ("update_before", "update_after")]
            if key is not None
            else [{c for c, _ in here} - {"insert", "delete"}, set()]
        )
        assert pairs[0] == pairs[1]
    return state


def table(draw, *, cube):
    count = draw.randint(1, 4)
    x = draw.sample(range(8), count) if cube else draw.choices(range(4), k=count)
    made = {"p": ["a" if n < 4 else "b" for n in x] if cube else draw.choices("ab", k=count), "x": x}
    return pa.table(made | {"v": pa.array(draw.choices([None, 1, 2, 3], k=count), pa.int64())})


def step(con, draw, *, cube):
    """Change the dataset in some way, and return the version that this made."""
    name, data = ("c.seed" if cube else "d"), table(draw, cube=cube)
    act = draw.choice(["append", "append", "append", "replace", "delete", "compact", "index", "overwrite"])
    if act == "replace":
        return con.replace_partitions(name, data)["sequence"]
    if act == "delete":
        return con.delete_from_dataset(name, [("p", "==", draw.choice("ab"))])["sequence"]
    if act == "compact":
        return con.compact(name)["sequence"]
    if act == "index":
        return con.create_index(name, "v")["sequence"]
    if act == "overwrite" and not cube:
        return con.create_dataset("d", data, partition_on="p", overwrite=True)["sequence"]
    return con.append_to_dataset(name, data)["sequence"]


@pytest.mark.filterwarnings("ignore:.*holds NULL:kartosql.KartosqlWarning")
@pytest.mark.parametrize("cube", [False, True], ids=["dataset", "cube"])
@pytest.mark.parametrize("seed", range(6))
def test_changes_lead_from_any_version_to_any_later_one(con, seed, cube):
    draw = random.Random(seed)
    name = "c.seed" if cube else "d"
    if cube:
        version = con.build_cube(CUBE, {"seed": table(draw, cube=True)})["seed"]["sequence"]
    else:
        version = con.create_dataset("d", table(draw, cube=False), partition_on="p")["sequence"]
    states = {0: Counter()}
    for _ in range(7):
        states[version] = Counter(rows(con, f"SELECT p, x, v FROM {name}"))
        version = step(con, draw, cube=cube) or version
    versions = sorted(states)
    for at, first in enumerate(versions):
        for second in versions[at:][first == 0 :]:
            found = changes(con, first, second, name)
            assert applied(states[first], found, key=1 if cube else None) == states[second], (first, second)
    inner = f"SELECT p, x, v, _change, _version FROM changes('{name}', 0)"
    con.register("everything", con.sql(inner).arrow())
    for condition in (
        "p = 'a'",
        "x > 2",
        "v IS NULL",
        "v = 2 AND p = 'b'",
        "_change = 'insert'",
        "_version > 2 OR x = 1",
    ):
        expected = Counter(rows(con, f"SELECT * FROM everything WHERE {condition}"))
        assert Counter(rows(con, f"{inner} WHERE {condition}")) == expected, condition
    (count,) = rows(con, f"SELECT count(*), count(DISTINCT _version), max(x) FROM changes('{name}', 0)")
    assert (count,) == tuple(rows(con, "SELECT count(*), count(DISTINCT _version), max(x) FROM everything"))


@pytest.fixture
def dataset(con):
    con.create_dataset("d", pa.table({"p": ["a", "a", "b"], "x": [1, 1, 2], "v": [1, 1, None]}), partition_on="p")
    return con


def test_rows_that_came_and_went_are_told_with_version_and_time(dataset):
    dataset.append_to_dataset("d", pa.table({"p": ["a"], "x": [3], "v": [3]}))
    dataset.compact("d")
    dataset.replace_partitions("d", pa.table({"p": ["a", "a"], "x": [1, 5], "v": [1, 5]}))
    found = changes(dataset, 1)
    assert found[0] == (2, "insert", ("a", 3, 3))
    assert sorted(found[1:]) == [
        (4, "delete", ("a", 1, 1)), (4, "delete", ("a", 3, 3)), (4, "insert", ("a", 5, 5)),
    ]  # fmt: skip
    assert [v for v, *_ in changes(dataset, 2, 3)] == []
    times = rows(dataset, "SELECT _version, min(_time), max(_time) FROM changes('d', 0) GROUP BY ALL ORDER BY ALL")
    assert [v for v, *_ in times] == [1, 2, 4]
    assert all(low == high for _, low, high in times)
    assert dataset.sql("SELECT * FROM changes('d', 1)").columns == ["p", "v", "x", "_change", "_version", "_time"]


def test_a_cell_that_changes_is_a_pair(con):
    built = con.build_cube(CUBE, {"seed": pa.table({"x": [1, 2], "p": ["a", "b"], "v": [1, 2]})})["seed"]["sequence"]
    con.append_to_cube("c", {"seed": pa.table({"x": [1, 3], "p": ["a", "a"], "v": [10, 30]})})
    con.append_to_cube("c", {"seed": pa.table({"x": [3], "p": ["a"], "v": [30]})})
    con.compact("c")
    found = rows(con, f"SELECT _change, x, v FROM changes('c.seed', {built}) ORDER BY ALL")
    assert found == [("insert", 3, 30), ("update_after", 1, 10), ("update_before", 1, 1)]


def test_only_files_that_differ_are_read(dataset):
    for x in range(5):
        dataset.append_to_dataset("d", pa.table({"p": ["c"], "x": [x], "v": [x]}))
    (scan,) = dataset.explain("SELECT * FROM changes('d', 5)").to_dict()["scans"]
    assert scan["datasets"][0]["files_selected"] == 1
    (scan,) = dataset.explain("SELECT * FROM changes('d', 0) WHERE p = 'b'").to_dict()["scans"]
    assert (scan["datasets"][0]["files_selected"], scan["datasets"][0]["files_total"]) == (1, 7)


def test_added_columns_are_null_in_rows_from_before(dataset):
    dataset.append_to_dataset("d", pa.table({"p": ["a"], "x": [3], "z": ["k"]}), evolve=True)
    dataset.delete_from_dataset("d", [("p", "==", "a")])
    found = rows(dataset, "SELECT _change, x, z FROM changes('d', 0) ORDER BY _version, x, z")
    assert found == [(c, x, z) for c, x, z in [
        ("insert", 1, None), ("insert", 1, None), ("insert", 2, None), ("insert", 3, "k"),
        ("delete", 1, None), ("delete", 1, None), ("delete", 3, "k"),
    ]]  # fmt: skip
    assert rows(dataset, "SELECT count(z) FROM d AT (VERSION => 2)") == [(1,)]


def test_changes_are_a_table_like_others(dataset):
    text = "WITH c AS (SELECT * FROM changes('d', 0) AS k WHERE k.x > $low) SELECT x, d.v FROM c JOIN d USING (x, p)"
    assert dataset.sql(text, {"low": 1}).rows() == [(2, None)]
    assert rows(dataset, "SELECT _version FROM changes('d', 0) a JOIN d ON a._version = d.x AND a.p = d.p LIMIT 1") == [
        (1,)
    ]
    dataset.create_dataset("changes", pa.table({"x": [7]}))
    assert rows(dataset, "SELECT x FROM changes") == [(7,)]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("changes('d')", "not-supported"),
        ("changes(d, 1)", "not-supported"),
        ("changes('d', -1)", "not-supported"),
        ("changes('d', 2, 1)", "not-supported"),
        ("changes('d', 1, 2, 3)", "not-supported"),
        ("changes('d', 9)", "no-such-version"),
        ("changes('d', 0, 9)", "no-such-version"),
        ("changes('nothing', 0)", "unknown-table"),
        ("changes('c', 0)", "no-versions"),
        ("changes('given', 0)", "no-versions"),
    ],
)
def test_what_has_no_changes_is_an_error(dataset, call, code):
    dataset.build_cube(
        CUBE, {"seed": pa.table({"x": [1], "p": ["a"]}), "en": pa.table({"x": [1], "p": ["a"], "w": [1]})}
    )
    dataset.register("given", pa.table({"x": [1]}))
    with pytest.raises(KartosqlError) as e:
        dataset.sql(f"SELECT * FROM {call}").rows()
    assert e.value.code == code
    assert e.value.hint


def test_who_asks_a_cube_for_changes_is_told_its_datasets(dataset):
    cell = pa.table({"x": [1], "p": ["a"]})
    dataset.build_cube(CUBE, {"seed": cell, "en": cell.append_column("w", pa.array([1]))})
    with pytest.raises(KartosqlError) as e:
        dataset.sql("SELECT * FROM changes('c', 0)").rows()
    assert "changes('c.seed', ...)" in e.value.hint
    assert rows(dataset, "SELECT count(*) FROM changes('c.seed', 0)") == [(1,)]


@pytest.mark.parametrize(
    "other", [{"x": ["text"], "p": ["a"]}, {"p": ["a"], "y": [1]}, {"p": ["a"], "x": [1], "_Change": [1]}]
)
def test_a_dataset_that_was_replaced_by_other_columns_has_no_changes_before(dataset, other):
    version = dataset.create_dataset("d", pa.table(other), partition_on="p", overwrite=True)["sequence"]
    with pytest.raises(KartosqlError) as e:
        dataset.sql("SELECT * FROM changes('d', 1)").rows()
    assert e.value.code == "incompatible-schema"
    if "_Change" not in other:
        assert rows(dataset, f"SELECT count(*) FROM changes('d', {version})") == [(0,)]


def test_a_history_that_was_cut_is_gone(dataset):
    dataset.append_to_dataset("d", pa.table({"p": ["a"], "x": [3], "v": [3]}))
    dataset.store.delete(list(dataset.store.list_below(".kartosql/history/d/")))
    with kartosql.connect(dataset.store.url) as other, pytest.raises(KartosqlError) as e:
        other.sql("SELECT * FROM changes('d', 1)").rows()
    assert e.value.code == "version-gone"
