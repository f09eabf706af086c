"""Properties that are computed once: the first value counts, and no lock is left to a fork."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.memo import memoized

SOURCE = Path(kartosql.__file__).parent
SECONDS = 120  # that something may take on a busy machine


@dataclass(frozen=True)
class Squared:
    number: int
    meet: threading.Barrier | None = None

    @memoized
    def values(self) -> list[int]:
        """The square, in a list of its own."""
        if self.meet is not None:
            self.meet.wait(SECONDS)
        if self.number < 0:
            raise ValueError(self.number)
        return [self.number**2]


def test_a_value_is_computed_once_for_each_object():
    three, four = Squared(3), Squared(4)
    assert three.values == [9]
    assert three.values is three.values
    assert four.values == [16]
    assert replace(three, number=5).values == [25]
    assert Squared.values.__doc__ == "The square, in a list of its own."


def test_what_fails_is_asked_again():
    below = Squared(-1)
    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            _ = below.values
    assert "values" not in vars(below)


def test_threads_that_ask_at_the_same_time_get_the_same_value():
    shared, found = Squared(3, threading.Barrier(4)), []
    threads = [threading.Thread(target=lambda: found.append(shared.values)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(found) == 4  # the barrier lets nobody through before all four compute
    assert {id(values) for values in found} == {id(shared.values)}


_PROGRAM = """
import os, signal, sys, threading, time
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
entered, leave = [], []  # no events, which have locks of their own
class Slow(Store):
    def list_root(self):
        entered.append(True)
        while not leave:
            time.sleep(0.01)
        return super().list_root()
slow = Snapshot(Slow(sys.argv[1]))
thread = threading.Thread(target=lambda: slow.members)
thread.start()
while not entered:
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    signal.alarm(int(sys.argv[2]))  # ends a child that hangs
    other = Snapshot(Store(sys.argv[1]))
    print(other.keys, other.members, other.uuids(), flush=True)
    leave.append(True)
    print(slow.members, [sorted(t.types) for t in slow.dataset("d").tables.values()], flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
leave.append(True)
thread.join()
print(slow.members)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_a_thread_computes_one_does_not_hang(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", pa.table({"x": [1]}))
        con.create_dataset("c++e", pa.table({"x": [1]}))
    command = [sys.executable, "-W", "ignore:.*fork:DeprecationWarning", "-c", _PROGRAM, str(tmp_path), str(SECONDS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    keys = {"c++e": ["c++e.by-dataset-metadata.json"], "d": ["d.by-dataset-metadata.json"]}
    assert run.stdout.splitlines() == [
        f"{keys} {{'c': ['e']}} ['c++e', 'd']",
        "{'c': ['e']} [['x']]",
        "0",
        "{'c': ['e']}",
    ], run.stderr


def test_no_other_property_with_a_memory_is_used():
    for path in SOURCE.rglob("*.py"):
        if path.name == "memo.py":  # type checkers take ours for that one
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            assert "cached_property" not in names, path
