"""Times where clocks change: whatever evidence files are asked by, none with a matching row is left out."""

from __future__ import annotations

import datetime as dt
import random
import re
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.duckdb import evaluator

# Of each zone: times that its clocks leave out or show twice.
CHANGES = {
    "Europe/Berlin": [dt.datetime(2024, 3, 31, 2, 30), dt.datetime(2024, 10, 27, 2, 30)],
    "America/Sao_Paulo": [dt.datetime(2018, 11, 4), dt.datetime(2019, 2, 16, 23, 30)],
    "Australia/Lord_Howe": [dt.datetime(2024, 4, 7, 1, 45), dt.datetime(2024, 10, 6, 2, 15)],
    "Asia/Kathmandu": [dt.datetime(1986, 1, 1)],
    "UTC": [dt.datetime(2024, 3, 31, 2, 30)],
}
WIDTHS = {"Australia/Lord_Howe": dt.timedelta(minutes=30), "Asia/Kathmandu": dt.timedelta(minutes=15)}  # else an hour
STEPS = [dt.timedelta(minutes=15 * n) for n in range(-8, 9)]
KINDS = {"at": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC"), "day": pa.date32()}
EVIDENCE = {
    "key": "partition key",
    "index": "inverted index",
    "bounds": "minmax",
    "listed": "valuelist",
    "rows": "row groups",
}
OF_FOLDERS = ["bounds", "listed", "rows"]
FORMS = [
    "'{0}'",
    "TIMESTAMP '{0}'",
    "TIMESTAMPTZ '{0}'",
    "'{0}'::TIMESTAMPTZ",
    "TRY_CAST('{0}' AS TIMESTAMP WITH TIME ZONE)",
    "TIMESTAMP '{0}'::TIMESTAMPTZ",
    "TIMESTAMPTZ '{0}'::TIMESTAMP",
    "TIMESTAMPTZ '{0}'::DATE",
    "(TIMESTAMPTZ '{0}' + INTERVAL 0 HOURS)",
    "TIMESTAMPTZ '{0}+00'",
    "'{0}-03'",
    "TIMESTAMP '{0}+02'",
    "TIMESTAMP '{0}' AT TIME ZONE 'Europe/Berlin'",
    "DATE '{1}'",
    "CAST(DATE '{1}' AS TIMESTAMPTZ)",
    "TIMESTAMPTZ '{1}'",
]
OPERATORS = ["=", "=", "<>", "<", "<=", ">", ">=", "IS NOT DISTINCT FROM", "IS DISTINCT FROM"]
_NUMBER = re.compile(r"(?:/n=|^)(-?\d+)[./]")  # of a file
ALL = [*(("d", name) for name in EVIDENCE), *(("f", name) for name in OF_FOLDERS)]
# Those that are asked with constants which are not left to DuckDB to read.
IN_PYTHON = [("d", "bounds"), ("d", "listed"), ("d", "rows")]
PREDICATES = 8  # by chance, of each kind of column
BRANCHES = 25  # of one statement


class World(NamedTuple):
    con: kartosql.Connection
    plain: duckdb.DuckDBPyConnection


def _moments(zone: str, kind: str) -> list[Any]:
    """Return times around the changes of a zone's clocks."""
    clock = [change + step for change in CHANGES[zone] for step in STEPS]
    if kind == "at":
        return clock
    if kind == "day":
        return [c.date() + dt.timedelta(days=n % 3 - 1) for n, c in enumerate(clock)]
    utc = dt.timezone.utc
    changes = [change.replace(tzinfo=ZoneInfo(zone)).astimezone(utc) for change in CHANGES[zone]]
    return [change + step for change in changes for step in STEPS]


def _rows(zone: str) -> pa.Table:
    """Return one or two times for each of some files, under a name for each kind of evidence, and a file of NULL."""
    columns: dict[str, list[Any]] = {"n": []}
    for kind in KINDS:
        moments = _moments(zone, kind)
        begins = [n for n in range(len(moments)) for _ in range(2 if n % 3 == 0 or len(moments) < 20 else 1)]
        ends = [min(n + 3 * (at % 2), len(moments) - 1) for at, n in enumerate(begins)]
        pairs = [pair for ends_of in zip(begins, ends, strict=True) for pair in ends_of]
        columns["n"] = [n // 2 for n in range(len(pairs))]
        columns |= {f"{kind}_{name}": [moments[n] for n in pairs] for name in EVIDENCE}
        columns[f"{kind}_key"] = [moments[n] for n in begins for _ in range(2)]
    types = {"n": pa.int64(), **{name: KINDS[name.split("_")[0]] for name in columns if name != "n"}}
    table = pa.table(columns, schema=pa.schema(list(types.items())))
    empty = {name: [-1] if name == "n" else [None] for name in columns}
    for kind in KINDS:
        empty[f"{kind}_key"] = [_moments(zone, kind)[0]]
    return pa.concat_tables([table, pa.table(empty, schema=table.schema)])


@pytest.fixture(params=CHANGES)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dataset and a folder with the times of a zone in many files, and the same rows in plain DuckDB."""
    monkeypatch.setattr(evaluator, "MIN_REMOTE_FILES", 0)  # footers are asked in any store
    zone, rows = request.param, _rows(request.param)
    for n in set(rows["n"].to_pylist()):
        (tmp_path / "folder").mkdir(exist_ok=True)
        pq.write_table(rows.filter(pc.equal(rows["n"], n)), tmp_path / "folder" / f"{n}.parquet")
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con, duckdb.connect() as plain:
        con.sql(f"SET TimeZone = '{zone}'")
        plain.execute(f"SET TimeZone = '{zone}'")
        plain.register("rows", rows)
        keys, indexed = ([f"{kind}_{name}" for kind in KINDS] for name in ("key", "index"))
        con.create_dataset("d", rows, partition_on=["n", *keys], index_columns=indexed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Data skipping: .* there are no metadata")
            con.attach(str(tmp_path / "folder"), "f", metadata=str(tmp_path / "metadata"))
        for table in ("d", "f"):
            con.create_skipping_index(
                table, minmax=[f"{k}_bounds" for k in KINDS], valuelist=[f"{k}_listed" for k in KINDS]
            )
            for _ in range(3):  # statistics of row groups are read when they were asked for
                con.sql(f"SELECT n FROM {table} WHERE at_rows < '1971-01-01' OR instant_rows < '1971-01-01'").rows()
                con.sql(f"SELECT n FROM {table} WHERE day_rows < '1971-01-01'").rows()
        yield World(con, plain)


def _near(zone: str) -> Iterator[str]:
    """Yield comparisons with each form of a time right after one that clocks leave out or show twice."""
    for change in CHANGES[zone]:
        after = change + WIDTHS.get(zone, dt.timedelta(hours=1))
        for form in FORMS:
            yield f"{{c}} = {form.format(after, after.date())}"
            if change == CHANGES[zone][0]:
                yield f"{{c}} >= {form.format(after - dt.timedelta(minutes=5), change.date())}"


def _predicate(chosen: random.Random, zone: str) -> str:
    """Return a random predicate over a column, which is left open."""

    def constant(form: str | None = None) -> str:
        moment = chosen.choice(CHANGES[zone]) + chosen.choice(STEPS)
        return (form or chosen.choice(FORMS)).format(moment, moment.date())

    same = chosen.choice([None, chosen.choice(FORMS)])
    shape = chosen.randrange(8)
    if shape == 0:
        return f"{{c}} {chosen.choice(['', 'NOT '])}BETWEEN {constant(same)} AND {constant(same)}"
    if shape == 1:
        listed = ", ".join(constant(same) for _ in range(chosen.choice([1, 2, 4])))
        return f"{{c}} {chosen.choice(['', 'NOT '])}IN ({listed})"
    if shape == 2:
        return f"{constant()} {chosen.choice(OPERATORS)} {{c}}"
    text = f"{{c}} {chosen.choice(OPERATORS)} {constant()}"
    return f"NOT ({text})" if shape == 3 else text


def _expected(plain: duckdb.DuckDBPyConnection, predicate: str) -> set[int] | None:
    """Return the numbers of the files with rows that satisfy a predicate, None if it is none."""
    try:
        return {n for (n,) in plain.execute(f"SELECT DISTINCT n FROM rows WHERE {predicate}").fetchall()}
    except duckdb.Error:
        return None


def test_no_evidence_leaves_out_a_match_where_clocks_change(world, request):
    zone = request.node.callspec.params["world"]
    chosen, pruned = random.Random(zone), set()
    for kind in KINDS:
        asked: list[tuple[str, str, set[int]]] = []
        # The first one leaves out files, whatever the others are.
        predicates = {f"{{c}} < '{CHANGES[zone][0].date()}'": ALL, **dict.fromkeys(_near(zone), IN_PYTHON)}
        for _ in range(PREDICATES):
            predicates[_predicate(chosen, zone)] = ALL
        for predicate, evidence in predicates.items():
            for table, name in evidence:
                text = predicate.format(c=f"{kind}_{name}")
                expected = _expected(world.plain, text)
                if expected is not None:
                    asked.append((table, text, expected))
        for at in range(0, len(asked), BRANCHES):
            some = asked[at : at + BRANCHES]
            sql = " UNION ALL ".join(f"SELECT n FROM {t} WHERE {text}" for t, text, _ in some)
            scans = world.con.explain(sql).to_dict()["scans"]
            for (table, text, expected), scan in zip(some, scans, strict=True):
                (dataset,) = scan["datasets"]
                kept = {int(_NUMBER.search(f)[1]) for f in dataset["files"]}
                assert expected <= kept, (zone, table, text, expected - kept)
                left = [s["by"] for s in dataset["steps"] if s["files_after"] < s["files_before"]]
                pruned |= {(table, by, kind) for by in left}
    wanted = {("d", by, kind) for by in EVIDENCE.values() for kind in KINDS}
    wanted |= {("f", EVIDENCE[name], kind) for name in OF_FOLDERS for kind in KINDS}
    assert wanted <= pruned, wanted - pruned
