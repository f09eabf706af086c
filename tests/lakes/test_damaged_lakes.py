"""Tables that are damaged after they were indexed: statements have the rows that count, or an error of ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import kartosql
from delta_tables import DeltaTable, column
from kartosql.errors import KartosqlError
from sources.iceberg_tables import HandTable

FILES = 8
STATEMENTS = (
    "SELECT k, s FROM t WHERE k >= 0 ORDER BY k",
    "SELECT k, s FROM t WHERE k = 35",
    "SELECT k FROM t WHERE k = 31",  # which is deleted
    "SELECT k FROM t WHERE s LIKE '%text 4%' ORDER BY k",
    "SELECT count(*), max(k), count(s) FROM t",
    "SELECT s FROM t AT (VERSION => {past}) WHERE k = 5",
)
TOLD = (
    "SHOW TABLES",
    "DESCRIBE t",
    "SHOW INDEXES FROM t",
    "SHOW SKIPPING INDEXES FROM t",
    "EXPLAIN FROM t WHERE k = 35",
)
MAKE = ("CREATE INDEX ON t (k)", "REFRESH SKIPPING INDEX ON t")
CODES = (
    "corrupt-file", "delta-invalid-log", "delta-invalid-vector", "iceberg-invalid-metadata", "invalid-metadata",
    "missing-file", "no-such-version", "schema-conflict", "schema-mismatch", "unsafe-key", "version-gone",
)  # fmt: skip
MOST = 2000  # characters of an error


def rows_of(number: int) -> dict[str, list[Any]]:
    keys = [10 * number + n for n in range(10)]
    return {"k": keys, "s": [f"text {k}" for k in keys]}


class Delta:
    """Eight files of ten rows, rows 30 and 31 deleted by a vector, and a checkpoint in the middle."""

    type = "delta"

    def __init__(self, root: Path) -> None:
        features = ("deletionVectors",)
        self.made = made = DeltaTable(root, [column("k", "long"), column("s", "string")], features=features)
        for number in range(FILES):
            made.add([{"k": k, "s": s} for k, s in zip(*rows_of(number).values(), strict=True)])
            if number == 4:
                made.checkpoint()
        made.delete([*made.rows][3], [0, 1])
        self.root, self.past, self.newest = root, 3, made.log / f"{made.version:020}.json"

    def commit(self, number: int) -> Path:
        return self.made.log / f"{number:020}.json"

    def edit(self, number: int, **changed: Any) -> None:
        actions = [json.loads(line) for line in self.commit(number).read_text("utf-8").splitlines()]
        for action in actions:
            if "add" in action:
                action["add"] |= changed
        self.commit(number).write_text("".join(json.dumps(a) + "\n" for a in actions), "utf-8")

    def data(self, number: int) -> Path:
        return self.root / [*self.made.rows][number]


class Iceberg:
    """The same, with a snapshot for each file."""

    type = "iceberg"

    def __init__(self, root: Path) -> None:
        schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "s", StringType()), schema_id=0)
        self.made = made = HandTable(root, schema, version=3)
        self.files, self.commits = [], []
        for number in range(FILES):
            self.files.append(made.data(pa.table(rows_of(number))))
            self.commits.append(made.commit(self.files[-1]))
        made.commit(made.vector(self.files[3], [0, 1]))
        self.root, self.past = root, self.commits[2]
        self.newest = root / "metadata" / f"v{made.sequence}.metadata.json"

    @staticmethod
    def path(url: str) -> Path:
        return Path(url.removeprefix("file://"))

    def manifest(self, number: int) -> Path:
        return self.path(self.made._manifests[-1 - number].manifest_path)

    def listing(self, number: int) -> Path:
        return self.path(self.made.snapshots[number]["manifest-list"])

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        told = json.loads(self.newest.read_text("utf-8"))
        change(told)
        self.newest.write_text(json.dumps(told), "utf-8")

    def data(self, number: int) -> Path:
        return self.path(self.files[number].file_path)


class Folder:
    """The files alone."""

    type = "parquet"

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root, self.past = root, None
        for number in range(FILES):
            rows = pa.table(rows_of(number))
            pq.write_table(rows.slice(2) if number == 3 else rows, self.data(number))

    def data(self, number: int) -> Path:
        return self.root / f"{number}.parquet"


def cut(path: Path, to: float = 0.5) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * to)])


def link(path: Path) -> None:
    real = path.rename(path.parents[2] / f"away-{path.name}")
    path.symlink_to(real)


def flip(path: Path) -> None:
    """Damage pages of data, and leave the footer as it is."""
    data = bytearray(path.read_bytes())
    data[4:120] = bytes(b ^ 0xFF for b in data[4:120])
    path.write_bytes(data)


def of_other_columns(path: Path) -> None:
    pq.write_table(pa.table({"k": [f"x{n}" for n in range(10)], "s": range(10)}), path)


VECTOR = {"storageType": "i", "offset": None, "cardinality": 1}
FILE_DAMAGE: dict[str, Callable[[Any], Any]] = {
    "a file is gone": lambda t: t.data(3).unlink(),
    "a file is empty": lambda t: t.data(3).write_bytes(b""),
    "a file is torn": lambda t: cut(t.data(3)),
    "pages of a file are damaged": lambda t: flip(t.data(3)),
    "a file is a link": lambda t: link(t.data(3)),
    "a file is a folder": lambda t: (t.data(3).unlink(), t.data(3).mkdir()),
    "a file is of other columns": lambda t: of_other_columns(t.data(3)),
}
DELTA_DAMAGE: dict[str, Callable[[Delta], Any]] = {
    "the newest commit is torn": lambda t: cut(t.newest),
    "the newest commit is empty": lambda t: t.newest.write_bytes(b""),
    "the newest commit is zeros": lambda t: t.newest.write_bytes(bytes(300)),
    "a commit is torn": lambda t: cut(t.commit(7)),
    "a gap": lambda t: t.commit(7).unlink(),
    "a gap before the checkpoint": lambda t: t.commit(2).unlink(),
    "versions cleaned up": lambda t: [t.commit(n).unlink() for n in range(5)],
    "the checkpoint is torn": lambda t: cut(next(t.made.log.glob("*.checkpoint.parquet"))),
    "the checkpoint is torn and commits are gone": lambda t: (
        cut(next(t.made.log.glob("*.checkpoint.parquet"))),
        [t.commit(n).unlink() for n in range(5)],
    ),
    "the checkpoint is gone and commits are": lambda t: (
        next(t.made.log.glob("*.checkpoint.parquet")).unlink(),
        [t.commit(n).unlink() for n in range(5)],
    ),
    "a last checkpoint that is not": lambda t: (t.made.log / "_last_checkpoint").write_text(
        '{"version": 99, "size": 1}'
    ),
    "a commit is a link": lambda t: link(t.commit(7)),
    "statistics of other types": lambda t: t.edit(
        7, stats='{"numRecords":10,"minValues":{"k":"zz","s":5},"maxValues":{"k":"aa","s":7},"nullCount":{"k":"x"}}'
    ),
    "statistics that are no JSON": lambda t: t.edit(7, stats="{{{"),
    "no statistics": lambda t: t.edit(7, stats=None),
    "more NULLs than rows": lambda t: t.edit(7, stats='{"numRecords":10,"nullCount":{"k":11,"s":-3}}'),
    "a path above": lambda t: t.edit(7, path="../x.parquet"),
    "a path from the root": lambda t: t.edit(7, path="/etc/passwd"),
    "a path elsewhere": lambda t: t.edit(7, path="s3://b/x.parquet"),
    "a size that is not": lambda t: t.edit(7, size=-1),
    "a vector that is not": lambda t: t.edit(9, deletionVector=VECTOR | {"sizeInBytes": 3, "pathOrInlineDv": "abc"}),
    "a vector without end": lambda t: t.edit(
        9, deletionVector=VECTOR | {"sizeInBytes": 1 << 40, "pathOrInlineDv": "a"}
    ),
    "a vector elsewhere": lambda t: t.edit(
        9,
        deletionVector={**VECTOR, "storageType": "p", "offset": 1, "sizeInBytes": 40, "pathOrInlineDv": "/etc/passwd"},
    ),
    "the vector is gone": lambda t: next(t.root.glob("deletion_vector_*")).unlink(),
    "the vector is torn": lambda t: cut(next(t.root.glob("deletion_vector_*"))),
}
ICEBERG_DAMAGE: dict[str, Callable[[Iceberg], Any]] = {
    "metadata torn": lambda t: cut(t.newest),
    "metadata empty": lambda t: t.newest.write_bytes(b""),
    "metadata gone": lambda t: t.newest.unlink(),
    "the list is torn": lambda t: cut(t.listing(-1)),
    "the list is gone": lambda t: t.listing(-1).unlink(),
    "a manifest is torn": lambda t: cut(t.manifest(3)),
    "a manifest is gone": lambda t: t.manifest(3).unlink(),
    "the manifest of deletes is gone": lambda t: t.path(t.made._manifests[0].manifest_path).unlink(),
    "the manifest of deletes is another": lambda t: shutil.copy(
        t.manifest(4), t.path(t.made._manifests[0].manifest_path)
    ),
    "versions cleaned up": lambda t: t.edit(lambda m: m.update(snapshots=m["snapshots"][-1:])),
    "the present snapshot is not there": lambda t: t.edit(lambda m: m.update({"current-snapshot-id": 77})),
    "a list above": lambda t: t.edit(
        lambda m: m["snapshots"][-1].update({"manifest-list": f"file://{t.root}/../x.avro"})
    ),
    "a list elsewhere": lambda t: t.edit(lambda m: m["snapshots"][-1].update({"manifest-list": "/etc/passwd"})),
    "the vector is gone": lambda t: next(t.root.rglob("*.puffin")).unlink(),
    "the vector is torn": lambda t: cut(next(t.root.rglob("*.puffin"))),
    "a link for metadata": lambda t: link(t.newest),
}
CASES = [
    *((Delta, n, d) for n, d in (FILE_DAMAGE | DELTA_DAMAGE).items()),
    *((Iceberg, n, d) for n, d in (FILE_DAMAGE | ICEBERG_DAMAGE).items()),
    # Which files a folder has only the folder says, and empty ones do not count.
    *((Folder, n, d) for n, d in [*FILE_DAMAGE.items()][2:] if n != "a file is a folder"),
]


def asked(con: Any, sql: str) -> Any:
    """Return the rows of a statement, or the code of its error, which says what is wrong and where."""
    try:
        return con.sql(sql).rows()
    except KartosqlError as e:
        return e.code if len(str(e)) < MOST and e.message else f"{e.code}, odd: {e}"


def is_known(answer: Any) -> bool:
    return not isinstance(answer, str) or answer in CODES


def statements(table: Any) -> list[str]:
    return [s.format(past=table.past) for s in STATEMENTS if "{past}" not in s or table.past is not None]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Return what makes, once for each kind, a table that is indexed, a copy, and the answers over it."""
    made: dict[Any, Any] = {}

    def world(of: Any) -> Any:
        if of not in made:
            root = tmp_path_factory.mktemp(of.__name__)
            (root / "store").mkdir()
            table, con = of(root / "t"), kartosql.connect(root / "store")
            con.attach(table.root, "t", type=table.type)
            con.create_index("t", "k")
            con.create_skipping_index("t", ngram="s", minmax="k")
            shutil.copytree(table.root, root / "whole")
            made[of] = table, con, {sql: con.sql(sql).rows() for sql in statements(table)}
        return made[of]

    yield world
    for _, con, _ in made.values():
        con.close()


@pytest.mark.parametrize(("of", "name", "damage"), CASES, ids=[f"{c[0].__name__}: {c[1]}" for c in CASES])
@pytest.mark.filterwarnings("ignore::kartosql.errors.KartosqlWarning")
def test_what_is_damaged_after_it_was_indexed_is_answered_right_or_refused(worlds, of, name, damage):
    table, warm, wanted = worlds(of)
    root = table.root.parent
    damage(table)
    try:
        _look(warm, wanted)
        with kartosql.connect(root / "store") as con:
            attached = asked(con, f"ATTACH '{table.root}' AS t (TYPE {table.type})")
            assert is_known(attached), attached
            if not isinstance(attached, str):
                assert all(is_known(asked(con, sql)) for sql in MAKE)
                _look(con, wanted)
    finally:
        shutil.rmtree(table.root)
        shutil.copytree(root / "whole", table.root)
    # Whole again, its indexes leave out nothing.
    assert {sql: warm.sql(sql).rows() for sql in wanted} == wanted


def _look(con: Any, wanted: dict[str, Any]) -> None:
    for sql, rows in wanted.items():
        found = asked(con, sql)
        assert found == rows or found in CODES, (sql, found)
    assert all(is_known(asked(con, sql)) for sql in TOLD)
