"""What is answered from a plan that an earlier command left is, byte for byte, what planning it again answers."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import os
import random
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.engines.duckdb import replay, sorted_index
from kartosql.formats.kartothek import snapshot
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube, write_dataset

FORMATS = ("csv", "tsv", "json", "jsonl", "box", "markdown", "vertical", "html", "none")
TEXTS = ["a", "", "it's", 'say "x"', "ä, b", "line\nend", "tab\there", "min(", "\U0001f40d", "any", None]


def rows(seed: int, count: int = 120) -> pa.Table:
    chosen = random.Random(seed)
    pick = chosen.choice
    return pa.table(
        {
            "k": pa.array([pick([*range(60), 2**62, -3, None]) for _ in range(count)], pa.int64()),
            "s": pa.array([pick(TEXTS) for _ in range(count)], pa.string()),
            "p": pa.array([pick([1, 2, 3]) for _ in range(count)], pa.int64()),
            "q": pa.array([pick(["x", "y=z", "ü", "%"]) for _ in range(count)], pa.string()),
            "f": pa.array([pick([0.0, -0.0, 0.1, 1e300, float("nan"), float("inf"), None]) for _ in range(count)]),
            "d": pa.array(
                [pick([dt.date(1, 1, 1), dt.date(2026, 1, 31), dt.date(9999, 12, 31), None]) for _ in range(count)]
            ),
            "t": pa.array(
                [
                    pick([dt.datetime(2026, 1, 31, 12), dt.datetime(1969, 12, 31, 0, 0, 0, 7), None])
                    for _ in range(count)
                ],
                pa.timestamp("us"),
            ),
            "m": pa.array([pick([Decimal("1.50"), Decimal("-0.01"), None]) for _ in range(count)], pa.decimal128(9, 2)),
            "b": pa.array([pick([True, False, None]) for _ in range(count)]),
            "w": pa.array([pick([0, 1, 200]) for _ in range(count)], pa.uint8()),
            "n": pa.array(range(count), pa.int32()),
        }
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KARTOSQL_CACHE", str(tmp_path / "cache"))
    for module in (snapshot, sorted_index):  # or each test would wait for three seconds
        monkeypatch.setattr(module, "SETTLED_NS", 0)
    monkeypatch.setattr("kartosql.cli.remember.MAX_SECONDS", math.inf)  # however slow the machine is
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path) -> str:
    folder = tmp_path / "store"
    folder.mkdir()
    made = Store(str(folder))
    write_dataset(made, "d", rows(1), partition_on=["p", "q"], index_columns=["k", "s"])
    write_dataset(made, "e", rows(2), index_columns=["n"])
    cells = pa.table({"x": [0, 1, 2, 3], "p": [0, 0, 1, 1], "v": ["a", None, "", "d"], "i": [7, 8, 7, 9]})
    more = pa.table({"x": [0, 2, 3], "p": [0, 1, 1], "u": [1.5, None, float("nan")]})
    build_cube(made, Cube("c", "x", "p", seed_dataset="seed", index_columns=["i"]), {"seed": cells, "more": more})
    return str(folder)


def planned(run, store: str, sql: str, format_: str = "csv") -> bytes | None:
    """Return what a command prints that remembers its plan, None for an error."""
    found = run(store, "-c", sql, "--format", format_)
    assert found.err == "" or found.code
    return None if found.code else found.out.encode()


def statement(chosen: random.Random) -> str:
    number = lambda: str(chosen.choice([0, 1, 2, 5, 7, 3, 9]))  # noqa: E731
    text = lambda: "'" + chosen.choice([t for t in TEXTS if t is not None and "\n" not in t]).replace("'", "''") + "'"  # noqa: E731
    conditions = [
        f"k = {number()}",
        f"k IN ({number()}, {number()})",
        f"s = {text()}",
        f"s IN ({text()}, {text()}, {text()})",
        f"p = {number()}",
        f"q = {text()}",
        f"n < {number()}",
        f"f > 0.{number()}",
        f"(k = {number()} OR p = 2)",
        f"{number()} = k",
        f"k = {number()}.0",
        f"NOT k = {number()}",
        "k IS NULL",
        "d = DATE '2026-01-31'",
    ]
    where = " AND ".join(chosen.sample(conditions, chosen.randint(1, 3)))
    columns = chosen.choice(
        ["*", "k, s, p, q", "count(*) AS n, min(w), max(w), sum(m)", "n, f, d", "t, m, b, w", "min(s), max(d), max(t)"]
    )
    columns = chosen.choice([columns, columns, "p, q, count(*) AS n, avg(n) AS mean", "n AS k, s AS other"])
    end = " GROUP BY p, q ORDER BY p, q" if columns.startswith("p, q, count") else ""
    end += "" if end else chosen.choice(["", "", " ORDER BY ALL", " LIMIT 3", " ORDER BY ALL DESC LIMIT 5 OFFSET 1"])
    return f"SELECT {columns} FROM {chosen.choice(['d', 'D', 'd', 'e'])} WHERE {where}{end}{chosen.choice(['', ';'])}"


@pytest.mark.parametrize("seed", range(4))
def test_random_statements_are_answered_alike(run, store, seed, monkeypatch):
    chosen = random.Random(seed)
    replayed = looked_up = 0
    for turn in range(60):
        sql = statement(chosen)
        for format_ in (chosen.choice(replay.FORMATS), chosen.choice(FORMATS)):
            before = replay.answer(store, sql, format_)
            expected = planned(run, store, sql, format_)
            after = replay.answer(store, sql, format_)
            for found in (before, after):
                assert found is None or found == expected, (sql, format_)
            assert format_ in replay.FORMATS or after is None
            looked_up += before is not None
            replayed += after is not None
        if turn == 40:  # whatever is remembered is of an earlier state now
            with kartosql.connect(store) as con:
                con.append_to_dataset("d", rows(seed + 10, 30))
    assert replayed > 40
    assert looked_up > 0


def test_other_constants_are_looked_up_in_the_index(run, store):
    sql = "SELECT n, k, p, s FROM d WHERE k = {} AND n < {}"
    for constants in ((1, 70), (2, 90)):  # the second one makes the values of the index
        planned(run, store, sql.format(*constants))
    answers = set()
    for constants in itertools.product((0, 1, 2, 5, 9), (10, 55, 99)):
        found = replay.answer(store, sql.format(*constants), "csv")
        expected = planned(run, store, sql.format(*constants))
        assert found in (expected, None)
        answers.add(found)
    assert len(answers) > 4


def test_statements_over_cubes_and_joins_are_replayed_for_the_same_text(run, store):
    for sql in (
        "SELECT * FROM c WHERE i = 7 ORDER BY x",  # a join promises no order of its own
        "SELECT v, u FROM c ORDER BY x",
        "SELECT c.v, e.n FROM c JOIN e ON c.x = e.n WHERE c.p = 1 ORDER BY ALL",
        "WITH a AS (SELECT x FROM c WHERE p = 1) SELECT count(x) AS n FROM a",
        'SELECT max(u) AS u FROM "c++more"',
    ):
        expected = planned(run, store, sql)
        assert expected is not None, sql
        assert replay.answer(store, sql, "csv") == expected, sql
        assert replay.answer(store, sql.replace("7", "8").replace("= 1", "= 0") + " ", "csv") in (None, expected)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT now() > TIMESTAMPTZ '2020-01-01' AS later, n FROM e WHERE n = 1",
        "SELECT k AS a, k AS a FROM d WHERE k = 1",
        "SELECT [k] AS l FROM d WHERE k = 1",
        "SELECT CAST(f AS FLOAT) AS f FROM d WHERE k = 1",
        "SELECT n FROM d -- a comment\nWHERE k = 1",
        "SELECT count(*) AS n FROM d",
        "SHOW TABLES",
        "EXPLAIN SELECT n FROM e WHERE n = 1",
        "SELECT n FROM nothing",
        "SELECT n FROM e WHERE",
    ],
)
def test_what_is_not_certain_is_planned(run, store, sql):
    planned(run, store, sql)
    assert replay.answer(store, sql, "csv") is None


def test_options_and_settings_are_planned(run, store):
    sql = "SELECT n FROM e WHERE n = 1"
    for options in (["--set", "threads=1"], ["--set", "cache=off"], ["--timeout", "100"]):
        assert run(store, "-c", sql, *options).code == 0
        assert replay.answer(store, sql, "csv") is None
    assert run(store, "-c", f"{sql}; {sql}").code == 0
    assert replay.answer(store, sql, "csv") is None
    assert run(store, "-c", "SELECT n FROM e WHERE n = $1", "--param", "1=3").code == 0
    assert replay.answer(store, "SELECT n FROM e WHERE n = $1", "csv") is None


SQL = "SELECT n, s FROM e WHERE n = 5"


@pytest.fixture
def answer(run, store) -> bytes:
    found = planned(run, store, SQL)
    assert found is not None
    assert replay.answer(store, SQL, "csv") == found
    return found


def test_a_commit_is_seen_at_once(run, store, answer):
    with kartosql.connect(store) as con:
        con.append_to_dataset("e", rows(3))
    assert replay.answer(store, SQL, "csv") is None
    assert planned(run, store, SQL) != answer
    with kartosql.connect(store) as con:
        con.delete_dataset("e")
    assert replay.answer(store, SQL, "csv") is None
    assert run(store, "-c", SQL).code == 1


def test_a_document_that_is_replaced_by_an_equal_one_is_planned(store, answer):
    path = Path(store, "e.by-dataset-metadata.json")
    before = path.stat()
    shutil.copy(path, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert replay.answer(store, SQL, "csv") is None


def test_a_document_written_in_place_is_planned(store, answer):
    path = Path(store, "e.by-dataset-metadata.json")
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert replay.answer(store, SQL, "csv") is None


def test_what_was_just_written_proves_nothing(run, store, monkeypatch):
    monkeypatch.setattr(snapshot, "SETTLED_NS", 3_600_000_000_000)
    planned(run, store, SQL)
    assert replay.answer(store, SQL, "csv") is None


def test_a_new_dataset_may_change_what_names_mean(run, store, answer):
    cells = pa.table({"x": [5], "p": [0], "n": [5], "s": ["cube"]})
    build_cube(Store(store), Cube("e", "x", "p", seed_dataset="seed"), cells)
    assert replay.answer(store, SQL, "csv") is None
    assert planned(run, store, SQL) == b"n,s\n5,cube\n"


def data_files(store: str, uuid: str) -> list[Path]:
    return sorted(Path(store, uuid).glob("table/**/*.parquet"))


def test_files_that_are_missing_or_others_are_told_by_the_planner(run, store, answer):
    (path,) = data_files(store, "e")
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    assert replay.answer(store, SQL, "csv") is None
    path.unlink()
    assert replay.answer(store, SQL, "csv") is None
    assert run(store, "-c", SQL).code == 1
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(data)
    path.symlink_to(elsewhere)
    assert replay.answer(store, SQL, "csv") is None


def test_files_that_are_looked_up_have_the_schema_that_was_checked(run, store):
    sql = "SELECT n FROM d WHERE k = {} AND p IS NOT NULL"
    for k in (1, 2, 6):  # the values of p differ between the files of the last one
        planned(run, store, sql.format(k))
    assert replay.answer(store, sql.format(6), "csv") == planned(run, store, sql.format(6))
    import pyarrow.parquet as pq

    for path in data_files(store, "d"):
        found = pq.read_table(path, partitioning=None)
        at = found.column_names.index("n")
        pq.write_table(found.set_column(at, "n", found.column("n").cast(pa.string())), path)
    assert replay.answer(store, sql.format(6), "csv") is None
    assert run(store, "-c", sql.format(6)).code == 1


def entries(cache: Path, kind: str) -> list[Path]:
    return sorted(cache.glob(f"{kind}-*"))


def test_a_damaged_or_foreign_plan_is_planned(run, store, answer, cache):
    (entry,) = entries(cache, replay.PLAN)
    data = entry.read_bytes()
    for at in range(0, len(data), 7):
        entry.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert replay.answer(store, SQL, "csv") in (None, answer), at
    entry.write_bytes(data)
    assert replay.answer(store, SQL, "csv") == answer
    shutil.rmtree(cache)
    assert replay.answer(store, SQL, "csv") is None


def test_a_plan_of_another_duckdb_is_planned(store, answer, monkeypatch):
    monkeypatch.setattr(replay.engine(), "__version__", "1.0.0")
    assert replay.answer(store, SQL, "csv") is None


def test_the_same_text_over_another_store_is_planned(run, store, answer, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(store, other)
    assert replay.answer(str(other), SQL, "csv") is None
    assert replay.answer(os.path.relpath(store), SQL, "csv") == answer


def test_the_engine_of_a_replay_is_locked_up(run, store, answer, monkeypatch, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    run_ = replay._run

    def escaping(plan, text, files, lists):
        for escape in (
            f"SELECT * FROM '{tmp_path / 'secret.csv'}'",
            f"SELECT * FROM read_csv('{tmp_path / 'secret.csv'}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
            "SET GLOBAL enable_external_access = true",
            "SET GLOBAL allowed_directories = ['/']",
        ):
            with pytest.raises(replay.engine().Error):
                run_(plan, escape, files, lists)
        return run_(plan, text, files, lists)

    monkeypatch.setattr(replay, "_run", escaping)
    assert replay.answer(store, SQL, "csv") == answer
    assert not (tmp_path / "out.csv").exists()


def test_many_rows_are_not_remembered(run, tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    write_dataset(Store(str(folder)), "d", pa.table({"n": range(replay.MAX_ROWS + 1)}))
    planned(run, str(folder), "SELECT n FROM d")
    assert replay.answer(str(folder), "SELECT n FROM d", "csv") is None
    planned(run, str(folder), "SELECT n FROM d WHERE n > 0")
    assert replay.answer(str(folder), "SELECT n FROM d WHERE n > 0", "csv") is not None


def test_a_process_answers_from_the_plan_and_imports_next_to_nothing(store, process, cache):
    import time

    time.sleep(3.1)  # until what the fixture wrote is proven by its times
    first = process(store, "-c", SQL)
    assert (first.returncode, first.stderr) == (0, "")
    assert entries(cache, replay.PLAN)
    second = process(store, "-c", SQL, PYTHONVERBOSE="1")
    assert (second.returncode, second.stdout) == (0, first.stdout)
    imported = {line.split("'")[1] for line in second.stderr.splitlines() if line.startswith("import '")}
    assert "_duckdb" in imported
    assert not imported & {"sqlglot", "pyarrow", "fsspec", "duckdb", "argparse", "dataclasses", "kartosql.errors"}
    assert process(store, "-c", SQL, "--format", "json").stdout == json.dumps(
        [dict(zip(("n", "s"), (5, first.stdout.splitlines()[1].partition(",")[2]), strict=True))], separators=(",", ":")
    ).replace("[{", "[\n{").replace("}]", "}\n]\n")
