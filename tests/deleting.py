"""Tables with deleted rows, made by hand: files, the positions deleted of them, and files of deleted keys."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import kartosql
from kartosql.tables.table import Deletes, KeyDeletes, Table


@dataclass(frozen=True)
class Keys:
    """Files whose rows delete those with the same ``key``, by number in the sequence, and by scope perhaps."""

    key: Sequence[str]
    files: Sequence[pa.Table]
    sequence: Sequence[int]
    scope: Sequence[int] = ()


@dataclass(frozen=True)
class Lake:
    """A table to be: ``files`` by folder, what is deleted of them, and the columns that are seen."""

    files: Mapping[str, pa.Table]
    positions: Mapping[int, Any] = field(default_factory=dict)
    keys: Sequence[Keys] = ()
    sequence: Sequence[int] = ()
    scope: Sequence[int] = ()
    hidden: Sequence[str] = ()


class _Given:
    """A folder that is attached, with a rule for its rows."""

    def __init__(self, inner: Any, rule: Deletes, hidden: Sequence[str]) -> None:
        self._inner, self._rule, self._hidden = inner, rule, hidden

    def now(self) -> dict[str, Any]:
        return dict.fromkeys(self._inner.now(), self)

    def find(self, rest: tuple[str, ...], as_of: str | None = None) -> Table | None:
        (found,) = self._inner.now().values()
        table: Table = found.find(rest, as_of)
        columns = {c: t for c, t in table.columns.items() if c not in self._hidden}
        part = replace(table.parts[0], rows=self._rule, columns=tuple(columns))
        return replace(table, columns=columns, parts=(part,))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def lake(con: kartosql.Connection, path: Path, name: str, made: Lake, row_group_size: int = 3) -> None:
    """Write files below ``path`` and attach them as ``name``, with their rule."""
    for at, (folder, rows) in enumerate(made.files.items()):
        place = path / name / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, f"{place}-{at:03}.parquet", row_group_size=row_group_size)
    con.attach(path / name, name)
    keys = []
    for number, one in enumerate(made.keys):
        other = f"{name}_deletes_{number}"
        (path / other).mkdir()
        for at, rows in enumerate(one.files):
            pq.write_table(rows, path / other / f"{at:03}.parquet")
        con.attach(path / other, other)
        table = con.tables().find((other,)).parts[0].table
        keys.append(KeyDeletes(table, tuple(one.key), tuple(one.sequence), tuple(one.scope)))
    positions = {f: p if isinstance(p, pa.Array) else pa.array(p, pa.int64()) for f, p in made.positions.items()}
    rule = Deletes(positions, tuple(keys), tuple(made.sequence), tuple(made.scope))
    entries = con._session.attachments.entries
    entries[name] = replace(entries[name], attachment=_Given(entries[name].attachment, rule, made.hidden))


def expected(made: Lake) -> list[dict[str, Any]]:
    """Return the rows that are left, computed row by row."""
    left = []
    for at, (folder, rows) in enumerate(made.files.items()):
        parts = dict(p.split("=") for p in folder.split("/")[:-1])
        gone = set(made.positions.get(at, ()))
        for row, values in enumerate(rows.to_pylist()):
            if row not in gone and not any(_is_gone(values, at, one, made) for one in made.keys):
                left.append({**{k: v for k, v in values.items() if k not in made.hidden}, **parts})
    return left


def _is_gone(values: Mapping[str, Any], file: int, one: Keys, made: Lake) -> bool:
    for at, rows in enumerate(one.files):
        applies = made.sequence[file] < one.sequence[at] and (not one.scope or one.scope[at] == made.scope[file])
        if applies and any(all(_same(values[c], other[c]) for c in one.key) for other in rows.to_pylist()):
            return True
    return False


def _same(one: Any, other: Any) -> bool:
    if one != one or other != other:
        return one != one and other != other
    return bool(one == other)


def rows(con: kartosql.Connection, sql: str, engine: str = "duckdb") -> list[tuple[Any, ...]]:
    """Return the rows of a query in an order."""
    return sorted(con.sql(sql, engine=engine).rows(), key=repr)


NAN = float("nan")


def a_lake(choose: random.Random) -> Lake:
    """Return a random table with both kinds of deletes; few values, so that many are the same."""
    texts = [None, "", "a", "A", "ä", "𝄞", "a\0b", "a' b"]
    floats = [None, 0.0, 1.5, NAN, float("inf"), -1.5]

    def some(count: int) -> pa.Table:
        return pa.table(
            {
                "x": pa.array([choose.choice([None, 0, 1, 2, -(2**63), 2**63 - 1]) for _ in range(count)], pa.int64()),
                "s": pa.array([choose.choice(texts) for _ in range(count)], pa.string()),
                "d": pa.array([choose.choice(floats) for _ in range(count)], pa.float64()),
            }
        )

    count = choose.randrange(1, 9)
    # In the order in which they are listed.
    files = {name: some(choose.randrange(9)) for name in sorted(f"p={choose.randrange(3)}/f{n}" for n in range(count))}
    sizes = [t.num_rows for t in files.values()]
    positions = {
        n: sorted(choose.sample(range(sizes[n]), choose.randrange(sizes[n] + 1)))
        for n in range(count)
        if choose.random() < 0.5
    }
    keys = []
    for _ in range(choose.randrange(3)):
        key = choose.sample(["x", "s", "d"], choose.randrange(1, 4))
        given = [some(choose.randrange(4)).select(key) for _ in range(choose.randrange(1, 4))]
        scope = [choose.randrange(2) for _ in given] if choose.random() < 0.5 else ()
        keys.append(Keys(key, given, [choose.randrange(5) for _ in given], scope))
    numbered = [choose.randrange(5) for _ in files]
    return Lake(files, positions, tuple(keys), numbered, [choose.randrange(2) for _ in files])


CONDITIONS = ["true", "p = 1", "x > 0", "x IS NULL OR s = 'a'", "d <> 1.5", "s LIKE 'a%'", "p <> 2 AND x IN (0, 1)"]


def check(con: kartosql.Connection, path: Path, seed: int, engine: str) -> None:
    """Compare a random table, asked in many ways, with its rows as they are computed one by one."""
    choose = random.Random(seed)
    made = a_lake(choose)
    lake(con, path, "t", made, row_group_size=choose.choice([1, 2, 100]))
    left = expected(made)
    con.register(
        "wanted",
        pa.table(
            {
                "x": pa.array([r["x"] for r in left], pa.int64()),
                "s": pa.array([r["s"] for r in left], pa.string()),
                "d": pa.array([r["d"] for r in left], pa.float64()),
                "p": pa.array([int(r["p"]) for r in left], pa.int32()),
            }
        ),
    )
    for condition in CONDITIONS:
        for columns in ("x, s, d, p", "p", "count(*), min(x), max(s), count(d)", "DISTINCT p"):
            text = f"SELECT {columns} FROM {{}} WHERE {condition}"
            found, wanted = rows(con, text.format("t"), engine), rows(con, text.format("wanted"))
            assert repr(found) == repr(wanted), (text, seed)  # NaN is no NaN to Python
        some = len(con.sql(f"SELECT x FROM t WHERE {condition} LIMIT 3", engine=engine).rows())
        assert some == min(3, rows(con, f"SELECT count(*) FROM wanted WHERE {condition}")[0][0]), (condition, seed)
