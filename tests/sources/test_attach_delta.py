"""Delta tables: the rows of a version, whoever wrote it, pruned by its log; what is damaged is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from delta_tables import DeltaTable, column
from kartosql.errors import KartosqlError

UTC = dt.timezone.utc
VECTORS = ("deletionVectors",)


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def failure(con: Any, sql: str) -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        con.sql(sql).rows()
    return e.value


def steps(con: Any, sql: str) -> list[tuple[str, int, int]]:
    found = con.explain(sql).to_dict()["scans"][0]["datasets"][0]["steps"]
    return [(s["by"], s["files_before"], s["files_after"]) for s in found]


def counted(rows: Any) -> Counter[str]:
    return Counter(map(repr, rows))


def in_utc(row: dict[str, Any]) -> dict[str, Any]:
    zoned = {k: v for k, v in row.items() if isinstance(v, dt.datetime) and v.tzinfo is not None}
    return {**row, **{k: v.astimezone(UTC) for k, v in zoned.items()}}


def check(con: Any, table: DeltaTable, name: str = "d", engine: str = "duckdb") -> None:
    found = con.sql(f"FROM {name}", engine=engine).arrow()
    assert found.column_names == [f["name"] for f in table.fields]
    maps = [f.name for f in found.schema if pa.types.is_map(f.type)]
    rows = [{k: dict(v) if k in maps and v is not None else v for k, v in r.items()} for r in found.to_pylist()]
    wanted = [{k: dict(v) if k in maps and v is not None else v for k, v in r.items()} for r in table.live()]
    assert counted(map(in_utc, rows)) == counted(map(in_utc, wanted))
    assert con.sql(f"SELECT count(*) FROM {name}", engine=engine).rows() == [(len(wanted),)]


# -- tables that delta-rs writes -----------------------------------------------------------------


def test_each_statement_reads_the_newest_version_and_past_ones_by_number_and_time(con, tmp_path):
    path, times = tmp_path / "t", []
    for n in range(4):
        deltalake.write_deltalake(path, pa.table({"x": [n, n + 10]}), mode="append")
        os.utime(path / "_delta_log" / f"{n:020}.json", (1_700_000_000 + n * 60,) * 2)
        times.append(dt.datetime.fromtimestamp(1_700_000_000 + n * 60, UTC))
        if n == 0:
            con.attach(path, "d", type="delta")
        assert con.sql("SELECT count(*) FROM d").rows() == [(2 * n + 2,)]
    assert con.sql("SELECT max(x) FROM d AT (VERSION => 1)").rows() == [(11,)]
    assert con.sql(f"SELECT max(x) FROM d AT (TIMESTAMP => '{times[2]}')").rows() == [(12,)]
    con.sql(f"ATTACH '{path}' AS old (TYPE delta, VERSION 0)")
    con.sql(f"ATTACH '{path}' AS back (TYPE delta, AS_OF '{times[1] + dt.timedelta(seconds=59)}')")
    deltalake.DeltaTable(path).delete("x < 12")
    assert con.sql("SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM back), count(*) FROM d").rows() == [
        (2, 4, 2)
    ]
    assert failure(con, "FROM d AT (VERSION => 9)").code == "no-such-version"
    assert failure(con, "FROM d AT (TIMESTAMP => '2001-01-01')").code == "no-such-version"


def test_versions_whose_log_was_cleaned_up_are_gone(con, tmp_path):
    path = tmp_path / "t"
    for n in range(3):
        deltalake.write_deltalake(path, pa.table({"x": [n]}), mode="append")
    deltalake.DeltaTable(path).create_checkpoint()
    for n in range(2):
        (path / "_delta_log" / f"{n:020}.json").unlink()
    con.attach(path, "d", type="delta")
    assert con.sql("SELECT count(*) FROM d").rows() == [(3,)]
    assert failure(con, "FROM d AT (VERSION => 1)").code == "version-gone"
    assert failure(con, "FROM d AT (TIMESTAMP => '2001-01-01')").code == "version-gone"
    assert failure(con, f"ATTACH '{path}' AS o (TYPE delta, VERSION 0)").code == "version-gone"
    for checkpoint in (path / "_delta_log").glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    assert failure(con, f"ATTACH '{path}' AS o (TYPE delta)").code == "delta-invalid-log"


TEXTS = [None, "a", "B", "é", "a b", "a/b", "%41", "x=1", "a:b", "''", "𝄞" * 20, "z" * 70]
DATES = [None, dt.date(2020, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
MOMENTS = [
    None,
    *(dt.datetime(2020, 1, 1, 0, 0, 0, n, UTC) for n in (0, 1, 999, 1000)),
    dt.datetime(1950, 1, 1, tzinfo=UTC),
]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [None, -5, 0, 1, 2, 2**53 + 1]),
    "f": (pa.float64(), [None, -0.0, 0.0, 1.5, float("nan"), float("inf"), -2.5]),
    "r": (pa.float32(), [None, 0.10000000149011612, 0.5, -3.25]),
    "s": (pa.string(), [None, "", *TEXTS[1:]]),
    "d": (pa.date32(), DATES),
    "t": (pa.timestamp("us", "UTC"), MOMENTS),
    "n": (pa.decimal128(20, 3), [None, Decimal("0.001"), Decimal("-12345678901234567.123"), Decimal("5.000")]),
    "b": (pa.bool_(), [None, True, False]),
}


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    kind = {dt.date: "DATE", dt.datetime: "TIMESTAMPTZ", float: "DOUBLE"}.get(type(value))
    return f"CAST('{value}' AS {kind})" if kind else str(value)


def condition(chance: random.Random, values: dict[str, list[Any]], depth: int = 0) -> str:
    if depth < 2 and chance.random() < 0.3:
        left, right = (condition(chance, values, depth + 1) for _ in range(2))
        text = f"({left} {chance.choice(['AND', 'OR'])} {right})"
        return f"NOT {text}" if chance.random() < 0.2 else text
    name = chance.choice(sorted(values))
    if chance.random() < 0.2:
        return f"{name} IS {chance.choice(['', 'NOT '])}NULL"
    given = [literal(v) for v in chance.choices(values[name], k=2)]
    if chance.random() < 0.2:
        return f"{name} IN ({', '.join(given)})"
    return f"{name} {chance.choice(['=', '<>', '<', '<=', '>', '>=', '=', '<'])} {given[0]}"


def ask(con: Any, chance: random.Random, values: dict[str, list[Any]], count: int) -> int:
    """Ask about ``d`` and about its rows as registered; return how many statements left out files by the log."""
    pruned = 0
    for _ in range(count):
        text = condition(chance, values)
        columns = chance.choice([", ".join(values), "count(*)", "min(i), max(i), count(*)", "max(s), min(d), max(t)"])
        sql = f"SELECT {columns} FROM {{}} WHERE {text}"
        assert counted(con.sql(sql.format("d")).rows()) == counted(con.sql(sql.format("wanted")).rows()), sql
        pruned += any(by == "log statistics" and after < before for by, before, after in steps(con, sql.format("d")))
    return pruned


@pytest.mark.parametrize("seed", range(int(os.environ.get("KARTOSQL_DELTA", "2"))))
def test_tables_of_delta_rs_answer_as_it_does(con, tmp_path, seed):
    chance, path = random.Random(seed), tmp_path / "t"
    keys = chance.choice([[], ["p"], ["p", "q"]])
    values = {c: v for c, (_, v) in VALUES.items()} | {"p": TEXTS, "q": chance.choice([DATES, [None, 1, 2, 10]])}
    types = {c: t for c, (t, _) in VALUES.items()}
    types |= {"p": pa.string(), "q": pa.date32() if values["q"] is DATES else pa.int32()}
    attached, pruned = False, 0
    for _ in range(9):
        now = {c: t for c, t in types.items() if chance.random() < 0.8 or c in ("i", "p", "q")}
        count = chance.randint(1, 12)
        some = {c: chance.sample(v, min(3, len(v))) for c, v in values.items()}
        rows = pa.table({c: pa.array([chance.choice(some[c]) for _ in range(count)], t) for c, t in now.items()})
        mode = "overwrite" if chance.random() < 0.1 else "append"
        deltalake.write_deltalake(path, rows, mode=mode, partition_by=keys or None, schema_mode="merge")
        delta = deltalake.DeltaTable(path)
        action = chance.choice(["delete", "checkpoint", "compact", "vacuum", "", ""])
        if action == "delete":
            delta.delete(f"i = {chance.choice([0, 1, 2])}")
        elif action == "checkpoint":
            delta.create_checkpoint()
        elif action == "compact":
            delta.optimize.compact()
        elif action == "vacuum":
            delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
        if not attached:
            attached = con.attach(path, "d", type="delta") is None
        wanted = deltalake.DeltaTable(path).to_pyarrow_table()
        con.register("wanted", wanted)
        present = {c: v for c, v in values.items() if c in wanted.column_names}
        if {"s", "d", "t"} <= present.keys():
            pruned += ask(con, chance, present, 8)
        past = chance.randrange(deltalake.DeltaTable(path).version() + 1)
        if action != "vacuum":
            try:
                old = deltalake.DeltaTable(path, version=past).to_pyarrow_table()
            except Exception:  # noqa: BLE001 - its files were vacuumed
                continue
            assert counted(con.sql(f"FROM d AT (VERSION => {past})").rows()) == counted(
                map(tuple, (r.values() for r in old.to_pylist()))
            )
    assert pruned


# -- tables made by hand -------------------------------------------------------------------------

SIMPLE = [column("i", "long"), column("s", "string"), column("p", "string")]


def simple(root: Path, count: int = 4, **more: Any) -> DeltaTable:
    made = DeltaTable(root, SIMPLE, ["p"], **more)
    for n in range(count):
        made.add([{"i": 10 * n + k, "s": f"s{k}", "p": ["a", "b"][n % 2]} for k in range(5)])
    return made


@pytest.mark.parametrize("kind", ["i", "u", "p"])
@pytest.mark.parametrize("runs", [False, True])
def test_rows_of_deletion_vectors_do_not_count(con, tmp_path, kind, runs):
    made = simple(tmp_path / "t", features=VECTORS)
    con.attach(tmp_path / "t", "d", type="delta")
    names = list(made.rows)
    made.delete(names[0], [0, 2, 3], kind, runs, **({"folder": "ab"} if kind == "u" else {}))
    made.delete(names[1], [4], kind, runs)
    check(con, made)
    made.delete(names[0], [0, 1, 2, 3], kind, runs)
    made.delete(names[2], range(5), kind, runs)
    check(con, made)
    assert con.sql("SELECT min(i), max(i) FROM d").rows() == [(4, 34)]
    assert steps(con, "SELECT * FROM d WHERE i = 31") == [("log statistics", 4, 1)]
    made.checkpoint("json", parts=2)
    made.remove(names[0])
    check(con, made)
    con.attach(tmp_path / "t", "again", type="delta")
    check(con, made, "again")


def test_large_deletion_vectors(con, tmp_path):
    made = DeltaTable(tmp_path / "t", [column("i", "long")], features=VECTORS)
    name = made.add([{"i": k} for k in range(140_000)], group=100_000)
    made.delete(name, [*range(60_000), *range(100_000, 120_000, 7), 139_999])
    con.attach(tmp_path / "t", "d", type="delta")
    wanted = [r["i"] for r in made.live()]
    assert con.sql("SELECT count(*), sum(i) FROM d").rows() == [(len(wanted), sum(wanted))]


NESTED = {"type": "struct", "fields": [column("x", "integer", "p-x", 11), column("y", "string", "p-y", 12)]}
MAPPED = [
    column("i", "long", "col-1", 1),
    column("n", NESTED, "col-2", 2),
    column("l", {"type": "array", "elementType": NESTED, "containsNull": True}, "col-3", 3),
    column("m", {"type": "map", "keyType": "string", "valueType": NESTED, "valueContainsNull": True}, "col-4", 4),
    column("p", "long", "col-5", 5),
]
DEEP = [None, {"x": 1, "y": "a"}, {"x": None, "y": "b"}]


def mapped_row(chance: random.Random, p: int | None) -> dict[str, Any]:
    some = [chance.choice([None, [chance.choice(DEEP) for _ in range(chance.randrange(3))]]) for _ in range(2)]
    entries = None if some[1] is None else [(f"k{n}", v) for n, v in enumerate(some[1])]
    return {"i": chance.randrange(9), "n": chance.choice(DEEP), "l": some[0], "m": entries, "p": p}


def mapped(root: Path, mode: str) -> DeltaTable:
    return DeltaTable(
        root, MAPPED, ["p"], features=("columnMapping",), configuration={"delta.columnMapping.mode": mode}
    )


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_have_other_names_in_files_and_may_be_renamed_swapped_and_dropped(con, tmp_path, mode):
    made, chance = mapped(tmp_path / "t", mode), random.Random(5)
    for n in range(6):
        made.add([mapped_row(chance, [None, 1, 2][n % 3]) for _ in range(4)])
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    # A column goes and another one takes its name, the names of two members are swapped, and a file holds the new one.
    swapped = {**NESTED, "fields": [column("y", "integer", "p-x", 11), column("x", "string", "p-y", 12)]}
    fields = [
        column("j", "long", "col-1", 1),
        column("n", swapped, "col-2", 2),
        MAPPED[4],
        column("i", "string", "col-9", 9),
    ]
    made.evolve(fields)
    for rows in made.rows.values():
        for row in rows:
            row["j"], row["n"], row["i"] = row["i"], row["n"] and {"y": row["n"]["x"], "x": row["n"]["y"]}, None
    made.add([{"j": 100, "n": {"y": 5, "x": "c"}, "i": "new", "p": 1}])
    check(con, made)
    assert steps(con, "SELECT * FROM d WHERE j = 100") == [("log statistics", 7, 1)]
    assert con.sql("SELECT n.y, i FROM d WHERE j = 100 AND p = 1").rows() == [(5, "new")]
    assert con.sql("SELECT count(*) FROM d WHERE i IS NULL").rows() == [(24,)]
    made.checkpoint()
    con.attach(tmp_path / "t", "again", type="delta")
    check(con, made, "again")


def test_ids_find_columns_whatever_files_call_them(con, tmp_path):
    made = DeltaTable(
        tmp_path / "t",
        [column("i", "long", "col-1", 1), column("s", "string", "col-2", 2)],
        features=("columnMapping",),
        configuration={"delta.columnMapping.mode": "id"},
    )
    made.add([{"i": 1, "s": "a"}])
    made.add([{"i": 2, "s": "b"}], names=["col-2", "anything"])
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    assert con.sql("SELECT s FROM d WHERE i = 2").rows() == [("b",)]
    name = made.add([{"i": 3, "s": "c"}])
    pq.write_table(pa.table({"col-1": [3], "col-2": ["c"]}), made.root / name)
    assert failure(con, "FROM d WHERE i = 3").code == "schema-mismatch"


@pytest.mark.parametrize("without", ["both", "one", "neither"])
def test_footers_tell_of_columns_of_which_the_log_does_not(con, tmp_path, without):
    made = DeltaTable(
        tmp_path / "t",
        [column("i", "long", "col-1", 1), column("s", "string", "col-2", 2)],
        features=("columnMapping",),
        configuration={"delta.columnMapping.mode": "name"},
    )
    for n in range(40):
        rows = [{"i": 10 * n + k, "s": f"s{n:03}"} for k in range(3)]
        told = json.loads(made.stats(rows))
        for part in ("minValues", "maxValues", "nullCount"):
            told[part] = (
                {} if without == "both" else {k: v for k, v in told[part].items() if without != "one" or k == "col-1"}
            )
        made.add(rows, stats=json.dumps(told))
    con.attach(tmp_path / "t", "d", type="delta")
    for sql in ("SELECT * FROM d WHERE i = 101", "SELECT * FROM d WHERE s = 's007'"):
        by = "row groups" if without == "both" or (without == "one" and "s =" in sql) else "log statistics"
        assert steps(con, sql) == [(by, 40, 1)], sql
    check(con, made)


@pytest.mark.parametrize("kind", ["classic", "parts", "json", "parquet"])
@pytest.mark.parametrize("structs", [False, True])
def test_checkpoints_of_all_kinds(con, tmp_path, kind, structs):
    made = simple(tmp_path / "t", 7, features=("v2Checkpoint", *VECTORS))
    made.delete(list(made.rows)[2], [1, 3])
    made.remove(list(made.rows)[4])
    made.checkpoint(kind, parts=1 if kind == "classic" else 3, structs=structs)
    for n in range(made.version + 1):
        (made.log / f"{n:020}.json").unlink()
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    assert steps(con, "SELECT * FROM d WHERE i > 52 AND p = 'a'") == [("partition key", 6, 3), ("log statistics", 3, 1)]
    made.add([{"i": 70, "s": "new", "p": "c"}])
    made.remove(next(iter(made.rows)))
    check(con, made)
    if kind != "classic":
        gone = sorted((made.log / "_sidecars").iterdir() if kind != "parts" else made.log.glob("*.parquet"))[0]
        gone.unlink()
        assert failure(con, f"ATTACH '{made.root}' AS e (TYPE delta)").code in ("delta-invalid-log", "version-gone")


def test_values_of_partitions_are_typed_and_may_be_anything(con, tmp_path):
    fields = [column("x", "long"), column("s", "string"), column("n", "decimal(10,2)"), column("t", "timestamp")]
    fields += [
        column("d", "date"),
        column("b", "boolean"),
        column("f", "double"),
        column("y", "binary"),
        column("u", "timestamp_ntz"),
    ]
    made = DeltaTable(tmp_path / "t", fields, [f["name"] for f in fields[1:]], features=("timestampNtz",))
    moment = dt.datetime(2021, 1, 2, 3, 4, 5, 678, UTC)
    row = {"x": 1, "n": Decimal("1.20"), "t": moment, "d": dt.date(1900, 1, 1), "b": True, "f": -1.5, "y": b"\1a"}
    row |= {"s": None, "u": moment.replace(tzinfo=None)}
    for n, text in enumerate(TEXTS):
        more = {"texts": {"y": "\1a", "t": "2021-01-02T03:04:05.000678Z"} if n % 2 else {"y": "\1a"}}
        made.add([{**row, "s": text, "x": n}], folder=["", "a b/", "p=%25x/", "é/ü=1/"][n % 4], **more)
    made.add([{**dict.fromkeys(row), "x": 99}], texts={"s": ""})
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    for n, text in enumerate(TEXTS[1:], 1):
        assert con.sql("SELECT x FROM d WHERE s = ?", [text]).rows() == [(n,)]
    assert con.sql("SELECT count(*) FROM d WHERE t = ? AND n = 1.2 AND y = '\\x01a'::BLOB", [moment]).rows() == [
        (len(TEXTS),)
    ]
    assert steps(con, "SELECT * FROM d WHERE s IS NULL AND d < DATE '2000-01-01'") == [
        ("partition key", len(TEXTS) + 1, 1)
    ]


WIDER = [
    ("byte", "long", pa.int8(), [None, -128, 127]),
    ("integer", "double", pa.int32(), [None, -(2**31), 2**31 - 1]),
    ("short", "decimal(12,2)", pa.int16(), [None, -5, 300]),
    ("float", "double", pa.float32(), [None, 0.10000000149011612, -2.5]),
    ("decimal(4,1)", "decimal(9,3)", pa.decimal128(4, 1), [None, Decimal("1.5"), Decimal("-99.9")]),
    ("date", "timestamp_ntz", pa.date32(), [None, dt.date(2020, 1, 1), dt.date(1960, 1, 1)]),
]


def widened(root: Path) -> DeltaTable:
    types = {f"c{n}": w[2] for n, w in enumerate(WIDER)}
    fields = [
        column(f"c{n}", w[1], **{"delta.typeChanges": [{"fromType": w[0], "toType": w[1]}]})
        for n, w in enumerate(WIDER)
    ]
    made = DeltaTable(root, fields, features=("typeWidening", "timestampNtz"))
    for at in range(3):
        row = {f"c{n}": w[3][at] for n, w in enumerate(WIDER)}
        told = made.stats([row])
        made.add([row], types, stats=told.replace("0.10000000149011612", "0.1"))
        made.rows[list(made.rows)[-1]] = [as_wide(row)]
    made.add(
        [
            {
                "c0": 2**40,
                "c1": 0.5,
                "c2": Decimal("1.25"),
                "c3": 0.1,
                "c4": Decimal("1.125"),
                "c5": dt.datetime(2020, 1, 1, 5),
            }
        ]
    )
    return made


def as_wide(row: dict[str, Any]) -> dict[str, Any]:
    moment = row["c5"] and dt.datetime.combine(row["c5"], dt.time())
    found = {**row, "c1": row["c1"] and float(row["c1"]), "c5": moment}
    for name, digits in (("c2", "1.00"), ("c4", "1.000")):
        found[name] = row[name] and Decimal(row[name]).quantize(Decimal(digits))
    return found


def test_types_widen_and_digits_of_narrower_ones_leave_out_nothing(con, tmp_path):
    made = widened(tmp_path / "t")
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    assert con.sql("SELECT count(*) FROM d WHERE c3 > 0.1").rows() == [(1,)]
    for value in (0.1, 0.10000000149011612):
        assert con.sql("SELECT count(*) FROM d WHERE c3 = ?", [value]).rows() == [(1,)]
    assert con.sql("SELECT c0 FROM d WHERE c5 = TIMESTAMP '2020-01-01'").rows() == [(-128,)]
    assert steps(con, "SELECT * FROM d WHERE c0 > 127") == [("log statistics", 4, 1)]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_moments_are_read_in_utc_and_cut_in_the_log(con, tmp_path, zone):
    fields = [column("t", "timestamp"), column("u", "timestamp_ntz")]
    made = DeltaTable(tmp_path / "t", fields, features=("timestampNtz",))
    for n in range(4):
        moment = dt.datetime(2020, 3, 8, 2, 30, n, 123_456 + n, UTC)
        row = {"t": moment, "u": moment.replace(tzinfo=None)}
        made.add([row], **({"int96": True, "lacking": ["u"]} if n == 2 else {}))
        if n == 2:
            made.rows[list(made.rows)[-1]] = [{**row, "u": None}]
    con.attach(tmp_path / "t", "d", type="delta")
    con.sql(f"SET TimeZone = '{zone}'")
    assert [r[0].astimezone(UTC) for r in con.sql("SELECT t FROM d ORDER BY t").rows()] == [r["t"] for r in made.live()]
    for n in range(4):
        found = con.sql("SELECT count(*) FROM d WHERE t = ?", [made.live()[n]["t"]])
        assert found.rows() == [(1,)]
    sql = "SELECT * FROM d WHERE u = TIMESTAMP '2020-03-08 02:30:03.123459'"
    assert (len(con.sql(sql).rows()), steps(con, sql)) == (1, [("log statistics", 4, 1)])
    assert con.sql("SELECT max(u) FROM d").rows() == [(dt.datetime(2020, 3, 8, 2, 30, 3, 123_459),)]


# -- statistics that lie -------------------------------------------------------------------------

LIES = [
    "", "{", "[]", "null", "5", '"x"', "{} {}", "{}\n{}", '{"numRecords": "five"}',
    '{"numRecords": 5, "minValues": []}',
    '{"numRecords": 5, "minValues": {"i": "0"}, "maxValues": {"i": "9"}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"i": 0.5}, "maxValues": {"i": 0.7}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"i": 99}, "maxValues": {"i": 9}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"i": 1e400}, "maxValues": {"i": 1e999}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"i": 0}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"i": 7}, "maxValues": {"i": 7}, "nullCount": {"i": 6}}',
    '{"numRecords": 5, "minValues": {"i": 7}, "maxValues": {"i": 7}, "nullCount": {"i": -1}}',
    '{"numRecords": 1' + "0" * 30 + ', "minValues": {"i": 7}, "maxValues": {"i": 7}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"i": 9}, "maxValues": {"i": 999}, "nullCount": {"i": 1' + "0" * 30 + "}}",
    '{"numRecords": -5, "minValues": {"i": 7}, "maxValues": {"i": 7}, "nullCount": {"i": 0}}',
    '{"minValues": {"i": 7}, "maxValues": {"i": 7}, "nullCount": {"i": 0}}',
    '{"numRecords": 5, "minValues": {"s": "\\ud800"}, "maxValues": {"s": "\\ud801"}, "nullCount": {"s": 0}}',
    '{"numRecords": 5, "minValues": {"i": 1' + "0" * 30 + '}, "maxValues": {"i": 1' + "0" * 31 + '}}',
    '{"a":' * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(LIES)))
def test_statistics_of_another_form_are_as_none_and_those_of_others_still_count(con, tmp_path, at):
    made = simple(tmp_path / "t", 3)
    made.add([{"i": k, "s": "z", "p": "a"} for k in range(100, 105)], stats=LIES[at])
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    assert con.sql("SELECT count(*), min(i), max(i) FROM d WHERE i > 90").rows() == [(5, 100, 104)]
    assert con.sql("SELECT count(*) FROM d WHERE s = 'z'").rows() == [(5,)]
    assert steps(con, "SELECT * FROM d WHERE i BETWEEN 11 AND 12")[-1][::2] in [
        ("log statistics", 1),
        ("log statistics", 2),
    ]


def test_rough_bounds_are_no_values(con, tmp_path):
    made = simple(tmp_path / "t", 1)
    told = {
        "numRecords": 5,
        "minValues": {"i": -1},
        "maxValues": {"i": 1000},
        "nullCount": {"i": 2},
        "tightBounds": False,
    }
    made.add([{"i": k, "s": None, "p": "a"} for k in range(100, 105)], stats=json.dumps(told))
    con.attach(tmp_path / "t", "d", type="delta")
    assert con.sql("SELECT min(i), max(i) FROM d").rows() == [(0, 104)]
    assert con.sql("SELECT count(*) FROM d WHERE i IS NULL").rows() == [(0,)]
    assert con.sql("SELECT count(*) FROM d WHERE i IS NOT NULL").rows() == [(10,)]


# -- what is damaged or hostile ------------------------------------------------------------------


def rewritten(made: DeltaTable, old: str, new: str) -> None:
    for path in made.log.glob("*.json"):
        text = path.read_text("utf-8")
        if old in text:
            path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: (m.log / f"{2:020}.json").write_bytes(b'{"add": {"pa'), "torn"),
        (lambda m: (m.log / f"{2:020}.json").write_bytes(b"[]\n"), "no list of actions"),
        (lambda m: (m.log / f"{m.version:020}.json").write_bytes(b"\n"), "nothing in it"),
        (lambda m: (m.log / f"{2:020}.json").write_bytes(b'{"add": {"path": 5}}\n'), "no list of actions"),
        (lambda m: (m.log / f"{2:020}.json").write_bytes(b'{"add": {"path": "x"}}\n'), "no path or no size"),
        (lambda m: (m.log / f"{2:020}.json").write_bytes(b'{"add": {"path": "x", "size": "big"}}\n'), "odd"),
        (lambda m: (m.log / f"{2:020}.json").write_bytes(b'{"a":' * 100_000), "no list of actions"),
        (lambda m: (m.log / f"{2:020}.json").unlink(), "the commit is missing"),
        (lambda m: (m.log / f"{0:020}.json").write_bytes(b"{}\n"), "neither"),
        (lambda m: (m.log / f"{m.version:020}.checkpoint.parquet").write_bytes(b"PAR1"), None),
        (lambda m: rewritten(m, '\\"long\\"', '\\"lung\\"'), "lung"),
        (lambda m: rewritten(m, "schemaString", "schema"), "schema"),
        (lambda m: rewritten(m, '"partitionColumns": ["p"]', '"partitionColumns": ["q"]'), "partition"),
    ],
)
def test_a_log_that_is_damaged_is_refused_where_nothing_follows_from_it(con, tmp_path, change, said):
    made = simple(tmp_path / "t", 3)
    change(made)
    if said is None:
        con.attach(tmp_path / "t", "d", type="delta")  # by the commits
        check(con, made)
        return
    error = failure(con, f"ATTACH '{made.root}' AS d (TYPE delta)")
    assert error.code in ("delta-invalid-log", "unsupported-type")
    assert said in str(error), error
    assert con.sql("SHOW ATTACHED").rows() == []


def test_checkpoints_that_are_damaged_count_if_no_commits_do(con, tmp_path):
    made = simple(tmp_path / "t", 3)
    made.checkpoint()
    path = made.log / f"{made.version:020}.checkpoint.parquet"
    whole = path.read_bytes()
    for n in range(made.version + 1):
        (made.log / f"{n:020}.json").unlink()
    for cut in (0, 4, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert failure(con, f"ATTACH '{made.root}' AS d (TYPE delta)").code == "delta-invalid-log"
    chance = random.Random(1)
    path.write_bytes(whole)
    con.attach(tmp_path / "t", "d", type="delta")
    told: set[str] = set()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        told.add(code_of(con, f"ATTACH OR REPLACE '{made.root}' AS e (TYPE delta)"))
    known = {"", "delta-invalid-log", "unsupported-feature", "unsafe-key", "schema-conflict", "unsupported-type"}
    assert told <= known


def code_of(con: Any, sql: str) -> str:
    try:
        con.sql(sql).rows()
    except KartosqlError as e:
        return e.code
    return ""


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        ({"minReaderVersion": 3, "readerFeatures": ["columnMapping", "variantType"]}, "variantType"),
        ({"minReaderVersion": 3, "readerFeatures": ["catalogManaged", "x" * 5000]}, "catalogManaged"),
        ({"minReaderVersion": 4}, "reader version 4"),
        ({"minReaderVersion": None}, "reader version None"),
        ({"minReaderVersion": 3, "readerFeatures": 5}, "reader version 3"),
    ],
)
def test_features_that_are_not_known_are_refused_by_name(con, tmp_path, protocol, named):
    made = simple(tmp_path / "t")
    con.attach(tmp_path / "t", "d", type="delta")
    made.commit({"protocol": protocol})
    for sql in ("FROM d", f"ATTACH '{made.root}' AS e (TYPE delta)"):
        error = failure(con, sql)
        assert (error.code, named in str(error)) == ("unsupported-feature", True)
    assert len(con.sql("FROM d AT (VERSION => 2)").rows()) == 10


@pytest.mark.parametrize(
    "odd",
    [
        {"cardinality": 2}, {"sizeInBytes": 3}, {"sizeInBytes": 10**9}, {"sizeInBytes": None}, {"offset": 7},
        {"offset": 10**6}, {"offset": -1}, {"pathOrInlineDv": "short"}, {"pathOrInlineDv": "é" * 20},
        {"storageType": "x"}, {"cardinality": None},
        {"storageType": "i"}, {"pathOrInlineDv": "0" * 20},
    ],
)  # fmt: skip
def test_deletion_vectors_that_are_damaged_are_refused_for_their_file_alone(con, tmp_path, odd):
    made = simple(tmp_path / "t", features=VECTORS)
    made.delete(next(iter(made.rows)), [0, 1, 4], "u", **odd)
    con.attach(tmp_path / "t", "d", type="delta")
    assert failure(con, "FROM d").code == "delta-invalid-vector"
    assert failure(con, "SELECT i FROM d WHERE i = 3").code == "delta-invalid-vector"
    assert con.sql("SELECT count(*) FROM d WHERE i >= 10").rows() == [(15,)]


def test_deletion_vectors_with_another_checksum_or_with_rows_that_are_not_there_are_refused(con, tmp_path):
    made = simple(tmp_path / "t", features=VECTORS)
    names = list(made.rows)
    made.delete(names[0], [0, 5])
    made.delete(names[1], [2])
    path = max(made.root.glob("deletion_vector_*"), key=lambda p: p.stat().st_mtime_ns)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    con.attach(tmp_path / "t", "d", type="delta")
    assert failure(con, "FROM d WHERE i < 10").code == "invalid-metadata"
    error = failure(con, "FROM d WHERE i BETWEEN 10 AND 19")
    assert (error.code, "checksum" in str(error)) == ("delta-invalid-vector", True)


@pytest.mark.parametrize(
    "path", ["../o/x.parquet", "/etc/passwd", "file:///etc/passwd", "s3://b/x", "a/../../x", "%2e%2e/x", "a%00b"]
)
def test_paths_that_leave_the_table_are_refused(con, tmp_path, path):
    made = simple(tmp_path / "t", 1)
    made.commit({"add": {"path": path, "size": 5, "partitionValues": {"p": "a"}, "dataChange": True}})
    assert failure(con, f"ATTACH '{made.root}' AS d (TYPE delta)").code == "unsafe-key"


def test_a_shallow_clone_reads_the_files_of_its_source_if_that_is_said(con, tmp_path):
    source, clone = simple(tmp_path / "source", 2, features=VECTORS), simple(tmp_path / "clone", 1, features=VECTORS)
    name = list(source.rows)[1]
    source.delete(name, [1], "p")
    clone.commit({"add": {**source.adds[name], "path": f"file://{source.root}/{name}"}})
    error = failure(con, f"ATTACH '{clone.root}' AS d (TYPE delta)")
    assert (error.code, "CLONE_OF" in str(error)) == ("unsafe-key", True)
    con.sql(f"ATTACH '{clone.root}' AS d (TYPE delta, CLONE_OF '{source.root}')")
    assert con.sql("SELECT count(*), max(i) FROM d").rows() == [(9, 14)]
    with kartosql.connect(tmp_path / "store", attach=[str(clone.root)]) as narrow:
        assert (
            failure(narrow, f"ATTACH '{clone.root}' AS d (TYPE delta, CLONE_OF '{source.root}')").code == "not-allowed"
        )


def test_links_and_missing_files_are_errors_of_their_own(con, tmp_path):
    made = simple(tmp_path / "t")
    names = list(made.rows)
    shutil.copy(made.root / names[0], tmp_path / "outside.parquet")
    (made.root / names[0]).unlink()
    (made.root / names[0]).symlink_to(tmp_path / "outside.parquet")
    (made.root / names[1]).unlink()
    con.attach(tmp_path / "t", "d", type="delta")
    assert failure(con, "FROM d WHERE i < 10").code == "unsafe-key"
    assert failure(con, "FROM d WHERE i BETWEEN 10 AND 19").code == "missing-file"
    assert len(con.sql("FROM d WHERE i >= 20").rows()) == 10
    (made.root / names[2]).write_bytes(b"no Parquet at all")
    assert failure(con, "FROM d WHERE i BETWEEN 20 AND 29").code == "corrupt-file"


def test_a_file_of_another_schema_is_named(con, tmp_path):
    made = simple(tmp_path / "t")
    name = made.add([{"i": 50, "s": "x", "p": "a"}])
    pq.write_table(pa.table({"i": ["text"], "s": ["x"]}), made.root / name)
    con.attach(tmp_path / "t", "d", type="delta")
    error = failure(con, "FROM d WHERE i >= 50")
    assert (error.code, name in str(error)) == ("schema-mismatch", True)


def test_a_table_that_is_made_anew_in_the_same_place(con, tmp_path):
    made = simple(tmp_path / "t")
    con.attach(tmp_path / "t", "d", type="delta")
    check(con, made)
    shutil.rmtree(made.root)
    other = DeltaTable(tmp_path / "t", [column("z", "string")])
    other.add([{"z": "new"}])
    check(con, other)
    shutil.rmtree(made.root)
    assert failure(con, "FROM d").code == "delta-invalid-log"


def test_a_statement_reads_one_version_while_others_commit(con, tmp_path):
    made = simple(tmp_path / "t")
    con.attach(tmp_path / "t", "d", type="delta")
    running = con.sql("SELECT i FROM d")
    before = counted(running.rows())
    reading = con.sql("SELECT i FROM d").reader()
    made.add([{"i": 1000, "s": None, "p": "a"}])
    assert counted((r["i"],) for r in reading.read_all().to_pylist()) == before
    assert con.sql("SELECT max(i) FROM d").rows() == [(1000,)]
    assert con.sql("SELECT (SELECT count(*) FROM d) - (SELECT count(*) FROM d AS e)").rows() == [(0,)]


@pytest.mark.parametrize(
    "options", ["VERSION 'x'", "VERSION -1", "VERSION 1, AS_OF '2020-01-01'", "AS_OF 'now'", "HIVE_PARTITIONING true"]
)
def test_options_that_mean_nothing(con, tmp_path, options):
    made = simple(tmp_path / "t")
    assert failure(con, f"ATTACH '{made.root}' AS d (TYPE delta, {options})").code in ("invalid-option", "syntax-error")


def test_commits_note_their_times_themselves(con, tmp_path):
    made = DeltaTable(tmp_path / "t", [column("x", "long")])
    for n in range(1, 5):
        made.add([{"x": n}])
        path = made.log / f"{n:020}.json"
        noted = {"commitInfo": {"inCommitTimestamp": 1_700_000_000_000 + n * 1000}}
        path.write_text(json.dumps(noted) + "\n" + path.read_text("utf-8"), "utf-8")
    os.utime(made.log / f"{0:020}.json", (1, 1))
    con.attach(tmp_path / "t", "d", type="delta")
    for n in range(1, 5):
        at = dt.datetime.fromtimestamp(1_700_000_000 + n, UTC)
        assert con.sql(f"SELECT max(x) FROM d AT (TIMESTAMP => '{at}')").rows() == [(n,)]


@pytest.mark.parametrize("seed", range(int(os.environ.get("KARTOSQL_DELTA", "2"))))
def test_random_tables_pruned_and_not_have_the_same_rows(con, tmp_path, seed):
    chance = random.Random(1000 + seed)
    fields = [
        column("i", "long"),
        column("f", "double"),
        column("r", "float"),
        column("s", "string"),
        column("d", "date"),
    ]
    fields += [column("t", "timestamp"), column("n", "decimal(20,3)"), column("b", "boolean"), column("p", "string")]
    made = DeltaTable(tmp_path / "t", fields, ["p"], features=("deletionVectors", "v2Checkpoint"))
    values = {c: v for c, (_, v) in VALUES.items()} | {"p": TEXTS}
    con.attach(tmp_path / "t", "d", type="delta")
    pruned = 0
    for _ in range(12):
        some = {c: chance.sample(v, min(2, len(v))) for c, v in values.items()}
        part = chance.choice(some["p"])
        rows = [{**{c: chance.choice(v) for c, v in some.items()}, "p": part} for _ in range(chance.randint(1, 9))]
        name = made.add(rows, **({"stats": None} if chance.random() < 0.1 else {}))
        action = chance.random()
        if action < 0.4:
            made.delete(
                name, sorted(chance.sample(range(len(rows)), chance.randint(1, len(rows)))), chance.choice("iup")
            )
        elif action < 0.5:
            made.remove(chance.choice(list(made.rows)))
        elif action < 0.7:
            made.checkpoint(chance.choice(["classic", "parts", "json", "parquet"]), 1 + (action > 0.6), action > 0.65)
            con.sql(f"ATTACH OR REPLACE '{made.root}' AS d (TYPE delta)")
        con.register(
            "wanted",
            pa.Table.from_pylist(
                made.live(), pa.schema([(c, VALUES[c][0] if c in VALUES else pa.string()) for c in values])
            ),
        )
        pruned += ask(con, chance, values, 6)
    assert pruned
