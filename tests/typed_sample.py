"""Code as users write it, for mypy --strict; test_typing.py checks it, nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

import kartosql
from kartosql import C, Condition, Connection, Cube, KartosqlError, Query, ScanReport, dbapi
from kartosql.typing import ScanReportDict


def counted(con: Connection, month: int) -> int:
    query: Query = con.sql("SELECT count(*) FROM flights WHERE month = ?", [month])
    (row,) = query.rows()
    first: object = row[0]
    return int(str(first))


def built(url: str, rows: pa.Table) -> dict[str, Cube]:
    cube = Cube("sales", ["STORE", "DAY"], ["COUNTRY"], seed_dataset="seed", index_columns=["ITEM"])
    with kartosql.connect(url, engine="duckdb", memory_limit="1GB") as con:
        con.build_cube(cube, {"seed": rows})
        con.append_to_cube(cube, {"seed": rows})
        con.remove_partitions(cube, [("COUNTRY", "==", "DE")])
        return con.cubes()


def asked(con: Connection, cube: Cube) -> list[Query]:
    condition: Condition = C("COUNTRY") == "DE"
    found = con.query_cube(cube, conditions=condition, partition_by=["COUNTRY"])
    return found if isinstance(found, list) else [found]


def explained(con: Connection) -> tuple[str, ScanReportDict]:
    report: ScanReport = con.explain("SELECT * FROM flights")
    return str(report), report.to_dict()


def streamed(con: Connection) -> Iterator[pa.RecordBatch]:
    query = con.sql("SELECT * FROM flights")
    names: list[str] = query.columns
    assert names
    yield from query.reader()


def failed(con: Connection) -> tuple[str, str | None, tuple[int, int] | None]:
    try:
        con.sql("SELECT nothing")
    except KartosqlError as e:
        return e.code, e.hint, e.span
    return "", None, None


def through_dbapi(url: str) -> list[tuple[object, ...]]:
    with dbapi.connect(url, read_only=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT dest FROM flights WHERE month = ?", [7])
        return [*cursor.fetchall()]
