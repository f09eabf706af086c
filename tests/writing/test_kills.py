"""Processes killed while they write to a local disk: the old or the new state, little left behind, all of it cleaned.

Each operation is killed at two of its steps, drawn by a seed. A killed process leaves what it had done, so the disk
can look different only after steps that change it: KARTOSQL_KILLS=changes looks at what a kill after every one of
them, in the middle of every write, and before the first would leave, as copies that one process makes of the store
while it takes these steps. KARTOSQL_KILLS=all kills before, in and after each of all steps. Every call of the store is
stopped, without processes, in tests/write/test_crashes.py.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

import crashes
import kartosql
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.metadata import HISTORY
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.odf.chain import check_data, read_chain
from kartosql.store import Store
from kartosql.write.recovery import read_head
from odf_data import reader_of
from writing import operations, originals
from writing.operations import CHANGING, OPERATIONS

pytestmark = [pytest.mark.timeout(1800), pytest.mark.skipif(os.name == "nt", reason="it forks")]
KILLS = 2  # of each operation
TESTS = Path(__file__).parents[1]


class Server:
    """Runs operations in processes of their own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "writing.operations"],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait() == 0

    def steps_of(self, name: str, folder: Path) -> list[str]:
        """Carry an operation out, and return the names of its steps."""
        self._ask(name, folder, None, "")
        names = json.loads(self._answer())
        assert self._answer() == "0", names
        return names

    def copies_of(self, name: str, folder: Path, target: Path) -> list[str]:
        """Carry an operation out, leave a copy of the store for each kill, and return the names of its steps."""
        self._ask(name, folder, None, str(target))
        names = json.loads(self._answer())
        assert self._answer() == "0", names
        return names

    def is_killed(self, name: str, folder: Path, at: int, phase: str) -> bool:
        """Kill an operation at a step; False when it came to its end before."""
        self._ask(name, folder, at, phase)
        answer = self._answer()
        assert answer in ("0", str(-signal.SIGKILL)), f"{answer} {self._answer()}"
        return answer != "0"

    def _ask(self, *what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what, default=str) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with contextlib.closing(Server()) as made:
        yield made


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    operations.prepare(str(folder))
    return folder


def fresh(folder: Path, prepared: Path) -> Path:
    for path in (folder, Path(f"{folder}-odf")):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(prepared, folder)
    return folder


class Answers:
    """Rows of cubes and datasets, for which a statement is run once for the same rows of all files in their order."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def state(self, con: kartosql.Connection, folder: Path) -> dict[str, Any]:
        """Return all that readers see: the rows, columns and indices of cubes and datasets."""
        cubes = con.cubes()
        snapshot = Snapshot(con.store)  # which resolves documents of changes that are not carried out to their end
        members = [f"{name}++{member}" for name in cubes for member in snapshot.cube(name).members]
        names = [*sorted(members), *(uuid for uuid in con.datasets() if "++" not in uuid)]
        stored = repr((cubes, [(uuid, self._stored(folder, snapshot.dataset(uuid).tables)) for uuid in names]))
        if stored not in self._known:
            queries = {name: con.sql(f'SELECT * FROM "{name}" ORDER BY ALL') for name in [*cubes, *names]}
            self._known[stored] = {name: (query.columns, query.rows()) for name, query in queries.items()}
        found = dict(self._known[stored])
        for uuid in names:
            shown = con.sql(f'SHOW INDEXES FROM "{uuid}"')
            found[f"{uuid} indices"] = sorted(row[shown.columns.index("column")] for row in shown.rows())
            found[f"{uuid} skipping"] = con.sql(f'SHOW SKIPPING INDEXES FROM "{uuid}"').rows()
            metadata = snapshot.dataset(uuid).document.metadata
            found[f"{uuid} metadata"] = HISTORY in metadata, metadata.get("k")
        target = Path(operations.exported(con))
        if (target / "refs" / "head").exists():
            chain = read_chain(reader_of(target))
            found["export"] = [link.block.kind for link in chain.links], [one.rows for one in chain.slices]
            for one in chain.slices:
                check_data((target / one.key).read_bytes(), one)
        return found

    @staticmethod
    def _stored(folder: Path, tables: dict[str, Any]) -> list[Any]:
        """Return what an answer is made of, without the names of files, which are others each time."""
        found: list[Any] = []
        for name, table in tables.items():
            found.append((name, table.schema.remove_metadata().to_string(), table.partition_keys, [*table.indices]))
            for write, key in zip(table.writes, table.files, strict=True):
                with pq.ParquetFile(folder / key) as file:
                    found.append((write, os.path.dirname(key), file.read().to_pydict()))
        return found


def uuids(folder: Path) -> list[str]:
    """Return the datasets of which something stands in a folder."""
    return sorted({name.partition(".")[0] for name in os.listdir(folder)} - {""})


def drawn(operation: str, names: list[str]) -> list[tuple[int, str]]:
    """Return the steps at which an operation is killed, and when."""
    how = os.environ.get("KARTOSQL_KILLS", "0")
    if how == "all":
        return [(at, phase) for at in range(len(names)) for phase in crashes.PHASES]
    found = [(0, "before")]
    for at, name in enumerate(names):
        found += [(at, "in")] if name == "write" else []
        found += [(at, "after")] if name in CHANGING else []
    return sorted(Random(f"{how} {operation}").sample(found, min(KILLS, len(found))))


def killed(name: str, server: Server, prepared: Path, folder: Path) -> Iterator[str]:
    """Let the operation end at its steps, one after the other, and yield where, with what it leaves in the folder."""
    if os.environ.get("KARTOSQL_KILLS") != "changes":
        names = server.steps_of(name, fresh(folder, prepared))
        for at, phase in drawn(name, names):
            if server.is_killed(name, fresh(folder, prepared), at, phase):
                yield f"killed {phase} step {at} of {len(names)}, {names[at]}"
        return
    copies = folder.with_name("copies")
    names = server.copies_of(name, fresh(folder, prepared), copies)
    for path in sorted(copies.iterdir()):
        if path.name.endswith("-odf"):
            continue
        for end in ("", "-odf"):
            shutil.rmtree(f"{folder}{end}", ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{end}", f"{folder}{end}")
        at, _, phase = path.name.partition("-")
        yield f"killed {phase} step {at} of {len(names)}, {names[int(at)]}"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_killed_operation_shows_the_old_or_the_new_state_and_leaves_little(
    name, server, prepared, tmp_path, monkeypatch
):
    folder, answers = tmp_path / "store", Answers()
    with kartosql.connect(prepared, read_only=True) as con:
        old = answers.state(con, prepared)
        version = con.history("d").rows()[-1][0]
    assert server.steps_of(name, fresh(folder, prepared))
    with kartosql.connect(folder) as con:
        new = answers.state(con, folder)
        write_on(con, new)
        after = answers.state(con, folder)
        check_written(con, new)
    assert (new == old) == (name in ("compact", "compact dataset", "clean up", "forget versions"))
    count, most, seen = 0, 0, []
    for where in killed(name, server, prepared, folder):
        count += 1
        # The path is that of the last store, whose files are no more: nothing may be remembered.
        with kartosql.connect(folder) as con:
            found = answers.state(con, folder)
            assert found in (old, new), where
            seen.append(found == new)
            if name not in ("clean up", "delete dataset"):
                past = con.sql(f"SELECT * FROM d AT (VERSION => {version}) ORDER BY ALL").rows()
                assert past == old["d"][1], where
            check(con, folder, where)
            most = max(most, left_behind(con.store, folder, prepared))
            if found == old != new:
                run_again(con, name, folder, where)
            write_on(con, new)
            clean_up(con, folder, where, monkeypatch)
            check(con, folder, where)
            assert answers.state(con, folder) == after, where
    print(f"{name}: {count} kills, {sum(seen)} of them after the commit, {most} orphans at most")
    assert count
    # A copied seed has two data files, two indices and a schema, and one file is being written.
    assert most <= (6 if name.startswith("copy") else 4)


def run_again(con: kartosql.Connection, name: str, folder: Path, where: str) -> None:
    """Run an operation that was killed, after which nothing is left to be warned of."""
    OPERATIONS[name](con)
    tables = {u.partition("++")[0] for u in uuids(folder)} & {*con.cubes(), *con.datasets()}
    warned = [f for table in tables for f in con.check(table) if f.severity == "warning"]
    assert warned == [], where


def left_behind(store: Store, folder: Path, prepared: Path) -> int:
    """Return how many files of one dataset are new and belong to nothing, when what was under way has ended."""
    for uuid in uuids(folder):
        read_head(store, uuid)
    known = set(Store(prepared).details())
    return max(len(set(originals.orphans(store, uuid)) - known) for uuid in uuids(folder))


def check(con: kartosql.Connection, folder: Path, where: str) -> None:
    """Check that nothing is wrong but what a crash may leave: a change under way, and files of no dataset."""
    tables = {u.partition("++")[0] for u in uuids(folder)} & {*con.cubes(), *con.datasets()}
    for table in tables:
        bad = [f for f in con.check(table) if f.severity == "error" or f.check in ("foreign-write", "lost-commit")]
        assert bad == [], where


def write_on(con: kartosql.Connection, before: dict[str, Any]) -> None:
    """Commit to everything that is there, and build what an operation took away."""
    if "c" not in before:
        con.build_cube(operations.CUBE, {"seed": operations.seed(9), "en": operations.en(9)})
    elif "v" not in before["c"][0]:
        con.append_to_cube("c", {"seed": operations.OTHER_SEED, "en": operations.OTHER_EN})
    else:
        members = [u.partition("++")[2] for u in con.datasets() if u.startswith("c++")]
        rows = {"seed": operations.seed(9), "en": operations.en(9), "k": operations.en(9, name="u")}
        con.append_to_cube("c", {name: rows[name] for name in members})
    for uuid in ("d", "e"):
        if uuid in before and before[uuid][0] == ["q", "s"]:
            con.append_to_dataset(uuid, operations.plain(9))
    if "d" not in before:
        con.create_dataset("d", operations.plain(9), partition_on="q", index_columns="s")


def check_written(con: kartosql.Connection, before: dict[str, Any]) -> None:
    """Check that what was written on can be read."""
    if "c" in before and "v" in before["c"][0]:
        assert con.sql("SELECT v FROM c WHERE x = 9 AND i = 'i9'").rows() == [(90,)]
        assert len(con.sql("SELECT * FROM c").rows()) == len(before["c"][1]) + 1
    for uuid in ("d", "e"):
        if uuid in before and before[uuid][0] == ["q", "s"]:
            assert con.sql(f"SELECT s FROM {uuid} WHERE s = 9").rows() == [(9,)]


def clean_up(con: kartosql.Connection, folder: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    con.sql("SET history_versions = 0")
    with monkeypatch.context() as patch:
        for days in (0, 8):
            later = dt.timedelta(days=days)
            patch.setattr(Store, "now", lambda store: dt.datetime.now(dt.timezone.utc) + later)
            for uuid in uuids(folder):
                with contextlib.suppress(KartosqlError):
                    con.garbage_collect(uuid)
    left = {uuid: originals.orphans(con.store, uuid) for uuid in uuids(folder)}
    assert not any(left.values()), f"{where}: {left}"
