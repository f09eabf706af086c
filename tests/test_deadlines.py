"""Deadlines of untrusted statements hold in every phase: what parses, binds, plans, runs or answers for too long ends.

Time is that of a clock of the owner which goes on with each of its looks, so that a busy machine changes nothing.
"""

from __future__ import annotations

import pytest

import abuse
import kartosql
from kartosql import forking, untrusted
from kartosql.errors import KartosqlError
from stuck import PHASES

pytestmark = pytest.mark.process
SECONDS = 0.3  # the statements below take some seconds


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return abuse.small_store(tmp_path_factory.mktemp("store"))


def _ends(con, sql, monkeypatch):
    """Assert that a statement ends a second after its limit at the latest, and that the next one is answered."""
    con.sql("SELECT 1 AS a")  # the worker is there
    clock = abuse.Clock(untrusted.TICK)  # faster than the worker, however seldom the owner gets to look
    with monkeypatch.context() as patch:
        patch.setattr(untrusted, "time", clock)
        with pytest.raises(KartosqlError) as caught:
            con.answer({"sql": sql, "parameters": None, "limits": {"timeout": SECONDS}})
    assert caught.value.code == "timeout"
    assert clock.now <= SECONDS + 1
    assert con.sql("SELECT v FROM t WHERE k = 7").rows() == [(14,)]


@pytest.mark.parametrize("phase", PHASES)
def test_what_is_stuck_in_a_phase_is_ended(store, monkeypatch, phase):
    monkeypatch.setattr(forking, "_TEMPLATE", f"import sys, stuck; sys.argv.append({phase!r}); stuck.main()")
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        _ends(con, "SELECT v FROM t WHERE 'STUCK' <> '' AND k < 5", monkeypatch)


def test_the_system_ends_a_worker_whose_owner_does_not(store, monkeypatch):
    monkeypatch.setattr(forking, "_TEMPLATE", "import sys, stuck; sys.argv.append('parse'); stuck.main()")
    monkeypatch.setattr(untrusted.Worker, "_check", lambda self, end: None)
    with kartosql.connect(store, untrusted=True, timeout=300) as con:
        with pytest.raises(KartosqlError) as caught:
            con.answer({"sql": "SELECT 'STUCK' AS s", "parameters": None, "limits": {"timeout": 0.1}})
        assert caught.value.code == "worker-lost"
        assert con.sql("SELECT v FROM t WHERE k = 7").rows() == [(14,)]


CHAIN = "+".join("1" * 240)
JOINED = " AND ".join(f"t{i}.k = t{j}.k" for i in range(40) for j in range(i))
SLOW = {
    "parse": "SELECT " + ", ".join(f"{CHAIN} AS a{i}" for i in range(550)),
    "bind": "SELECT count(*) FROM t WHERE k + v IN (" + ", ".join(f"k + {i}" for i in range(20_000)) + ")",
    "deep": "SELECT " + ", ".join("(" * 90 + "1" + ")" * 90 for _ in range(800)),
    "lists": "SELECT v FROM t WHERE "
    + " OR ".join(f"k IN ({', '.join(str(j * 7 + i) for j in range(900))}) AND v > {i}" for i in range(100)),
    "joins": f"SELECT count(*) FROM {', '.join(f't t{i}' for i in range(40))} WHERE {JOINED}",
    "run": "SELECT count(*) FROM range(1000000000) a, range(1000000) b",
}


@pytest.mark.parametrize("sql", SLOW.values(), ids=SLOW)
def test_what_is_slow_in_a_phase_is_ended(store, monkeypatch, sql):
    with kartosql.connect(store, untrusted=True, timeout=300, max_constants=1_000_000) as con:
        _ends(con, sql, monkeypatch)
