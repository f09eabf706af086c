"""Readers while others write: each answer is one committed state of all datasets, never a mix."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid

import pyarrow as pa
import pytest

import kartosql
from kartosql.store import Store

CELLS = 4
SECONDS = 6.0

# Each change gives every cell of both datasets the next number, in one commit.
WRITER = """
import sys, time
import pyarrow as pa
import kartosql

def rows(column, number, cells=4):
    x = list(range(cells))
    return pa.table({"x": x, "p": [n % 2 for n in x], column: [number] * cells})

def build(con):
    con.build_cube(kartosql.Cube("c", "x", "p"), {"seed": rows("v", 0), "en": rows("w", 0)})

def write(con, seconds, is_enough=lambda: True):
    number, until = 0, time.monotonic() + seconds
    while number < 4 or time.monotonic() < until or not is_enough():
        number += 1
        data = {"seed": rows("v", number), "en": rows("w", number)}
        if number % 5 == 4:
            con.update_cube("c", data, remove_conditions=[])
        elif number % 11 == 10:
            con.build_cube(kartosql.Cube("c", "x", "p"), data, overwrite=True)
        else:
            con.append_to_cube("c", data)
        if number % 7 == 6:
            con.compact("c")
        if number % 9 == 8:
            con.cleanup_cube("c")
    return number
"""
# It goes on until somebody closes its stdin, so that readers have seen enough however slow the machine is.
MAIN = (
    WRITER
    + """
import threading
closed = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
with kartosql.connect(sys.argv[1]) as con:
    print(write(con, float(sys.argv[2]), closed.is_set))
"""
)
space: dict = {}
exec(WRITER, space)

QUERIES = (
    "SELECT min(v), max(v), min(w), max(w), count(*) FROM c",
    "SELECT min(v), max(v), min(w), max(w), count(*) FROM c WHERE v >= 0 AND w >= 0",
    "SELECT min(s.v), max(s.v), min(e.w), max(e.w), count(*) FROM c.seed s JOIN c.en e USING (x, p)",
    "SELECT min(v), max(v), (SELECT min(w) FROM c.en), (SELECT max(w) FROM c.en), count(*) FROM c.seed",
)


def read(con: kartosql.Connection, fresh, is_over, enough) -> list[int]:
    """Ask one question after the other, each of a used and of a new connection, and return the numbers seen.

    Calls ``enough`` as soon as three were seen.
    """
    seen = [0]
    at = 0
    while not is_over():
        if len(set(seen)) > 2:
            enough()
        query = QUERIES[at % len(QUERIES)]
        if at % 5 == 4:
            with fresh() as other:
                row = other.sql(query).rows()[0]
        else:
            row = con.sql(query).rows()[0]
        at += 1
        assert row == (row[0],) * 4 + (CELLS,), f"a mix: {row} of {query}"
        assert row[0] >= seen[-1], f"back in time: {row} after {seen[-1]}"
        seen.append(row[0])
    return seen


@pytest.mark.parametrize("slowness", [0.0, 0.05])
def test_no_mix_is_read_while_another_process_writes(tmp_path, monkeypatch, slowness):
    """Slow readers read the documents of the datasets so far apart that whole commits lie in between."""
    plain = Store.read_metadata

    def slow(store: Store, key: str) -> bytes:
        time.sleep(random.uniform(0, slowness))
        return plain(store, key)

    if slowness:
        monkeypatch.setattr(Store, "read_metadata", slow)
    with kartosql.connect(tmp_path) as con:
        space["build"](con)
        writer = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(tmp_path), str(SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert writer.stdin is not None
        try:
            seen = read(con, lambda: kartosql.connect(tmp_path), lambda: writer.poll() is not None, writer.stdin.close)
        finally:
            writer.stdin.close()
            writer.stdin = None
            out, err = writer.communicate()
        assert writer.returncode == 0, err.decode()
        check_last(con, int(out), seen)


@pytest.mark.parametrize("readers", [2])
def test_no_mix_is_read_while_a_thread_writes_to_memory(readers):
    url = f"memory://{uuid.uuid4().hex}"
    with kartosql.connect(url) as con:
        space["build"](con)
        done, errors, numbers = threading.Event(), [], []
        satisfied: set[int] = set()

        def write():
            try:
                with kartosql.connect(url) as own:
                    # A reader that failed has seen enough, too.
                    numbers.append(space["write"](own, SECONDS, lambda: bool(errors) or len(satisfied) == readers))
            finally:
                done.set()

        def look():
            try:
                with kartosql.connect(url) as own:
                    numbers.append(
                        read(
                            own,
                            lambda: kartosql.connect(url),
                            done.is_set,
                            lambda: satisfied.add(threading.get_ident()),
                        )
                    )
            except BaseException as e:  # noqa: BLE001
                errors.append(e)

        threads = [threading.Thread(target=target) for target in (write, *[look] * readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        (last,) = [n for n in numbers if isinstance(n, int)]
        for seen in numbers:
            if not isinstance(seen, int):
                check_last(con, last, seen)


def check_last(con: kartosql.Connection, last: int, seen: list[int]) -> None:
    assert con.sql(QUERIES[0]).rows() == [(last,) * 4 + (CELLS,)]
    assert last > 3
    assert len(set(seen)) > 2, f"{len(seen)} answers have seen {set(seen)}"


def test_a_query_that_was_made_before_sees_its_own_state_until_the_end(tmp_path):
    with kartosql.connect(tmp_path) as con, kartosql.connect(tmp_path) as reader:
        space["build"](con)
        held = [reader.sql(query) for query in QUERIES]
        streams = [reader.sql("SELECT v, w FROM c").reader()]
        started = time.monotonic()
        space["write"](con, 1.5)
        con.cleanup_cube("c")
        assert time.monotonic() > started
        for query in held:
            assert query.rows() == [(0, 0, 0, 0, CELLS)]
        for stream in streams:
            assert pa.Table.from_batches(stream, stream.schema).to_pylist() == [{"v": 0, "w": 0}] * CELLS
