"""One operation of each kind on a small store, and a server that runs them in processes to be killed.

The server forks a process for each line that it reads, ``[operation, folder, step, phase]``, and
answers with the signal or status by which it ended. It has no threads of its own that a fork
would lose. Without a step the operation is carried out, and the names of its steps are printed; with
a folder in place of a phase, a copy of the store is left there for each kill that would look different.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import crashes
import kartosql
from kartosql.formats.kartothek.metadata import HISTORY
from kartosql.store import Store, syscalls

CUBE = kartosql.Cube("c", "x", "p", index_columns="i")
CHANGING = ("create", "write", "mkdir", "link", "rename", "unlink", "rmdir")  # steps after which a disk looks different


def seed(*x: int) -> pa.Table:
    return pa.table({"x": x, "p": ["a"] * len(x), "i": [f"i{n}" for n in x], "v": [n * 10 for n in x]})


def en(*x: int, name: str = "w") -> pa.Table:
    return pa.table({"x": x, "p": ["a"] * len(x), name: [n * 100 for n in x]})


def plain(*s: int) -> pa.Table:
    return pa.table({"q": ["a"] * len(s), "s": s})


def prepare(folder: str) -> None:
    """Fill a new store."""
    with kartosql.connect(folder) as con:
        fill(con)


def fill(con: kartosql.Connection) -> None:
    """Make a cube of two datasets and a plain dataset, the files of which can be merged."""
    con.build_cube(CUBE, {"seed": seed(1, 2), "en": en(1)})
    con.append_to_cube("c", {"seed": seed(2, 3)})
    con.create_dataset("d", plain(1, 2), partition_on="q", index_columns="s")
    con.append_to_dataset("d", plain(3))
    # What is replaced belongs to nothing then: a cleanup has something to remove.
    con.replace_partitions("d", plain(4))
    con.append_to_dataset("d", plain(5))
    con.create_dataset("h", plain(1, 2))
    con.create_skipping_index("h", minmax="s")
    forget_history(con, "h")


def forget_history(con: kartosql.Connection, uuid: str) -> None:
    """Take the history of its schemas out of a dataset, as another program may."""
    key = f"{uuid}.by-dataset-metadata.json"
    document = json.loads(con.store.read(key))
    del document["metadata"][HISTORY]
    con.store.put(key, json.dumps(document).encode())


def exported(con: kartosql.Connection) -> str:
    """Return where exports go."""
    return f"{con.store.url}-odf"


OTHER_SEED = pa.table({"x": ["1"], "p": [7], "i": [3]})
OTHER_COLUMNS = pa.table({"q": ["a"], "z": [1]})
OTHER_EN = pa.table({"x": ["1"], "p": [7], "new": [1]})


def clean_up(con: kartosql.Connection, versions: int) -> None:
    """Mark what belongs to nothing and to no version that is kept, and remove it as if a grace period had passed."""
    con.sql(f"SET history_versions = {versions}")
    con.garbage_collect("d")
    now = Store.now
    Store.now = lambda store: now(store) + dt.timedelta(days=8)  # type: ignore[method-assign]
    try:
        con.garbage_collect("d")
    finally:
        Store.now = now  # type: ignore[method-assign]


def as_built(con: kartosql.Connection) -> str:
    """Return when the cube was built."""
    history = con.history("c").arrow().to_pylist()
    return max(row["time"] for row in history if row["operation"] == "build_cube").isoformat()


Act = Callable[[kartosql.Connection], Any]
OPERATIONS: dict[str, Act] = {
    "restore": lambda con: con.restore("d", 1),
    "restore cube": lambda con: con.restore("c", as_built(con)),
    "build": lambda con: con.build_cube(kartosql.Cube("b", "x", "p"), {"seed": seed(1), "en": en(1)}),
    "overwrite with other schemas": lambda con: con.build_cube(
        CUBE, {"seed": OTHER_SEED, "en": OTHER_EN}, overwrite=True
    ),
    "extend": lambda con: con.extend_cube("c", {"k": en(1, 2, name="u")}),
    "append": lambda con: con.append_to_cube("c", {"seed": seed(4)}),
    "append to two": lambda con: con.append_to_cube("c", {"seed": seed(4), "en": en(4)}),
    "update": lambda con: con.update_cube("c", {"seed": seed(4), "en": en(4)}, remove_conditions="p == a"),
    "remove": lambda con: con.remove_partitions("c", "p == a"),
    "replace": lambda con: con.replace_partitions("c.seed", seed(5)),
    "compact": lambda con: con.compact("c"),
    "delete": lambda con: con.delete_cube("c"),
    "create index": lambda con: con.create_index("c.en", "w"),
    "drop index": lambda con: con.drop_index("c.seed", "i"),
    "copy": lambda con: con.copy_cube("c", con, name="c2"),
    "copy dataset": lambda con: con.copy_dataset("d", con, name="e"),
    "delete rows of a cube": lambda con: con.sql("DELETE FROM c WHERE i = 'i1'"),
    "update rows of a seed": lambda con: con.sql("UPDATE c.seed SET v = v + 1 WHERE x = 3"),
    "create dataset": lambda con: con.create_dataset("e", plain(1), partition_on="q", index_columns="s"),
    "overwrite dataset": lambda con: con.create_dataset("d", en(1), index_columns="x", overwrite=True),
    "append to dataset": lambda con: con.append_to_dataset("d", plain(6)),
    "add a column": lambda con: con.sql("ALTER DATASET d ADD COLUMN z BIGINT"),
    "append other columns": lambda con: con.append_to_dataset("d", OTHER_COLUMNS, evolve=True),
    "delete rows": lambda con: con.sql("DELETE FROM d WHERE s = 4"),
    "update rows": lambda con: con.sql("UPDATE d SET s = s + 10 WHERE s = 4"),
    "merge rows": lambda con: con.sql(
        "MERGE INTO d USING (SELECT 'a' AS q, 7 AS s) AS n ON (q, s)"
        " WHEN NOT MATCHED THEN INSERT (q, s) VALUES (n.q, n.s)"
    ),
    "set metadata": lambda con: con.sql("ALTER DATASET d SET METADATA (k = 'v')"),
    "delete dataset": lambda con: con.delete_dataset("d"),
    "compact dataset": lambda con: con.compact("d"),
    "clean up": lambda con: clean_up(con, 0),
    "forget versions": lambda con: clean_up(con, 1),
    "add dataset": lambda con: con.sql("ALTER CUBE c ADD DATASET k AS SELECT x, p, w + 1 AS u FROM c.en"),
    "create skipping index": lambda con: con.create_skipping_index("d", minmax="s", valuelist="s"),
    "drop skipping index": lambda con: con.drop_skipping_index("h"),
    "record schema": lambda con: con.record_schema("h"),
    "export": lambda con: con.sql(f"EXPORT (SELECT x, i FROM c) TO '{exported(con)}' (TYPE odf, PRIMARY_KEY x)"),
    "export history": lambda con: con.export_schema_history("d", exported(con)),
}


def act(name: str, folder: str) -> None:
    with kartosql.connect(folder) as con:
        OPERATIONS[name](con)


def record_names() -> list[str]:
    """Note the names of the steps that follow."""
    names: list[str] = []

    def recorded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            names.append(name)
            return real(*args)

        return step

    for name in crashes.NAMES:
        setattr(syscalls, name, recorded(name, getattr(syscalls, name)))
    return names


def copy_store(folder: str, target: str) -> None:
    """Copy a store and what was exported beside it."""
    shutil.copytree(folder, target)
    if os.path.isdir(f"{folder}-odf"):
        shutil.copytree(f"{folder}-odf", f"{target}-odf")


def copy_at_steps(folder: str, target: str) -> list[str]:
    """Copy the store before the first step that follows, in the middle of each write, and after each change.

    A copy is what a process that is killed there would leave. While it is made, no thread takes a step.
    """
    names: list[str] = []
    lock = threading.RLock()

    def copied(at: int, phase: str) -> None:
        copy_store(folder, os.path.join(target, f"{at}-{phase}"))

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            with lock:
                at = len(names)
                names.append(name)
                if not at:
                    copied(at, "before")
                if name == "write" and len(args[1]) > 1:
                    data = bytes(args[1])
                    half = real(args[0], data[: len(data) // 2])
                    copied(at, "in")
                    result = half + real(args[0], data[half:])
                else:
                    result = real(*args)
                if name in CHANGING:
                    copied(at, "after")
                return result

        return step

    for name in crashes.NAMES:
        setattr(syscalls, name, wrapped(name, getattr(syscalls, name)))
    return names


def _child(name: str, folder: str, at: int | None, phase: str) -> None:
    try:
        names: list[str] = []
        if at is not None:
            crashes.install(at, phase)
        else:
            names = copy_at_steps(folder, phase) if phase else record_names()
        act(name, folder)
        if at is None:
            print(json.dumps(names), flush=True)
    except BaseException as e:  # noqa: BLE001
        print(json.dumps([f"{type(e).__name__}: {e}"]), flush=True)
        os._exit(3)
    os._exit(0)


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _child(*json.loads(line))
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    import kartosql.engines.duckdb
    import kartosql.write.check
    import kartosql.write.compact
    import kartosql.write.copy
    import kartosql.write.cubes
    import kartosql.write.odf
    import kartosql.write.removal
    import kartosql.write.skipping

    serve()
