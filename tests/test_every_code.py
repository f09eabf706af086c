"""Every code of an error is raised: many of them here, by what a person might do, the others in their rooms."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from codes import error_codes
from kartosql import dbapi, errors
from kartosql.connection import Connection
from kartosql.errors import KartosqlError

TESTS = Path(__file__).resolve().parent
ERRORS = (TESTS.parent / "docs" / "errors.md").read_text("utf-8")
_KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")


@dataclass
class World:
    """A store with the cube ``c`` of a seed and the dataset ``e``, and the plain dataset ``d``."""

    folder: Path
    con: Connection

    def sql(self, text: str, parameters: object = None) -> object:
        return self.con.sql(text, parameters).rows()  # type: ignore[arg-type]

    def again(self, text: str = "SELECT * FROM d") -> object:
        """Ask over a new connection, to which everything is new."""
        with kartosql.connect(str(self.folder)) as con:
            return con.sql(text).rows()

    def file(self, pattern: str) -> Path:
        return next(iter(sorted(self.folder.glob(pattern))))

    def document(self, change: Callable[[dict], object]) -> None:
        """Change the metadata document of ``d``."""
        path = self.file("d.by-dataset-metadata.json")
        found = json.loads(path.read_text("utf-8"))
        change(found)
        path.write_text(json.dumps(found), "utf-8")


@pytest.fixture
def world(tmp_path: Path):
    with kartosql.connect(str(tmp_path)) as con:
        cube = kartosql.Cube("c", ["x", "y"], ["p"], index_columns=["i"])
        seed = pa.table({"x": [1, 2], "y": [1, 1], "p": [0, 1], "i": [5, 6], "v": [0.5, 1.5]})
        con.build_cube(cube, {"seed": seed, "e": pa.table({"x": [1], "p": [0], "w": ["a"]})})
        con.create_dataset("d", pa.table({"q": [1, 2], "k": [3, 4]}), partition_on=["q"], index_columns=["k"])
        yield World(tmp_path, con)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _missing_extra(w: World) -> None:
    kept = {name: sys.modules.get(name) for name in ("pandas",)}
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        w.con.sql("SELECT 1 AS a").df()
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _closed(w: World) -> None:
    w.con.close()
    w.sql("SELECT 1")


def _stopped(w: World) -> None:
    query = w.con.sql("SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b")
    query.interrupt()  # type: ignore[attr-defined]
    import threading

    ended = threading.Event()

    def stop() -> None:
        # Again and again: what does not run yet is not stopped.
        while not ended.wait(0.1):
            query.interrupt()  # type: ignore[attr-defined]

    threading.Thread(target=stop).start()
    try:
        query.rows()
    finally:
        ended.set()


def _ambiguous(w: World) -> None:
    w.con.create_dataset("Name", pa.table({"a": [1]}))
    w.con.create_dataset("nAME", pa.table({"a": [1]}))
    w.sql("SELECT * FROM name")


def _other_schema(w: World) -> None:
    path = w.file("d/table/q=1/*.parquet")
    pq.write_table(pa.table({"k": ["text"]}), path)
    w.again("SELECT k FROM d")


def _limited(name: str, value: str, text: str) -> Callable[[World], object]:
    def run(w: World) -> object:
        w.sql(f"SET {name} = {value}")
        return w.sql(text)

    return run


def _plain(document: dict) -> None:
    """Leave a document with nothing of what only kartosql writes, such as schemas."""
    document["metadata"] = {k: v for k, v in document["metadata"].items() if not k.startswith("kartosql")}


def _moved(document: dict) -> None:
    entry = next(iter(document["partitions"].values()))
    entry["files"]["table"] = entry["files"]["table"].replace("q=1", "q=one")


def _no_profile(w: World) -> None:
    from kartosql.cli import config

    path = w.folder / "config.toml"
    path.write_text('[profiles.work]\nurl = "x"\n')
    config.read(str(path)).profile("wrok")


def _no_config(w: World) -> None:
    from kartosql.cli import config

    path = w.folder / "config.toml"
    path.write_text("[profiles\n")
    config.read(str(path))


def _no_connection(w: World) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    from kartosql.notebook import KartosqlMagics

    KartosqlMagics(InteractiveShell.instance())._run("SELECT 1", None)


def _written_all_the_time(w: World) -> None:
    from kartosql.formats.kartothek import snapshot

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot.time, "sleep", lambda seconds: None)
        for _ in snapshot.rounds(["d"]):
            pass


def _never_settled(w: World) -> None:
    from types import SimpleNamespace

    from kartosql.write import document, recovery

    head = SimpleNamespace(uuid="d", unfinished=True, intent=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "read_raw", lambda store, uuid: head)
        patch.setattr(document, "BACKOFF_SECONDS", -1)
        recovery.open_head(w.con.store, "d")


def _index_of_a_plugin(w: World) -> None:
    from types import SimpleNamespace

    from kartosql.formats.xskipper.refreshing import specs_of

    specs_of([SimpleNamespace(name="geobox", cols=("a", "b"))])


def _connect_session(w: World) -> None:
    from kartosql.engines.spark.connect import check_paths

    check_paths(["file:///t/_hidden.parquet"])


def _java_that_fails(w: World) -> None:
    from kartosql.engines.spark import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "check_java", lambda: None)
        patch.setattr("pyspark.java_gateway.launch_gateway", lambda *_: 1 / 0)
        session._start("local[1]", None)


def _capped(what: str, sql: str, w: World) -> None:
    with kartosql.connect(str(w.folder), **{f"max_{what}": 1}) as con:  # type: ignore[call-overload]
        con.sql(sql)


def _class_alone(name: str) -> Callable[[World], object]:
    """Raise a class of errors whose own code no call uses, as every part of the library gives a nearer one."""

    def run(w: World) -> object:
        raise getattr(errors, name)("It failed for this reason.")

    return run


RAISED: dict[str, Callable[[World], object]] = {
    "syntax-error": lambda w: w.sql("SELEC 1"),
    "empty-statement": lambda w: w.sql("-- nothing"),
    "several-statements": lambda w: w.sql("SELECT 1; SELECT 2"),
    "statement-too-long": lambda w: w.sql(f"SELECT '{'x' * 1_000_001}'"),
    "statement-too-deep": lambda w: w.sql(f"SELECT {'(' * 150}1{')' * 150}"),
    **{
        f"too-many-{what}": partial(_capped, what, sql)
        for what, sql in {
            "columns": "SELECT x, y FROM c",
            "conditions": "SELECT 1 FROM c WHERE x = 1 AND y = 2 OR x = 3",
            "subqueries": "SELECT (SELECT 1) + (SELECT 2)",
            "constants": "SELECT x FROM c WHERE x IN (1, 2)",
        }.items()
    },
    "not-supported": lambda w: w.sql("PRAGMA version"),
    "not-allowed": lambda w: w.sql("SET temp_directory = '/'"),
    "function-not-allowed": lambda w: w.sql("SELECT getenv('HOME')"),
    "not-grouped": lambda w: w.sql("SELECT x, count(*) FROM c"),
    "not-explainable": lambda w: w.con.explain("SHOW TABLES"),
    "invalid-query": lambda w: w.sql("SELECT lenght('a')"),
    "invalid-parameters": lambda w: w.sql("SELECT ?"),
    "unknown-table": lambda w: w.sql("SELECT * FROM nope"),
    "unknown-column": lambda w: w.sql("SELECT nope FROM c"),
    "unknown-name": lambda w: w.sql("SELECT c.nope FROM c, nope"),
    "unknown-file": lambda w: w.sql("EXPLAIN WHY 'nope' SELECT * FROM c"),
    "ambiguous-name": _ambiguous,
    "invalid-value": lambda w: w.sql("SELECT 'x'::INT"),
    "timeout": _limited("timeout", "0.05", "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b"),
    "byte-budget": _limited("max_bytes", "1", "SELECT * FROM c"),
    "interrupted": _stopped,
    "invalid-argument": lambda w: w.con.register("r", 7),
    "invalid-setting": lambda w: w.sql("SET timeout = -1"),
    "unknown-setting": lambda w: w.sql("SET tiemout = 1"),
    "connection-closed": _closed,
    "read-only": lambda w: kartosql.connect(str(w.folder), read_only=True).sql("DROP DATASET d"),
    "missing-extra": _missing_extra,
    "invalid-condition": lambda w: w.con.query_cube("c", conditions=[("x", "~", 1)]),
    "unknown-dataset": lambda w: w.con.query_cube("c", datasets=["seed", "nope"]),
    "no-seed": lambda w: w.con.query_cube("c", datasets=["e"]),
    "not-indexed": lambda w: w.con.query_cube("c", partition_by="v"),
    "cannot-project": lambda w: w.con.query_cube("c", dimension_columns=["x"], payload_columns=["v"]),
    "store-not-found": lambda w: kartosql.connect(str(w.folder / "nope")).sql("SHOW TABLES"),
    "store-failed": lambda w: kartosql.connect("nope://nope").sql("SHOW TABLES"),
    "missing-metadata": lambda w: (w.document(_plain), w.file("d/table/_common_metadata").unlink(), w.again()),
    "missing-file": lambda w: (w.file("d/table/q=1/*.parquet").unlink(), w.again()),
    "corrupt-file": lambda w: (_write(w.file("d/table/q=1/*.parquet"), b"no parquet at all"), w.again()),
    "schema-mismatch": _other_schema,
    "invalid-metadata": lambda w: (_write(w.file("d.by-*.json"), b"{"), w.again()),
    "unsupported-version": lambda w: (w.document(lambda d: d.update(dataset_metadata_version=99)), w.again()),
    "invalid-schema": lambda w: (w.document(_plain), _write(w.file("d/table/_common_metadata"), b"x"), w.again()),
    "invalid-partition-value": lambda w: (w.document(_moved), w.again("SELECT * FROM d WHERE q = 1")),
    "invalid-index": lambda w: (
        _write(w.file("d/indices/k/*.parquet"), b"no index"),
        w.again("SELECT * FROM d WHERE k = 3"),
    ),
    "unsafe-key": lambda w: (w.document(lambda d: d.update(indices={"k": "d/../../x"})), w.again()),
    "invalid-cube": lambda w: kartosql.Cube("c", ["x"], ["x"]),
    "dataset-exists": lambda w: w.con.create_dataset("d", pa.table({"a": [1]})),
    "invalid-data": lambda w: w.con.create_dataset("n", pa.table({"a": [1]}), partition_on=["nope"]),
    "null-in-key": lambda w: w.con.create_dataset("n", pa.table({"a": [None, 1], "b": [1, 2]}), partition_on=["a"]),
    "duplicate-cells": lambda w: w.con.build_cube(
        kartosql.Cube("n", ["x"], ["p"]), {"seed": pa.table({"x": [1, 1], "p": [0, 0]})}
    ),
    "merge-conflict": lambda w: w.sql(
        "MERGE INTO d USING (SELECT 3 AS k UNION ALL SELECT 3) AS s ON (k) WHEN MATCHED THEN DELETE"
    ),
    "incompatible-schema": lambda w: w.con.append_to_dataset("d", pa.table({"q": [1], "k": ["text"]})),
    "unknown-profile": _no_profile,
    "invalid-config": _no_config,
    "no-connection": _no_connection,
    "no-rows": lambda w: dbapi.connect(str(w.folder)).cursor().fetchone(),
    "store-busy": _written_all_the_time,
    "commit-failed": _never_settled,
    "unsupported-index": _index_of_a_plugin,
    "spark-connect": _connect_session,
    "spark-failed": _java_that_fails,
    "limit-exceeded": _class_alone("LimitError"),
    "error": _class_alone("KartosqlError"),
    "foreign-table": lambda w: w.sql(f"ATTACH '{w.folder}' AS f (TYPE parquet)"),
    "no-files": lambda w: w.sql(f"ATTACH '{w.folder / 'empty'}' AS f (TYPE parquet)"),
}


@pytest.mark.parametrize("code", sorted(RAISED))
def test_the_error_has_its_code_a_message_a_place_to_read_on_and_no_traceback(code, world):
    (world.folder / "empty").mkdir(exist_ok=True)
    with pytest.raises((KartosqlError, dbapi.Error)) as e:
        RAISED[code](world)
    error = e.value
    assert error.code == code, str(error)
    assert f"## `{code}`\n" in ERRORS
    if isinstance(error, dbapi.Error):
        return
    assert error.message[0].isprintable()
    assert len(error.message) > 8
    assert error.docs == f"docs/errors.md#{code}"
    for text in (str(error), error.hint or ""):
        assert "Traceback" not in text
        assert "__kartosql" not in text
        assert 'File "' not in text
    json.dumps(error.to_dict())


def _named_in_tests() -> set[str]:
    """Return the texts that stand in tests, but for this one and those of the documentation."""
    found = set()
    for path in TESTS.rglob("*.py"):
        if path.name != Path(__file__).name and path.parent.name != "docs":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.update(m[0] for m in _KEBAB.finditer(node.value) if len(node.value) < 2_000)
    return found


def test_every_code_is_raised_here_or_expected_by_a_test_of_its_room() -> None:
    codes = error_codes()
    assert len(codes) > 80
    assert set(RAISED) <= codes
    assert codes - set(RAISED) - _named_in_tests() == set()


def test_most_codes_are_raised_here() -> None:
    assert len(RAISED) >= 50
