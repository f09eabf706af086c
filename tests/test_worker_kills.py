"""Workers, the process that makes them and their owners are killed at random moments, and nothing of them stays.

``KARTOSQL_WORKER_KILLS=10000 pytest -s --timeout 0 tests/test_worker_kills.py`` is the long form.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import abuse
import kartosql
from kartosql.errors import KartosqlError

pytestmark = pytest.mark.process
KILLS = int(os.environ.get("KARTOSQL_WORKER_KILLS", "30"))
SEED = int(os.environ.get("KARTOSQL_SEED", "7"))
PATIENCE = 120  # seconds for what takes none on a machine with nothing else to do
LONG = "SELECT count(*) FROM range(1000000000) a, range(1000000) b"
STATEMENTS = (LONG, LONG, "SELECT sum(v) FROM t", "SELECT * FROM t ORDER BY md5(v::VARCHAR)", "SELECT list(k) FROM t")
ENDINGS = {"worker-lost", "interrupted", "timeout"}
WAYS = {"worker": 45, "interrupt": 20, "cancel": 14, "timeout": 17, "template": 2, "owner": 2}
OWNER = f"""
import sys, threading
import kartosql
con = kartosql.connect(sys.argv[1], untrusted=True, timeout=300, threads=1, workers=2)
print(flush=True)
for _ in range(2):
    threading.Thread(target=con.sql, args=("{LONG}",)).start()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return abuse.small_store(tmp_path_factory.mktemp("store"))


def test_kills_at_random_moments_leave_nothing(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    chance, done, codes = random.Random(SEED), Counter(), Counter()
    threads, opened, ended = threading.active_count(), _descriptors(), _zombies()
    every = list(WAYS) * (len(WAYS) <= KILLS)  # each way once, and then by their weights
    ways = every + chance.choices(list(WAYS), list(WAYS.values()), k=KILLS - len(every))
    with kartosql.connect(store, untrusted=True, timeout=300, threads=1) as con:
        for at, way in enumerate(ways, 1):
            if way == "owner":
                _kill_owner(store, chance)
            else:
                codes[_kill(con, way, chance)] += 1
            done[way] += 1
            if at % 50 == 0 or at == KILLS:
                _until(lambda: _processes(os.getpid()) + len(_zombies() - ended) <= 3, "a template and two workers")
                _until(lambda: _descriptors() - opened <= 3, "three sockets")
                assert len(list(tmp_path.iterdir())) == 1
                assert len(list(Path(con._template.folder).iterdir())) <= 2
            if at % 100 == 0:
                print(f"{at:,} kills: {dict(done)}, {dict(codes)}", flush=True)
    _until(lambda: not _processes(os.getpid()) and _zombies() <= ended, "no process")
    _until(lambda: threading.active_count() <= threads, "no thread")
    _until(lambda: _descriptors() <= opened, "no descriptor")
    assert not list(tmp_path.iterdir())
    print(f"{KILLS:,} kills, seed {SEED}: {dict(done)}; ended with {dict(codes)}")


def _kill(con: kartosql.untrusted.UntrustedConnection, way: str, chance: random.Random) -> str | None:
    """Run a statement and end what runs it some time later; returns the code of its error, None if it was answered."""
    sql, after = chance.choice(STATEMENTS), chance.random() * 0.05
    is_cancelled = threading.Event()
    request = {"sql": sql, "parameters": None, "limits": {"timeout": max(after, 0.001)} if way == "timeout" else {}}
    actions: dict[str, Callable[[], object]] = {
        "worker": lambda: [os.kill(w.pid, signal.SIGKILL) for w in [*con._busy] if w.pid],
        "interrupt": con.interrupt,
        "cancel": is_cancelled.set,
        "timeout": lambda: None,
        "template": con._template.process.kill,
    }
    ended = threading.Event()

    def act() -> None:
        """Act, and again as long as the statement runs: its worker may not have been there yet."""
        delay = after
        while not ended.wait(delay):
            with contextlib.suppress(ProcessLookupError):
                actions[way]()
            delay = 0.1

    thread = threading.Thread(target=act)
    thread.start()
    code = None
    try:
        con.answer(request, is_cancelled.is_set).rows()
    except KartosqlError as e:
        code = e.code
    finally:
        ended.set()
        thread.join()
    assert code is None or code in ENDINGS, (code, way, sql)
    for last in (False, False, True):  # workers that wait may have died unnoticed with the template
        try:
            assert con.sql("SELECT v FROM t WHERE k = 7").rows() == [(14,)]
            break
        except KartosqlError as e:
            if last or e.code != "worker-lost":
                raise
    return code


def _kill_owner(store: Path, chance: random.Random) -> None:
    """Kill a process that has a connection of its own, while it starts or asks."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(store)], stdout=subprocess.PIPE)
    with owner:
        if chance.random() < 0.8:
            owner.stdout.readline()
        time.sleep(chance.random())
        owner.kill()
    _until(lambda: not _processes(owner.pid), "no process of an owner that was killed")


def _processes(owner: int) -> int:
    """Return how many templates and workers of an owner there are."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += f"main()\0{owner}\0".encode() in path.read_bytes()
    return found


def _zombies() -> set[Path]:
    """Return the processes of ours that have ended and are not waited for, also those of other tests."""
    return {path for path in Path("/proc").glob("[0-9]*/stat") if _is_zombie(path)}


def _is_zombie(stat: Path) -> bool:
    """Return whether a process that we or one of our templates started has ended, and is not waited for."""
    with contextlib.suppress(OSError):
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        if state == "Z":
            of = b"" if int(parent) == os.getpid() else Path(f"/proc/{parent}/cmdline").read_bytes()
            return int(parent) == os.getpid() or f"main()\0{os.getpid()}\0".encode() in of
    return False


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, f"after {PATIENCE} s there is more than {what}"
        time.sleep(0.02)
