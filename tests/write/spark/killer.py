"""Kills the Python workers of a Spark session as soon as one has written a file.

    python killer.py FOLDER

builds a cube there in a session that runs failed tasks again, makes a skipping index of it, and prints how often
workers were killed during each.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from math import inf
from pathlib import Path
from typing import Any, Self

import kartosql

CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])
ROWS = 300_000
INDEXES: dict[str, Any] = {"minmax": "x", "valuelist": "i", "bloomfilter": ["text", "i"]}


class Killer(threading.Thread):
    """Kills the workers below a JVM, and only these, when files like ``what`` appear in ``folder``; ``times`` times.

    Without ``times`` it kills at each new file: the workers of one moment may all have ended their tasks.
    """

    def __init__(self, session: Any, folder: Path, times: float = inf, what: str = "*.parquet") -> None:
        super().__init__(daemon=True)
        self._jvm = int(session._jvm.java.lang.ProcessHandle.current().pid())
        self._folder = folder
        self._times = times
        self._what = what
        self._done = threading.Event()
        self.killed = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        seen = 0
        while not self._done.is_set() and self._times:
            files = self._files()
            workers = [w for daemon in children(self._jvm) for w in children(daemon)] if files > seen else []
            killed = sum(kill(worker) for worker in workers)
            if killed:
                seen, self._times = files, self._times - 1
                self.killed += killed
            else:
                time.sleep(0.005)

    def _files(self) -> int:
        try:
            return len(list(self._folder.rglob(self._what)))
        except OSError:  # a folder that was cleared meanwhile
            return 0


def kill(process: int) -> bool:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:  # it has ended by itself
        return False
    return True


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(status[1]) == parent and status[0] != "Z":
                found.append(int(entry.name))
    return found


def frame(session: Any) -> Any:
    """Return rows that take some time to be written, of 20 partitions."""
    texts = "concat('p', id % 20) AS p", "concat('i', id % 1000) AS i", "sha2(string(id), 512) AS text"
    return session.range(0, ROWS, 1, 4).selectExpr("id AS x", *texts)


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "700m").config("spark.sql.shuffle.partitions", "4").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        with kartosql.connect(folder) as con, Killer(session, Path(folder), 2) as killer:
            con.build_cube(CUBE, frame(session))
        with kartosql.connect(folder) as con, Killer(session, Path(folder), 2, "kartosql-spark-*-*") as other:
            con.create_skipping_index("c.seed", **INDEXES, spark=session)
        print(killer.killed, other.killed)
    finally:
        session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
