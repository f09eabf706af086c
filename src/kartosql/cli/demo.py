"""``kartosql demo``: a sample cube, and what pruning does to queries over it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time

from kartosql.cli.output import interruptible, opened, say
from kartosql.demo import DEMO_QUERIES, build_flights
from kartosql.opening import connect
from kartosql.query import SelectQuery
from kartosql.render.formats import write_stream

_NEXT = """\
Try next:
  {command} {folder} -c "SHOW TABLES"
  {command} {folder} -c "DESCRIBE flights"
  {command} {folder} -c "EXPLAIN SELECT dest FROM flights WHERE tailnum = 'N14228'"
  {command} {folder} -c "SELECT * FROM flights WHERE month = 1" -o january.parquet
"""


def run_demo(folder: str) -> None:
    """Build the cube unless ``folder`` holds it, and show the sample queries on stdout.

    Raises ``dataset-exists`` and ``store-failed``.
    """
    if os.path.isdir(folder) and "flights" in connect(folder).cubes():
        say(f"{folder} already holds the cube flights.")
    else:
        started = time.perf_counter()
        build_flights(folder, progress=lambda text: say(f"{text} ..."))
        say(f"The cube flights is in {folder}, built in {time.perf_counter() - started:.1f} s.")
    with connect(folder, read_only=True) as connection, opened(None) as out:
        for title, sql in DEMO_QUERIES:
            out.write(f"\n-- {title}\n{sql};\n\n".encode())
            started = time.perf_counter()
            query = connection.sql(sql)
            assert isinstance(query, SelectQuery)
            interruptible(query.arrow, query.interrupt)
            seconds = time.perf_counter() - started
            rows = write_stream(query.reader(), "box", out)
            out.write(f"{rows:,} rows in {seconds:.3f} s\n\n{query.report}\n\n".encode())
            out.flush()
        out.write(_NEXT.format(command=_command(), folder=shlex.quote(_short(folder))).encode())


def _command() -> str:
    """Return the command as somebody types it who started this process."""
    if shutil.which("kartosql"):
        return "kartosql"
    if os.path.basename(sys.argv[0]) == "kartosql":
        return shlex.quote(_short(sys.argv[0]))
    return f"{shlex.quote(_short(sys.executable))} -m kartosql"


def _short(path: str) -> str:
    """Return a path, or the one from the present folder where that is shorter."""
    return min(path, os.path.relpath(path), key=len)
