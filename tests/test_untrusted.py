"""Connections for SQL of strangers: what they answer and refuse, and that limits hold whatever a statement does."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import abuse
import kartosql
from crashes import fork
from kartosql import forking, untrusted
from kartosql.errors import KartosqlError
from kartosql.worker import SLACK

pytestmark = pytest.mark.process  # statements run in workers
SECONDS, MEMORY = 2, 400_000_000
ALL = os.environ.get("KARTOSQL_ABUSE") == "all"
# Bytes that a worker may take: on a busy machine its owner may look late, and the system alone holds it back.
MOST = 1.3 * MEMORY if ALL else 2 * MEMORY + SLACK


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = abuse.small_store(tmp_path_factory.mktemp("store"))
    with kartosql.connect(folder) as con:
        con.sql("CREATE VIEW few AS SELECT k FROM t WHERE k < 3")
    return folder


@pytest.fixture(scope="module")
def con(store):
    """Return a connection that has time and memory for all that is no abuse, however busy the machine is."""
    with kartosql.connect(store, untrusted=True, timeout=300, max_bytes="1GB") as con:
        yield con


def _failure(con, sql, parameters=None):
    with pytest.raises(KartosqlError) as caught:
        con.sql(sql, parameters)
    return caught.value


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT p, v FROM t WHERE k = 7", None),
        ("SELECT v FROM t WHERE k IN (?, ?) ORDER BY v", [9, 10]),
        ("SELECT count(*), sum(v) FROM t WHERE p = $p", {"p": 1}),
        ("SELECT * FROM few ORDER BY k", None),
        ("SELECT 170141183460469231731687303715884105727::HUGEINT AS h, INTERVAL 1 DAY AS i, [1, NULL] AS l", None),
        ("SELECT * FROM t WHERE false", None),
        ("SHOW TABLES", None),
        ("DESCRIBE t", None),
        ("SELECT table_name FROM information_schema.tables ORDER BY 1", None),
    ],
)
def test_answers_are_those_of_a_connection(con, store, sql, parameters):
    with kartosql.connect(store) as plain:
        mine, other = con.sql(sql, parameters), plain.sql(sql, parameters)
        assert mine.rows() == other.rows()
        assert mine.arrow().schema == other.arrow().schema
        assert mine.types == other.types


def test_reports_come_with_the_rows(con):
    report = con.sql("SELECT v FROM t WHERE k = 7").report
    assert (report.files_selected, report.files_total) == (1, 4)
    assert con.explain("SELECT v FROM t WHERE k = 7").to_dict()["scans"] == report.to_dict()["scans"]
    assert "1 of 4 files" in str(report)


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SET timeout = 100", "not-allowed"),
        ("RESET timeout", "not-allowed"),
        ("ATTACH '/etc' AS e (TYPE parquet)", "not-allowed"),
        ("DETACH e", "not-allowed"),
        ("INSERT INTO t SELECT * FROM t", "not-allowed"),
        ("CREATE VIEW v AS SELECT 1", "not-allowed"),
        ("DROP VIEW few", "not-allowed"),
        ("EXPORT (SELECT 1) TO '/tmp/x' (TYPE odf)", "not-allowed"),
        ("SELECT * FROM read_text('/etc/passwd')", "function-not-allowed"),
        ("SELECT * FROM '/etc/passwd'", "unknown-table"),
        ("SELECT nope FROM t", "unknown-column"),
        ("SELECT 1; SELECT 2", "several-statements"),
    ],
)
def test_what_is_no_question_is_refused(con, sql, code):
    assert _failure(con, sql).code == code


@pytest.mark.parametrize(
    ("sql", "what", "most"),
    [
        ("SELECT " + ", ".join(f"k AS a{i}" for i in range(5001)) + " FROM t", "columns", "5,000"),
        ("SELECT k FROM t WHERE " + " OR ".join(f"k = {i}" for i in range(10_002)), "conditions", "10,000"),
        ("SELECT " + "+".join(["(FROM t SELECT max(k))"] * 201), "subqueries", "200"),
        (f"SELECT k FROM t WHERE k IN ({','.join(map(str, range(100_001)))})", "constants", "100,000"),
        (f"SELECT list_contains([{','.join(map(str, range(100_001)))}], 1)", "constants", "100,000"),
    ],
    ids=lambda text: text[-20:],
)
def test_what_has_too_many_parts_is_refused_before_it_is_parsed(con, sql, what, most):
    error = _failure(con, sql)
    assert error.code == f"too-many-{what}"
    assert error.message == f"The statement has more {what} than {most}, the setting max_{what}."


def test_the_owner_says_what_a_statement_may_have(store):
    caps = {"max_columns": 2, "max_conditions": 1, "max_subqueries": 1, "max_constants": 3, "max_nesting": 2}
    with kartosql.connect(store, untrusted=True, timeout=300, **caps) as con:
        assert con.sql("SELECT k, v FROM t WHERE k IN (1, 2) AND v = ((2))").rows() == [(1, 2)]
        for sql, code in {
            "SELECT k, v, p FROM t": "too-many-columns",
            "SELECT k FROM t WHERE k > 1 AND k < 5 OR k = 7": "too-many-conditions",
            "SELECT k FROM t WHERE k IN (FROM few) AND v IN (FROM few)": "too-many-subqueries",
            "SELECT k FROM t WHERE k IN (1, 2, 3, 4)": "too-many-constants",
            "SELECT (((1)))": "statement-too-deep",
            "EXPLAIN SELECT k, v, p FROM t": "too-many-columns",
        }.items():
            assert _failure(con, sql).code == code
        with pytest.raises(KartosqlError) as caught:
            con.explain("SELECT k, v, p FROM t")
        assert caught.value.code == "too-many-columns"


def test_as_many_parts_as_the_caps_allow_are_answered(con):
    # Columns take most of the memory of a statement, some 100,000 bytes each.
    columns = ", ".join(f"k AS a{i}" for i in range(500))
    assert len(con.sql(f"SELECT {columns} FROM t WHERE k IN ({','.join(map(str, range(5000)))})").columns) == 500


def test_places_of_errors_come_along(con):
    error = _failure(con, "SELECT nope FROM t")
    assert (error.span, error.sql) == ((7, 11), "SELECT nope FROM t")


@pytest.mark.parametrize("name", ["append_to_cube", "register", "attach", "settings", "store", "query_cube"])
def test_other_calls_are_refused(con, name):
    with pytest.raises(KartosqlError) as caught:
        getattr(con, name)
    assert caught.value.code == "not-allowed"


def test_files_above_the_byte_budget_are_not_read(store):
    with kartosql.connect(store, untrusted=True, timeout=300, max_bytes="1KB") as con:
        assert _failure(con, "SELECT * FROM t").code == "byte-budget"
        assert con.sql("SELECT 1 AS a").rows() == [(1,)]


def test_a_result_above_a_quarter_of_the_memory_is_an_error(store):
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        error = _failure(con, "SELECT i, i + 1 AS j FROM range(20000000) r(i)")
        assert (error.code, "a quarter of memory_limit" in error.message) == ("out-of-memory", True)
        assert len(con.sql("SELECT i, i + 1 AS j FROM range(5000000) r(i)")) == 5_000_000


def test_what_spills_more_than_it_may_is_ended(store):
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        con.sql("SELECT 1 AS a")

        def spill():
            for worker in con._busy:
                with open(Path(worker._folder, "spilled"), "wb") as file:
                    file.truncate(untrusted.MEMORY + 1)  # takes no disk

        thread = _once_busy(con, spill)
        assert _failure(con, "SELECT count(*) FROM range(1000000000) a, range(1000000) b").code == "limit-exceeded"
        thread.join()
        assert con.sql("SELECT 1 AS a").rows() == [(1,)]


class _Trap:
    """What makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("said", ["pickle", "list", "no error", "no size", "rows"])
def test_nothing_that_a_worker_says_is_unpickled(store, tmp_path, monkeypatch, said):
    trap = pickle.dumps(_Trap(str(tmp_path / "run")))
    answers = {
        "pickle": trap,
        "list": b"[1]",
        "no error": b'{"error": 1}',
        "no size": b'{"bytes": "x"}',
        "rows": json.dumps({"bytes": len(trap)}).encode(),
    }
    says = (
        "from kartosql import worker\n"
        "whole, first = worker._answer, []\n"
        "def answer(to, header, data):\n"
        "    if not first: return first.append(1) or whole(to, header, data)\n"
        f"    to.write({len(answers[said]).to_bytes(8, 'little') + answers[said] + trap!r})\n"
        "    to.flush()\n"
        "worker._answer = answer\n"
        "worker.main()"
    )
    monkeypatch.setattr(forking, "_TEMPLATE", says)
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        for _ in range(2):
            assert _failure(con, "SELECT 1 AS a").code == "worker-lost"
    assert not (tmp_path / "run").exists()


ABUSE = [
    "SELECT count(*) FROM range(1000000000) a, range(1000000) b",
    "SELECT sum(a) FROM (WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r) SELECT a FROM r)",
    "SELECT repeat('x', 2000000000)",
    "SELECT list(a) FROM range(1000000000) t(a)",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(100000000) t(a)",
    "SELECT * FROM range(1000000000)",
    "SELECT range(1000000000)",
    "SELECT count(*) FROM (SELECT * FROM range(100000000) t(a) ORDER BY md5(a::VARCHAR))",
    "SELECT count(DISTINCT md5(a::VARCHAR)) FROM range(1000000000) t(a)",
    "SELECT " + ", ".join(f"{i} AS a{i}" for i in range(30_000)),
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + "+".join("1" * 30_000),
    "WITH "
    + ", ".join(f"c{i} AS (SELECT * FROM c{i - 1}, c{i - 1} AS x)" for i in range(1, 40)).replace("c0", "t")
    + " SELECT count(*) FROM c39",
    "SELECT * FROM t WHERE " + " OR ".join(f"k = {i} AND v > {i}" for i in range(20_000)),
    "SELECT " + ", ".join(f"(SELECT max(k) FROM t WHERE v = {i})" for i in range(3000)),
    "SELECT list_reduce(range(100000000), lambda a, b: a + b)",
    "SELECT array_to_string(list_transform(range(50000000), lambda x: repeat('y', 50)), '')",
]
FEW = ABUSE if ALL else ABUSE[::3]


@pytest.mark.parametrize("sql", FEW, ids=lambda sql: sql[:40])
def test_abuse_ends_at_the_limits_and_the_next_statement_is_answered(store, monkeypatch, sql):
    with kartosql.connect(store, untrusted=True, timeout=300, memory_limit=MEMORY) as con, _peak(con) as peak:
        assert con.sql("SELECT count(*) FROM few").rows() == [(3,)]
        with pytest.raises(KartosqlError):
            _ask(con, sql, SECONDS, monkeypatch)
        assert con.sql("SELECT count(*) FROM few").rows() == [(3,)]
    assert peak[0] <= MOST


def test_each_statement_of_the_corpus_ends_at_the_limits_and_the_next_one_is_answered(store, monkeypatch):
    chosen = list(abuse.statements())[:: 1 if ALL else 60]
    with kartosql.connect(store, untrusted=True, timeout=300, memory_limit=MEMORY) as con, _peak(con) as peak:
        late: dict[str, float] = {}
        for sql in chosen:
            con.sql("SELECT count(*) FROM few")
            started = time.monotonic()
            with contextlib.suppress(KartosqlError):
                _ask(con, sql, 1, monkeypatch)
            late[sql] = time.monotonic() - started
            assert con.sql("SELECT count(*) FROM few").rows() == [(3,)], sql[:200]
    print(f"{len(chosen)} statements, {peak[0] / MEMORY:.2f} x memory_limit; load {os.getloadavg()[0]:.1f}")
    print(f"{sum(seconds > 2 for seconds in late.values())} took more than 2 s by the clock; the longest:")
    for sql in sorted(late, key=late.__getitem__)[:-6:-1]:
        print(f"  {late[sql]:.2f} s {sql[:90]}")
    assert peak[0] <= MOST


def _ask(con, sql, seconds, monkeypatch):
    """Run a statement with a limit, and assert that its owner waits a second longer at most."""
    clock = abuse.Clock()
    with monkeypatch.context() as patch:
        patch.setattr(untrusted, "time", clock)
        try:
            con.answer({"sql": sql, "parameters": None, "limits": {"timeout": seconds}})
        finally:
            assert clock.now <= seconds + 1


@contextlib.contextmanager
def _peak(con):
    """Watch the memory of the workers of a connection: the largest amount that one of them took."""
    found, end = [0], threading.Event()

    def watch():
        while not end.wait(0.005):
            with contextlib.suppress(OSError):
                found[0] = max([found[0], *(untrusted.memory_of(pid)[1] for pid in _forks(con._template))])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join()
    assert found[0]


def test_a_worker_that_dies_is_replaced(con):
    con.sql("SELECT 1 AS a")
    idle = list(con._idle)
    for pid in _forks(con._template):
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 60
    while any(worker.is_alive for worker in idle) and time.monotonic() < end:
        time.sleep(0.01)
    assert [con.sql("SELECT 1 AS a").rows() for _ in range(4)] == [[(1,)]] * 4


def test_a_statement_whose_worker_dies_is_an_error_and_the_next_one_answered(store):
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        con.sql("SELECT 1 AS a")
        timer = _once_busy(con, lambda: [os.kill(worker.pid, signal.SIGKILL) for worker in con._busy])
        assert _failure(con, "SELECT count(*) FROM range(1000000000) a, range(1000000) b").code == "worker-lost"
        timer.join()
        assert con.sql("SELECT 1 AS a").rows() == [(1,)]


def _once_busy(con, action):
    """Do something some time after a statement was begun."""

    def act():
        while not con._busy:
            time.sleep(0.01)
        time.sleep(0.3)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_what_runs_is_interrupted_from_another_thread(store):
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        con.sql("SELECT 1 AS a")
        timer = _once_busy(con, con.interrupt)
        assert _failure(con, "SELECT count(*) FROM range(1000000000) a, range(1000000) b").code == "interrupted"
        timer.join()
        assert con.sql("SELECT 1 AS a").rows() == [(1,)]


def test_a_fork_of_the_owner_is_told_and_ends_nothing(store):
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        con.sql("SELECT 1 AS a")
        child = fork()
        if not child:
            try:
                con.sql("SELECT 1 AS a")
            except KartosqlError as e:
                con.close()
                os._exit(7 if e.code == "other-process" else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert con.sql("SELECT v FROM t WHERE k = 7").rows() == [(14,)]


def test_a_connection_that_cannot_start_a_process_leaves_no_folder(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError, match="nowhere"):
        kartosql.connect(store, untrusted=True)
    assert not list(tmp_path.iterdir())


def test_several_threads_share_a_connection(store):
    with kartosql.connect(store, untrusted=True, workers=2, timeout=300) as con:
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda k=k: found.append(con.sql("SELECT v FROM t WHERE k = ?", [k]).rows()[0][0]))
            for k in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [2 * k for k in range(8)]


@pytest.mark.parametrize("forks", [True, False])
def test_nothing_is_left_of_a_connection_that_is_closed(store, monkeypatch, forks):
    monkeypatch.setattr(untrusted, "Template", functools.partial(untrusted.Template, forks=forks))
    con = kartosql.connect(store, untrusted=True)
    assert con.sql("SELECT v FROM t WHERE k = 7").rows() == [(14,)]
    template = con._template
    pids = [template.process.pid, *_forks(template)]
    assert Path(template.folder).exists()
    con.close()
    assert not any(map(_runs, pids))
    assert len(pids) > 1
    assert not Path(template.folder).exists()
    assert _failure(con, "SELECT 1 AS a").code == "connection-closed"


def test_a_connection_that_is_closed_at_once_does_not_wait_for_its_workers(store):
    con = kartosql.connect(store, untrusted=True)
    con.close()
    assert con._template.process.returncode is not None
    assert not Path(con._template.folder).exists()


def _forks(template):
    """Return the workers that a template made."""
    pid = template.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_workers_are_forks_of_a_process_without_threads_and_hold_nothing_but_their_socket(con, store):
    with kartosql.connect(store, untrusted=True, timeout=300) as other:
        con.sql("SELECT 1 AS a")
        other.sql("SELECT 1 AS a")
        assert not set(_forks(con._template)) & set(_forks(other._template))
    template = con._template.process.pid
    assert os.listdir(f"/proc/{template}/task") == [str(template)]  # else a fork has locks that nobody lets go
    ready = [worker.pid for worker in con._idle if worker.pid]
    assert ready
    assert set(ready) <= set(_forks(con._template))
    for pid in ready:
        opened = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert len([name for name in opened if name.startswith("socket:")]) == 1
        assert not [name for name in opened if name.startswith("pipe:")]


def test_a_template_that_dies_takes_its_workers_along_and_is_replaced(store):
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        con.sql("SELECT 1 AS a")
        template, pids, idle = con._template, _forks(con._template), list(con._idle)
        os.kill(template.process.pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while (any(map(_runs, pids)) or any(w.is_alive for w in idle)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(_runs, pids))
        assert con.sql("SELECT v FROM t WHERE k = 7").rows() == [(14,)]
        assert con._template is not template
        assert not Path(template.folder).exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"memory_limit": "10MB"}, "invalid-setting"),
        ({"timeout": -1}, "invalid-setting"),
        ({"nope": 1}, "unknown-setting"),
        ({"workers": 0}, "invalid-argument"),
        ({"engine": "spark"}, "not-allowed"),
        ({"read_only": False}, "invalid-argument"),
        ({"attach": ["/data"]}, "invalid-argument"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(store, options, code):
    with pytest.raises(KartosqlError) as caught:
        kartosql.connect(store, untrusted=True, **options)
    assert caught.value.code == code


def test_parameters_that_cannot_travel_are_refused(con):
    assert _failure(con, "SELECT ?", [threading.Lock()]).code == "invalid-parameters"
    assert con.sql("SELECT ? AS a", [pa.scalar(1).as_py()]).rows() == [(1,)]


def test_verify_asks_duckdb_alone_and_finds_no_difference(con):
    found = con.sql("VERIFY SELECT count(*) FROM t").rows()
    assert not any("DIFFERENT" in line for (line,) in found)


_OWNER = """
import sys
import kartosql
con = kartosql.connect(sys.argv[1], untrusted=True, timeout=300)
con.sql("SELECT 1 AS a")
pid = con._template.process.pid
children = open(f"/proc/{pid}/task/{pid}/children").read().split()
print(pid, *children, con._template.folder, flush=True)
con.sql("SELECT count(*) FROM range(1000000000) a, range(1000000) b")
"""


def test_workers_end_with_an_owner_that_is_killed_and_leave_nothing(store):
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(store)], stdout=subprocess.PIPE, text=True)
    with owner:
        words = owner.stdout.readline().split()
        owner.kill()
    pids, folders = [int(w) for w in words if w.isdigit()], [Path(w) for w in words if not w.isdigit()]
    end = time.monotonic() + 60
    while time.monotonic() < end and (any(map(_runs, pids)) or any(f.exists() for f in folders)):
        time.sleep(0.05)
    assert len(pids) > 1
    assert not any(map(_runs, pids))
    assert not any(f.exists() for f in folders)


def _runs(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
