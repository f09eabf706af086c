"""Damaged and hostile files of each kind: typed errors alone, and no wrong answer that CHECK FULL does not tell of.

A case damages one file of a store that holds a dataset, a cube, their log and indices, a Delta and an Iceberg table,
and a dataset of ODF: bits that flip, pieces that are lost, doubled or of another file, and in JSON and Avro values in
the place of others.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning

ROWS = {"q": ["a", "a", "b", "b"], "s": ["s0", "s1", "s1", "s2"], "n": [1, 2, 3, 4]}
QUERIES = {
    "d": [
        "SELECT * FROM d", "SELECT * FROM d WHERE s = 's1'", "SELECT * FROM d WHERE n > 2 AND q = 'b'",
        "SELECT count(*), min(n), max(n) FROM d", "SELECT * FROM d AT (VERSION => 2)", "SELECT * FROM changes('d', 1)",
    ],
    "m": ["SELECT * FROM m", "SELECT * FROM m WHERE s = 's1'"],
    "c": ["SELECT * FROM c", "SELECT * FROM c WHERE i = 's1'", "SELECT x, w FROM c WHERE w > 1",
          "SELECT count(*) FROM c"],
    "delta": ["SELECT * FROM delta", "SELECT * FROM delta WHERE n > 2", "SELECT count(*), max(n) FROM delta"],
    "iceberg": ["SELECT * FROM iceberg", "SELECT * FROM iceberg WHERE n > 2", "SELECT count(*), max(n) FROM iceberg"],
    "odf": ["SELECT * FROM odf", "SELECT * FROM odf WHERE n > 2", "SHOW SCHEMA HISTORY FROM odf"],
}  # fmt: skip
MORE = {  # whose answers are not rows of the table
    "d": ["SHOW HISTORY FROM d", "SHOW METADATA FROM d", "SHOW SCHEMA HISTORY FROM d",
          "SHOW INDEXES FROM d", "VERIFY ERASED d WHERE n = 77"],
    "c": ["SHOW STATS FROM c", "SHOW HISTORY FROM c"],
}  # fmt: skip
STRANGE: list[Any] = [
    None, True, -1, 2**70, 1e308, "", "..", "../../etc/passwd", "/etc/passwd", "a\0b", "é" * 300, [], {}, [[]], [None],
    {"a": {}}, "2026-13-45", "d/table/_common_metadata", float("nan"),
]  # fmt: skip


class Untyped(AssertionError):
    """An error that is none of ours, or a wrong answer of which nothing tells."""


def build(folder: str) -> None:
    """Make the store."""
    with kartosql.connect(folder, cache="off") as con:
        for name, more in (("d", {}), ("m", {})):
            con.create_dataset(name, pa.table(ROWS), partition_on=["q"], index_columns=["s"], **more)
        con.append_to_dataset("d", pa.table({"q": ["a"], "s": ["s2"], "n": [5]}))
        con.create_skipping_index("d", minmax=["n"], valuelist=["s"], bloomfilter=["n"])
        con.sql("DELETE FROM d WHERE n = 2")
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
        seed = {"x": [0, 1, 2], "p": ["a", "a", "b"], "i": ["s0", "s1", "s1"], "v": [1, 2, 3]}
        con.build_cube(cube, {"seed": pa.table(seed), "en": pa.table({"x": [0, 2], "p": ["a", "b"], "w": [1, 2]})})
        con.append_to_cube("c", {"seed": pa.table({"x": [1], "p": ["a"], "i": ["s2"], "v": [9]})})
        for kind in ("delta", "iceberg"):
            con.create_dataset(f"of_{kind}", pa.table(ROWS), partition_on=["q"])
            con.publish(f"of_{kind}", f"{folder}/of_{kind}", kind)
            con.append_to_dataset(f"of_{kind}", pa.table({"q": ["a"], "s": ["s2"], "n": [5]}))
            con.publish(f"of_{kind}", f"{folder}/of_{kind}", kind)
        con.export_odf(pa.table(ROWS), f"{folder}/odf")


def connect(folder: str) -> Any:
    return kartosql.connect(folder, cache="off", threads=1)


def attach(con: Any, folder: str, table: str) -> None:
    places = {"delta": "of_delta", "iceberg": "of_iceberg", "odf": "odf"}
    if table in places:
        con.attach(f"{folder}/{places[table]}", table, type=table)


def table_of(key: str) -> str:
    parts = key.split("/")
    # Logs and skipping indexes stand below the name of the dataset in another folder.
    top = parts[2] if parts[0] == ".kartosql" else parts[0].partition(".")[0]
    return {"c++seed": "c", "c++en": "c", "of_delta": "delta", "of_iceberg": "iceberg"}.get(top, top)


def answers(folder: str, table: str, texts: list[str]) -> dict[str, Counter[str] | str]:
    """Return the rows of each query, or the code of the error; raises Untyped."""
    found: dict[str, Counter[str] | str] = {}
    with connect(folder) as con:
        try:
            attach(con, folder, table)
        except KartosqlError as e:
            return dict.fromkeys(texts, str(e.code))
        except Exception as e:
            raise Untyped(f"ATTACH of {table}: {type(e).__name__}: {e}") from e
        for text in texts:
            try:
                found[text] = Counter(repr(row) for row in con.sql(text).rows())
            except KartosqlError as e:
                json.dumps(e.to_dict())
                found[text] = str(e.code)
            except Exception as e:
                raise Untyped(f"{text}: {type(e).__name__}: {e}") from e
    return found


def findings(folder: str, table: str) -> list[str]:
    """Return what CHECK FULL tells of a table."""
    if table not in ("d", "m", "c"):
        return []
    with connect(folder) as con:
        try:
            return [f.check for f in con.check(table, full=True) if f.severity != "info"]
        except KartosqlError as e:
            return [str(e.code)]
        except Exception as e:
            raise Untyped(f"CHECK {table} FULL: {type(e).__name__}: {e}") from e


# -- damage ----------------------------------------------------------------------------------------


def flipped(data: bytes, random: Random, others: list[bytes]) -> bytes:
    made = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    return bytes(made)


def cut(data: bytes, random: Random, others: list[bytes]) -> bytes:
    return data[: random.randrange(len(data))]


def spliced(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """Lose, double, or take from another file a piece of the bytes."""
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice([1, 4, 16, 64, 1024]))
    other = random.choice(others)
    at = random.randrange(len(other) or 1)
    piece = random.choice([b"", data[start:end] * 2, other[at : at + end - start], b"\xff" * (end - start)])
    return data[:start] + piece + data[end:]


def replaced(data: bytes, random: Random, others: list[bytes]) -> bytes:
    return random.choice(others)


def restructured(data: bytes, random: Random, others: list[bytes]) -> bytes:
    """Put other values into JSON, be it one text or one for each line; other files get bits flipped."""
    try:
        lines = [json.loads(data)]
    except ValueError:
        try:
            lines = [json.loads(line) for line in data.splitlines() if line]
        except ValueError:
            return flipped(data, random, others)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(lines))
        lines[at] = _changed(lines[at], random, random.randint(0, 6))
    return b"\n".join(json.dumps(line).encode() for line in lines)


def _changed(value: Any, random: Random, depth: int) -> Any:
    if depth and isinstance(value, dict) and value:
        name = random.choice(list(value))
        way = random.random()
        if way < 0.1:
            return {k: v for k, v in value.items() if k != name}
        if way < 0.15:
            return {(f"{k}x" if k == name else k): v for k, v in value.items()}
        return {k: _changed(v, random, depth - 1) if k == name else v for k, v in value.items()}
    if depth and isinstance(value, list) and value:
        at = random.randrange(len(value))
        if random.random() < 0.2:
            return value[:at] + value[at + 1 :]
        return [*value[:at], _changed(value[at], random, depth - 1), *value[at + 1 :]]
    if isinstance(value, bool | int) and random.random() < 0.5:
        return random.choice([0, 1, -1, int(value) + 1, 2**31, 2**63, -(2**63)])
    if isinstance(value, str) and value and random.random() < 0.5:
        at = random.randrange(len(value))
        inner = _nested(value, random)
        return inner if inner is not None else value[:at] + random.choice('/.%\0aé9\\"') + value[at + 1 :]
    nested: Any = random.choice(STRANGE)
    if random.random() < 0.05:
        for _ in range(random.choice([50, 900, 5000])):
            nested = [nested]
    return nested


def _nested(value: str, random: Random) -> str | None:
    """Change JSON in a text, as Delta has for statistics and schemas."""
    try:
        inner = json.loads(value)
    except ValueError:
        return None
    return json.dumps(_changed(inner, random, 4)) if isinstance(inner, dict | list) else None


DAMAGES: list[Callable[[bytes, Random, list[bytes]], bytes]] = [
    flipped, flipped, cut, spliced, spliced, replaced, restructured, restructured, restructured,
]  # fmt: skip


@dataclass
class Hostile:
    """A store that is damaged again and again."""

    folder: str
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        build(self.folder)
        root = Path(self.folder)
        files = sorted(p for p in root.rglob("*") if p.is_file() and p.stat().st_size)
        self.files = {str(p.relative_to(root)): p.read_bytes() for p in files}
        names = dict.fromkeys(table_of(key) for key in self.files)
        self.right = {table: answers(self.folder, table, _texts(table)) for table in names if table in QUERIES}
        assert all(isinstance(a, Counter) for found in self.right.values() for a in found.values()), self.right

    def check(self, number: int, damages: Sequence[str] = (), queries: int | None = None) -> None:
        """Damage a file, ask all queries or some that chance takes, and mend it; raises Untyped."""
        random = Random(f"hostile {number}")
        kinds = sorted({_kind(key) for key in self.files if table_of(key) in self.right})
        kind = random.choice(kinds)
        key = random.choice([k for k in self.files if _kind(k) == kind and table_of(k) in self.right])
        damage = random.choice([d for d in DAMAGES if not damages or d.__name__ in damages])
        damaged = damage(self.files[key], random, list(self.files.values()))
        table = table_of(key)
        if damaged == self.files[key]:
            return
        texts = _texts(table) if queries is None else random.sample(_texts(table), min(queries, len(_texts(table))))
        path = Path(self.folder, key)
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KartosqlWarning)
                given = answers(self.folder, table, texts)
                rows = {q: found for q, found in given.items() if isinstance(found, Counter) and q in QUERIES[table]}
                wrong = [q for q, found in rows.items() if found != self.right[table][q]]
                told = findings(self.folder, table) if wrong or number % 4 == 0 else []
        except Untyped as e:
            raise Untyped(f"{key}, {damage.__name__}: {e}") from e
        finally:
            path.write_bytes(self.files[key])
        self.counts[kind] += 1
        self.counts["refused"] += any(isinstance(a, str) for a in given.values())
        if wrong and table in ("d", "m", "c"):
            self.counts["other rows, told by CHECK FULL" if told else "other rows, untold"] += 1
            if not told and not _may_say_so(key, damage.__name__):
                raise Untyped(
                    f"{key}, {damage.__name__}: {wrong[0]}\ngives {given[wrong[0]]}\nis    "
                    f"{self.right[table][wrong[0]]}\nand CHECK FULL tells nothing"
                )


def _texts(table: str) -> list[str]:
    return [*QUERIES[table], *MORE.get(table, ())]


def _kind(key: str) -> str:
    """Return what kind of file a key names."""
    table = table_of(key)
    name = key.rpartition("/")[2]
    folders = (
        "indices",
        "history",
        "skipping",
        "_delta_log",
        "metadata",
        "blocks",
        "data",
        "refs",
        "checkpoints",
        "info",
    )
    folder = next((f for f in folders if f"/{f}/" in key), "")
    return (
        f"{table} {folder} {name.rpartition('.')[2] if '.' in name else '_common_metadata' if name[0] == '_' else ''}"
    )


def _may_say_so(key: str, damage: str) -> bool:
    """Return whether what a file says then is another truth: it names other files, or another file is in its place."""
    return damage in ("replaced", "restructured", "spliced") and not key.endswith(".parquet")
