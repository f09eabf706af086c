"""What the machine refuses is told as that: at any call, of any kind of file, wherever memory ends."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql import session_pool
from kartosql.connection import Connection
from kartosql.engines.duckdb import remote, runtime, statement
from kartosql.engines.duckdb.lookups import IndexTables
from kartosql.errors import KartosqlError, LimitError, StoreError, failure_of
from kartosql.stopping import translated_errors
from kartosql.store.store import LocalFiles

MANY = bool(os.environ.get("KARTOSQL_FAILURES"))  # every call and many limits, which takes minutes
CODES = {
    errno.EMFILE: "too-many-open-files",
    errno.ENFILE: "too-many-open-files",
    errno.EACCES: "access-denied",
    errno.EPERM: "access-denied",
    errno.EIO: "store-failed",
    errno.ETIMEDOUT: "store-failed",
    errno.ELOOP: "store-failed",
    errno.ENAMETOOLONG: "store-failed",
    errno.ESTALE: "store-failed",
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.ENOMEM: "out-of-memory",
}
NO_THREAD = "can't start new thread"


# -- what is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_a_number_of_the_system_has_its_code_whoever_passes_it_on(number, code):
    words = os.strerror(number)
    for error in (
        OSError(number, words),
        OSError(f"Failed to open local file 'x'. Detail: [errno {number}] {words}"),
        duckdb.IOException(f'IO Error: Cannot open file "/x": {words}'),
        duckdb.IOException(f'IO Error: Could not write file "/x": {words}\nand more'),
    ):
        found = failure_of(error, "Cannot read 'x'")
        assert found is not None
        assert found.code == code
        assert found.message.startswith("Cannot read 'x'")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 64 failed"),
        duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate data of size 16.0 KiB"),
        ImportError("a.so: failed to map segment from shared object"),
    ],
)
def test_memory_that_ran_out_has_one_code(error):
    found = failure_of(error)
    assert isinstance(found, LimitError)
    assert found.code == "out-of-memory"
    assert found.hint is not None
    assert found.message


def test_a_thread_that_does_not_start_is_a_limit():
    found = failure_of(RuntimeError(NO_THREAD))
    assert isinstance(found, LimitError)
    assert (found.code, bool(found.hint)) == ("too-many-threads", True)


@pytest.mark.parametrize(
    "error",
    [
        OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
        OSError(errno.EINVAL, "Invalid argument"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        pa.ArrowInvalid("Parquet magic bytes not found in footer: Too many open files"),
        duckdb.ConversionException("Conversion Error: Could not convert string: Permission denied"),
        RuntimeError("something else"),
        ValueError("out of memory error"),
        StoreError("ours: Too many open files"),
    ],
)
def test_what_may_follow_from_the_data_is_no_failure_of_the_machine(error):
    assert failure_of(error) is None
    with pytest.raises(type(error)), translated_errors():
        raise error


# -- each call fails once --------------------------------------------------------------------------


class Faulty:
    """Lets the call of number ``at``, of all those that are watched, raise an error."""

    def __init__(self, at: int, error: Callable[[], BaseException]) -> None:
        self.calls = 0
        self._at, self._error = at, error

    def watch(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        found = getattr(owner, name)

        def call(*args: Any, **keywords: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                raise self._error()
            return found(*args, **keywords)

        patch.setattr(owner, name, call)


READS = [
    *((LocalFiles, name) for name in ("ls", "find", "cat_file")),
    *((os, name) for name in ("lstat", "stat", "scandir")),
    *((pq, name) for name in ("ParquetFile", "read_table", "read_schema", "read_metadata")),
]
MEMORY = [
    *((statement.EngineSession, name) for name in ("run", "rows", "register", "set_list", "set_files")),
    (runtime.duckdb, "connect"),
    (LocalFiles, "cat_file"),
    (kartosql.result, "python_rows"),
]


def _rows(con: Connection, sql: str) -> list[Any]:
    return sorted(con.sql(sql).rows(), key=repr)


def _append(con: Connection) -> int:
    con.append_to_dataset("w", pa.table({"p": [1], "x": [1]}))
    return 0


STATEMENTS: dict[str, Callable[[Connection], Any]] = {
    "scan": lambda con: _rows(con, "SELECT * FROM d WHERE s > 'a'"),
    "index": lambda con: _rows(con, "SELECT * FROM d WHERE x = 3"),
    "cube": lambda con: _rows(con, "SELECT x, v, w FROM c WHERE v > 'a'"),
    "skipping": lambda con: _rows(con, "SELECT x FROM k WHERE x = 7"),
    "folder": lambda con: (con.sql(f"ATTACH '{con.store.root}/plain' AS f (TYPE parquet)"), _rows(con, "FROM f"))[1],
    "texts": lambda con: (con.sql(f"ATTACH '{con.store.root}/texts' AS f (TYPE csv)"), _rows(con, "FROM f"))[1],
    "files": lambda con: len(con.sql("SHOW FILES FROM d").rows()),
    "check": lambda con: [row for row in con.sql("CHECK d").rows() if row[2] == "error"],
    "append": _append,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failures")
    with kartosql.connect(str(path)) as con:
        data = pa.table({"p": [1, 2, 3, 4], "x": [1, 2, 3, 4], "s": ["a", "b", "c", "d"]})
        con.create_dataset("d", data, partition_on=["p"], index_columns=["x"])
        con.create_dataset("w", data.select(["p", "x"]), partition_on=["p"], index_columns=["x"])
        con.create_dataset("k", pa.table({"p": [*range(8)], "x": [*range(8)]}), partition_on=["p"])
        con.create_skipping_index("k", minmax=["x"])
        cube = kartosql.Cube("c", ["x"], ["p"])
        con.build_cube(cube, {"seed": data.rename_columns(["p", "x", "v"]), "e": data.rename_columns(["p", "x", "w"])})
    for name in ("a", "b"):
        (path / "plain" / f"p={name}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [1, 2]}), path / "plain" / f"p={name}" / "1.parquet")
    (path / "texts").mkdir()
    (path / "texts" / "a.csv").write_text("a,b\n1,2\n", "utf-8")
    return path


@contextlib.contextmanager
def _watched(targets: list[tuple[Any, str]], at: int, error: Callable[[], BaseException]) -> Iterator[Faulty]:
    faulty = Faulty(at, error)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in targets:
            faulty.watch(patch, owner, name)
        yield faulty


def _outcome(folder: Path, run: Callable[[Connection], Any]) -> Any:
    with kartosql.connect(str(folder)) as con:
        return run(con)


def _each_call(
    folder: Path, name: str, targets: list[tuple[Any, str]], errors: list[tuple[Callable[[], Exception], str]]
) -> None:
    run = STATEMENTS[name]
    with _watched(targets, 0, MemoryError) as faulty:
        expected = _outcome(folder, run)
    assert faulty.calls > 0
    codes = []
    for at in range(1, faulty.calls + 1, 1 if MANY else max(1, faulty.calls // 12)):
        for error, code in errors if MANY else [errors[at % len(errors)]]:
            with _watched(targets, at, error):
                try:
                    found = _outcome(folder, run)
                except KartosqlError as e:
                    codes.append((code, e.code, at))
                else:
                    # Somebody did without what could not be read.
                    assert found == expected, (at, error())
    assert codes
    assert not [found for found in codes if found[0] != found[1]]


@pytest.mark.parametrize("table", ["c", "c.e", '"c++seed"', "d"])
@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_a_document_that_cannot_be_read_makes_no_table_unknown(folder, number, code, table, monkeypatch):
    found = os.lstat

    def lstat(path: Any, **keywords: Any) -> Any:
        if ".by-dataset-metadata." in os.fspath(path):
            raise OSError(number, os.strerror(number))
        return found(path, **keywords)

    monkeypatch.setattr(os, "lstat", lstat)
    with kartosql.connect(str(folder)) as con, pytest.raises(KartosqlError) as error:
        con.sql(f"SELECT * FROM {table}").rows()
    assert error.value.code == code


@pytest.mark.filterwarnings("ignore::kartosql.errors.KartosqlWarning")  # skipping metadata that cannot be read
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_read_that_the_system_refuses_damages_nothing(folder, name):
    errors = [(lambda n=number: OSError(n, os.strerror(n)), code) for number, code in CODES.items()]
    _each_call(folder, name, READS, errors)


@pytest.mark.filterwarnings("ignore::kartosql.errors.KartosqlWarning")
@pytest.mark.parametrize("name", STATEMENTS)
def test_memory_and_threads_may_run_out_at_any_step(folder, name):
    errors: list[tuple[Callable[[], Exception], str]] = [
        (MemoryError, "out-of-memory"),
        (lambda: pa.ArrowMemoryError("malloc of size 64 failed"), "out-of-memory"),
        (lambda: duckdb.OutOfMemoryException("Out of Memory Error: Allocation failure"), "out-of-memory"),
        (lambda: RuntimeError(NO_THREAD), "too-many-threads"),
    ]
    _each_call(folder, name, MEMORY, errors)


@pytest.mark.filterwarnings("ignore::kartosql.errors.KartosqlWarning")
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["scan", "index", "cube", "skipping"])
@pytest.mark.parametrize("before", range(3))
def test_the_next_statement_is_right_wherever_one_failed(folder, name, before, error, monkeypatch):
    # Indices are held as soon as they are asked for, whatever that takes.
    untouched = property(lambda index: 1e-9 if index.may_be_held else 0.0)
    monkeypatch.setattr(IndexTables, "allowance", untouched)
    expected = _outcome(folder, STATEMENTS[name])

    def warm() -> None:
        session_pool.clear()
        for _ in range(before):
            _outcome(folder, STATEMENTS[name])

    warm()
    with _watched(MEMORY, 0, error) as faulty:
        _outcome(folder, STATEMENTS[name])
    for at in range(1, faulty.calls + 1):
        warm()
        with _watched(MEMORY, at, error), contextlib.suppress(KartosqlError, KeyboardInterrupt):
            assert _outcome(folder, STATEMENTS[name]) == expected, at
        for _ in range(2):
            assert _outcome(folder, STATEMENTS[name]) == expected, at


@pytest.mark.parametrize("form", ["arrow", "rows", "df", "pl", "write", "__arrow_c_stream__", "head", "__repr__"])
def test_memory_may_run_out_in_any_form_of_a_result(folder, form, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> Any:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    with kartosql.connect(str(folder)) as con:
        query = con.sql("SELECT * FROM d")
        arguments = {"write": (str(tmp_path / "a.parquet"),), "head": (2,)}.get(form, ())
        monkeypatch.setattr(kartosql.query.Execution, "plan", fail)
        with pytest.raises(LimitError) as e:
            getattr(query, form)(*arguments)
    assert e.value.code == "out-of-memory"


def test_what_a_store_refuses_keeps_its_code_on_its_way_through_the_engine(monkeypatch):
    monkeypatch.setattr(remote, "WHOLE_FILE", 0)
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        con.create_dataset("d", pa.table({"x": [1, 2]}))
        found, kept = con.store.fs.cat_file, []

        def refuse(path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
            if start is not None and path.endswith(".parquet"):
                kept.append(path)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return found(path, start=start, end=end, **options)

        monkeypatch.setattr(con.store.fs, "cat_file", refuse)
        with pytest.raises(StoreError) as e:
            con.sql("SELECT sum(x) FROM d").rows()
        monkeypatch.undo()
        assert kept
        assert e.value.code == "too-many-open-files"
        assert con.sql("SELECT sum(x) FROM d").rows() == [(3,)]


# -- real limits -----------------------------------------------------------------------------------

_PROGRAM = """
import os, resource, sys
import pyarrow as pa
import kartosql
folder, kind, value = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "user":
    os.chmod(folder, 0o755)
    for sql in sys.argv[4:]:  # nobody else may import what belongs to root
        with kartosql.connect(sys.argv[1], threads=2) as con:
            con.sql(sql).rows()
    for name in os.environ["DENIED"].split(":"):
        os.chmod(name, 0)
else:
    kartosql.connect(folder, threads=2).sql("SELECT sum(x) FROM d").rows()  # all that is imported is there
if kind == "RLIMIT_AS":
    value += 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
if kind == "user":
    os.setgid(value)
    os.setuid(value)
else:
    resource.setrlimit(getattr(resource, kind), (value, value))
for sql in sys.argv[4:]:
    try:
        with kartosql.connect(folder, threads=2) as con:
            told = str(con.sql(sql).rows()[:1])
    except kartosql.KartosqlError as e:
        told = f"error[{e.code}] {e.message}"
    except BaseException as e:
        told = f"foreign {type(e).__name__} {e}"
    print(told.replace(chr(10), " "), flush=True)
"""


def _limited(folder: Path, kind: str, value: int, *statements: str) -> tuple[list[str], int]:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), kind, str(value), *statements],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return run.stdout.splitlines(), run.returncode


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_three_hundred_files_are_read_where_64_may_be_open(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        data = pa.table({"p": [*range(300)], "x": [*range(300)]})
        con.create_dataset("d", data, partition_on=["p"], index_columns=["x"])
    statements = ("SELECT sum(x) FROM d", "SELECT count(*) FROM d WHERE x % 2 = 0", "SELECT max(x) FROM d WHERE x < 99")
    assert _limited(tmp_path, "RLIMIT_NOFILE", 64, *statements) == (["[(44850,)]", "[(150,)]", "[(98,)]"], 0)
    (told,), _ = _limited(tmp_path, "RLIMIT_NOFILE", 3, statements[0])
    assert told.startswith("error[too-many-open-files]")


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root may become somebody else")
def test_a_file_that_may_not_be_read_is_not_damaged(tmp_path, monkeypatch):
    for above in [tmp_path, *tmp_path.parents]:
        if above.stat().st_uid == os.getuid() and len(above.parts) > 2:
            above.chmod(0o755)
    patterns = ("table/p=1/*", "table/p=1", "indices/x/*", "table/_common*", "indices")
    with kartosql.connect(str(tmp_path)) as con:
        data = pa.table({"p": [1, 2], "x": [1, 2], "s": ["a", "b"]})
        for i in range(len(patterns) + 1):
            con.create_dataset(f"d{i}", data, partition_on=["p"], index_columns=["x"])
    denied = [path for i, pattern in enumerate(patterns) for path in tmp_path.glob(f"d{i}/{pattern}")]
    denied += tmp_path.glob(f"d{len(patterns)}.by-*")
    monkeypatch.setenv("DENIED", ":".join(map(str, denied)))
    queries = ("SELECT s FROM {} WHERE x = 1", "SELECT sum(x) FROM {} WHERE s > ''", "CHECK {}")
    told, code = _limited(
        tmp_path, "user", 65534, *(q.format(f"d{i}") for i in range(len(patterns) + 1) for q in queries)
    )
    assert code == 0
    for i in range(len(patterns) + 1):
        of_dataset = told[3 * i : 3 * i + 3]
        assert any(line.startswith("error[access-denied]") for line in of_dataset), of_dataset
        assert not [t for t in of_dataset if "error[" in t and "access-denied" not in t]
        assert not [t for t in of_dataset if "corrupt" in t or t.startswith("foreign")]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large")
    with kartosql.connect(str(path)) as con:
        numbers = pa.array(range(200_000))
        data = pa.table({"p": [i % 4 for i in range(200_000)], "x": numbers, "s": numbers.cast(pa.string())})
        con.create_dataset("d", data, partition_on=["p"], index_columns=["x"])
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_a_process_of_little_memory_tells_that_and_goes_on(large):
    too_large = "SELECT list(repeat('x', 1000)) FROM range(3000000)"
    statements = too_large, "SELECT sum(x) FROM d WHERE x IN (5, 7)", too_large
    told, code = _limited(large, "RLIMIT_AS", 600 << 20, *statements)
    for _ in range(3):
        if code != 127:
            break
        # A thread began when nothing was left, and the C library ends a process that cannot hold its variables.
        told, code = _limited(large, "RLIMIT_AS", 600 << 20, *statements)
    assert code == 0
    assert [line.split("]")[0] for line in told] == ["error[out-of-memory", "[(12,)", "error[out-of-memory"]


@pytest.mark.skipif(not MANY, reason="KARTOSQL_FAILURES=1 tries many limits, at which C libraries may end the process")
@pytest.mark.parametrize("megabytes", range(0, 1500, 60))
def test_nothing_foreign_comes_out_where_memory_ends(large, megabytes):
    told, _ = _limited(
        large,
        "RLIMIT_AS",
        megabytes << 20,
        "SELECT * FROM d ORDER BY s",
        "SELECT * FROM d WHERE x IN (5, 7)",
        "SELECT s, count(*) FROM d GROUP BY s",
        "SELECT list(repeat('x', 1000)) FROM range(1000000)",
        f"CREATE DATASET e{megabytes} PARTITION BY (p) AS SELECT * FROM d",
        "CHECK d",
    )
    assert not [line for line in told if "corrupt" in line]
    # Less than all answers: libraries end a process that cannot hold the variables of a thread.
    assert {line.split("]")[0] for line in told if not line.startswith("[")} <= {
        "error[out-of-memory",
        "error[too-many-threads",
    }


def test_errors_that_only_quote_what_the_machine_refused_are_known_by_their_words():
    stream = duckdb.InvalidInputException(
        "Invalid Input Error: exporting a stream from the object registered as 'n' failed: MemoryError:"
    )
    thread = pa.lib.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")
    assert [failure_of(e).code for e in (stream, thread)] == ["out-of-memory", "too-many-threads"]
    assert failure_of(duckdb.InvalidInputException("Invalid Input Error: 'MemoryError' is no number")) is None
    assert failure_of(pa.lib.ArrowInvalid("a text: Resource temporarily unavailable")) is None
