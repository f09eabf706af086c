"""Skipping indexes over columns whose names hold dots, quotes and more: pruned, unpruned and DuckDB's own answers.

KARTOSQL_ODD_NAMES=100x40 asks 40 predicates of each of 100 tables.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql

TABLES, PREDICATES = map(int, os.environ.get("KARTOSQL_ODD_NAMES", "2x12").split("x"))
NAMES = ["my.col", "a.b", "a.b.c", 'x"y', "A#b", "päth", "select", "$#$", "m`n", "o p", "..", "my_col"]
TEXTS = [None, "", "a", "B", "é", "x.y", "id=7 end", "id=8\rend", "\uffff", "\U0001f600"]
VALUES: dict[str, list[Any]] = {
    "BIGINT": [None, -5, 0, 1, 7, 2**40],
    "DOUBLE": [None, -0.0, 0.0, 1.5, float("nan"), -2.5],
    "VARCHAR": TEXTS,
    "DATE": [None, "1969-12-31", "2020-02-29"],
    "BOOLEAN": [None, True, False],
    "DECIMAL(9,2)": [None, "1.25", "-3.00"],
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any, type_: str) -> str:
    if isinstance(value, str):
        text = value.replace("'", "''")
        return f"'{text}'" if type_ == "VARCHAR" else f"CAST('{text}' AS {type_})"
    return f"CAST('{value}' AS DOUBLE)" if isinstance(value, float) else str(value)


def rows_of(chance: random.Random, columns: dict[str, str], part: int, own: Any) -> pa.Table:
    """Return some rows: the columns, and a struct ``a`` whose members are called as columns are."""
    picked = {name: chance.sample(VALUES[t], chance.randint(1, 2)) for name, t in columns.items()}
    items = []
    for _ in range(chance.randint(1, 4)):
        row = {n: chance.choice(picked[n]) for n in columns}
        fields = [f"CAST({'NULL' if v is None else literal(v, columns[n])} AS {columns[n]})" for n, v in row.items()]
        member = chance.choice([part, part + 100])
        struct = f"{{'b': {member}, 'b.c': '{chance.choice('xyz')}'}}" if chance.random() < 0.9 else "NULL"
        items.append(f'({part}, {", ".join(fields)}, CAST({struct} AS STRUCT(b BIGINT, "b.c" VARCHAR)))')
    names = ", ".join(map(quoted, ["p", *columns, "a"]))
    return own.sql(f"SELECT * FROM (VALUES {', '.join(items)}) v({names})").to_arrow_table()


def predicate(chance: random.Random, targets: list[tuple[str, str]], depth: int = 0) -> str:
    if depth < 2 and chance.random() < 0.4:
        left, right = (predicate(chance, targets, depth + 1) for _ in range(2))
        text = f"({left} {chance.choice(['AND', 'OR'])} {right})"
        return f"NOT {text}" if chance.random() < 0.2 else text
    column, type_ = chance.choice(targets)
    values = [literal(v, type_) for v in VALUES[type_] if v is not None]
    if column.endswith(("b", '"b.c"')) and column.startswith("a."):
        values = [str(chance.choice([0, 1, 2, 3, 100, 101, 102]))] if type_ == "BIGINT" else ["'x'", "'y'", "'q'"]
    value = chance.choice(values)
    if chance.random() < 0.15:
        return f"{column} IS {chance.choice(['', 'NOT '])}NULL"
    if chance.random() < 0.25:
        return f"{column} {chance.choice(['IN', 'NOT IN'])} ({value}, {chance.choice(values)})"
    return f"{column} {chance.choice(['=', '=', '<>', '<', '<=', '>', '>=', 'IS DISTINCT FROM'])} {value}"


def indexes(chance: random.Random, targets: list[tuple[str, str]]) -> str:
    found = []
    for column, type_ in targets:
        kinds = ["MINMAX", "VALUELIST", *(["BLOOMFILTER"] if type_ in ("BIGINT", "VARCHAR") else [])]
        found += [f"{kind}({column})" for kind in chance.sample(kinds, chance.randint(1, len(kinds)))]
    return ", ".join(found)


@pytest.mark.parametrize("kind", ["dataset", "cube", "parquet", "csv"])
def test_pruned_unpruned_and_duckdb_agree(kind, tmp_path, monkeypatch):
    own = duckdb.connect()
    pruned = 0
    for number in range(TABLES):
        chance = random.Random(f"{kind} {number}")
        columns = {n: chance.choice(list(VALUES)) for n in chance.sample(NAMES, 5)}
        parts = [rows_of(chance, columns, part, own) for part in range(4)]
        if kind == "csv":
            parts = [t.drop_columns("a") for t in parts]
        targets = [(quoted(n), t) for n, t in columns.items()]
        targets += [] if kind == "csv" else [("a.b", "BIGINT"), ('a."b.c"', "VARCHAR")]
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "store").mkdir()
        with kartosql.connect(folder / "store") as con:
            name = _stored(con, kind, folder, parts)
            types = {c: t for c, t, *_ in con.sql(f"DESCRIBE {name}").rows()}
            if kind == "csv":  # where a column may hold nothing but NULL
                targets = [(c, t) for c, t in targets if types[c[1:-1].replace('""', '"')] == _TYPES_OF[t]]
            con.sql(f"CREATE SKIPPING INDEX ON {name} ({indexes(chance, targets)})").rows()
            own.register("given", pa.concat_tables(parts, promote_options="permissive"))
            own.sql("CREATE OR REPLACE TABLE t AS SELECT * FROM given")
            shown = ", ".join(c for c, _ in targets if not c.startswith("a."))
            for _ in range(PREDICATES):
                where = predicate(chance, targets)
                source = con.sql(f"SELECT {shown} FROM {name} WHERE {where}")
                whole = con.sql(f"SELECT {shown} FROM {name} WHERE CASE WHEN random() >= 0 THEN {where} END")
                rows = Counter(map(repr, source.rows()))
                assert rows == Counter(map(repr, whole.rows())), (number, where, str(source.report))
                if kind != "csv":  # whose empty texts and types are those of the sniffer
                    wanted = own.sql(f"SELECT {shown} FROM t WHERE {where}").fetchall()
                    assert rows == Counter(map(repr, wanted)), (number, where)
                pruned += _leaves_out(source.report)
    assert pruned


_TYPES_OF = {**{t: t for t in VALUES}, "DECIMAL(9,2)": "DOUBLE"}  # as the sniffer takes them


def _leaves_out(report: Any) -> bool:
    steps = [step for s in report.to_dict()["scans"] for d in s["datasets"] for step in d["steps"]]
    return any(
        s["files_after"] < s["files_before"] and s["by"] in ("minmax", "valuelist", "bloomfilter") for s in steps
    )


def _stored(con: Any, kind: str, folder: Path, parts: list[pa.Table]) -> str:
    if kind == "dataset":
        con.create_dataset("d", pa.concat_tables(parts), partition_on=["p"])
        return "d"
    if kind == "cube":
        rows = pa.concat_tables(parts)
        rows = rows.append_column("k", pa.array(range(rows.num_rows)))
        con.build_cube(kartosql.Cube("c", ["k"], ["p"]), {"seed": rows})
        return "c"
    (folder / "f").mkdir()
    for at, part in enumerate(parts):
        if kind == "parquet":
            pq.write_table(part, folder / "f" / f"{at}.parquet")
        else:
            duckdb.from_arrow(part).write_csv(str(folder / "f" / f"{at}.csv"), header=True)
    with pytest.warns(kartosql.KartosqlWarning, match="there are no metadata"):
        con.attach(folder / "f", "t", type=kind, metadata=str(folder / "meta"))
    return "t"


def test_a_column_and_a_member_of_a_struct_may_read_the_same(tmp_path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        rows = {"p": [0, 1], "my.col": [5, 6], "a.b": [0, 1], "a": [{"b": 10}, {"b": 11}]}
        con.create_dataset("d", pa.table(rows), partition_on=["p"])
        made = con.create_skipping_index("d", minmax=["my.col", "a.b", '"a.b"'], valuelist='"a.b"')
        assert (made["indexes"], made["added"], made["unindexed"]) == (4, 2, 0)
        con.sql('CREATE SKIPPING INDEX ON d (MINMAX("my.col"), VALUELIST(a.b))').rows()
        shown = [row[1:3] for row in con.sql("SHOW SKIPPING INDEXES FROM d").rows()]
        wanted = [("minmax", '"my.col"'), ("minmax", "a.b"), ("minmax", '"a.b"')]
        assert shown == [*wanted, ("valuelist", '"a.b"'), ("valuelist", "a.b")]
        for where, files in (('"a.b" = 1', 1), ("a.b = 11", 1), ('"a.b" = 11', 0), ("a.b = 1", 0), ('"my.col" > 5', 1)):
            scan = con.explain(f"SELECT p FROM d WHERE {where}").to_dict()["scans"][0]["datasets"][0]
            assert scan["files_selected"] == files, where
        indexed = {c: i for c, *_, i in con.sql("DESCRIBE d").rows()}
        assert (indexed["my.col"], indexed["a.b"], indexed["a"]) == ("minmax", "minmax, valuelist", None)
        con.append_to_dataset("d", pa.table({**rows, "p": [2, 3]}))
        assert con.refresh_skipping_index("d")["kept"] == 4
        parts = [p for p in (tmp_path / "store").rglob("part-*") if p.is_file()]
        assert "my$#$col_minmax_8" in pq.read_schema(parts[0]).names  # as the document of the format has it


def test_what_the_original_says_of_a_member_is_not_said_of_a_column(tmp_path):
    from kartosql.formats.xskipper.kinds import IndexSpec
    from kartosql.formats.xskipper.layout import layout_for
    from kartosql.formats.xskipper.refreshing import Sources, refresh
    from kartosql.formats.xskipper.scans import DataFile, parquet_scan
    from kartosql.formats.xskipper.store import MetadataStore
    from kartosql.store import Store

    pq.write_table(pa.table({"a": [{"b": 1}]}), tmp_path / "x.parquet")
    (tmp_path / "m").mkdir()
    store = Store(str(tmp_path))
    layout = layout_for("/t", [IndexSpec("minmax", "a.b")], {"a.b": pa.int64()})
    refresh(store, "m", [DataFile("/t/x.parquet", 1, "x.parquet")], layout, Sources(parquet_scan(store)))
    found = MetadataStore.open(str(tmp_path / "m"))
    assert found.select("a.b = 2", [("/t/x.parquet", 1)]) == []
    assert found.select('"a.b" = 2', [("/t/x.parquet", 1)]) == ["/t/x.parquet"]
