"""Random statements, over random stores, on Spark: DuckDB's rows, or refused.

    PYTHONPATH=tests python -m engines.spark.random_statements 100-120x2500 [--from STATEMENT]

asks 2,500 statements of each of the stores 100 to 119, and tells after each 100 what became of them. Each is planned
and translated as for a user. Most of them then run over the rows of whole tables, which a session without compiled
code holds in memory; one in ``WHOLE``, and each that fails or differs there, runs as users run it.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from differential.answers import MAX_ROWS, Checker, differ, is_undetermined, run_plain
from differential.regimes import regime
from differential.statements import Statement, statement
from differential.stores import make_world
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.engines.spark.engine import SETTINGS, SparkStatement, _fitted
from kartosql.engines.spark.scan import ScanFrames, _without_gaps
from kartosql.engines.spark.session import isolated, keeping_active, quiet
from kartosql.engines.spark.session import translate as error_of
from kartosql.errors import KartosqlError
from kartosql.plan.scopes import Occurrence
from sparks import rows_of, same, unordered

WHOLE = 20
# Planning and compiling take longer than the rows do.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.lightweightPlanChangeValidation": "false",
}


class SparkChecker(Checker):
    """Checks the statements of one store on Spark, one in ``whole`` of them as users run it."""

    def __init__(self, seed: int, folder: str, spark: Any, whole: int) -> None:
        super().__init__(make_world(seed, folder))
        self.tally: Counter[str] = Counter()
        self.failures: list[str] = []
        self._whole = whole
        settings = {**SETTINGS, **QUICK, "spark.sql.session.timeZone": self.world.settings["TimeZone"]}
        with keeping_active(spark):
            self._spark = isolated(spark, settings)
        self._views: dict[tuple[str, ...], str] = {}

    def ask(self, number: int) -> str:
        """Answer a statement on Spark and over plain tables, note and return what became of it."""
        status, told = self._asked(number)
        self.tally[status] += 1
        if status == "failed":
            again = f"PYTHONPATH=tests python -m differential {self.world.seed} {number}"
            self.failures.append(f"{told}\nagain: {again}")
        return status

    def _asked(self, number: int) -> tuple[str, str]:
        made = statement(self.world, number)
        try:
            wanted = run_plain(self.world.plain, made.text, made.parameters)
        except duckdb.Error:
            wanted = None
        if wanted is not None and wanted.num_rows > MAX_ROWS:
            return "too many rows", ""
        if number % self._whole:
            if wanted is None:
                return "invalid", ""
            if quick := self._quickly(made, wanted):
                return quick, ""
        self.tally["run as by users"] += 1
        return self._wholly(made, wanted)

    def _quickly(self, made: Statement, wanted: pa.Table) -> str:
        """Return what became of a statement over rows in memory; nothing if that tells nothing."""
        try:
            with keeping_active(self._spark), quiet():
                found = self._in_memory(made)
        except KartosqlError as e:
            return "refused" if e.code == "not-portable" else ""
        except Exception as e:  # noqa: BLE001 - whatever comes out of the JVM
            return "refused" if error_of(e, interrupted=False, timed_out=False).code == "not-portable" else ""
        return "same" if self._is_same(found, wanted, made) else ""

    def _in_memory(self, made: Statement) -> pa.Table:
        query = self.connection.sql(made.text + made.tail, made.parameters, engine="spark")
        bound, scan = query._attempt.bound, query.report.scan
        files = FileAccess(self.connection._session.runtime.store)
        duck = self.connection._session.runtime.statement(self.connection.settings, files, keys=())
        asked = SparkStatement(duck, files, self.connection.settings, lambda scan: duck)
        try:
            translation, schema = asked.translate(bound, scan)
        finally:
            asked.close()
        views = {o.id: self._view(o) for o in bound.occurrences}
        text = re.sub(r"`?__kartosql_occurrence_(\d+)\b`?", lambda m: views[int(m[1])], translation.sql)
        found = self._spark.sql(text).toArrow()
        columns = [_fitted(column, field.type) for column, field in zip(found.columns, schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=schema)

    def _view(self, occurrence: Occurrence) -> str:
        """Return the view of all rows of a table."""
        source = occurrence.source
        key = (source.name, *source.columns)
        if key not in self._views:
            frames = ScanFrames(self._spark, self.connection.store)
            if source.data is not None:
                frame = frames.registered(source.data, source.exposed)
            else:
                query = self.connection.sql(f"SELECT * FROM {source.name}")
                rows = frames.frame(query.report.scan.occurrences[0]).toArrow()
                frame = self._spark.createDataFrame(_without_gaps(rows))
            frame.createOrReplaceTempView(f"w{len(self._views)}")
            self._views[key] = f"w{len(self._views)}"
        return self._views[key]

    def _wholly(self, made: Statement, wanted: pa.Table | None) -> tuple[str, str]:
        """Return what became of a statement as users run it, and how its rows differ."""
        world = self.world
        try:
            found = self.connection.sql(made.text + made.tail, made.parameters, engine="spark").arrow()
        except KartosqlError as e:
            if e.code == "not-portable":
                return "refused", ""
            if wanted is None or is_undetermined(world, made, wanted):
                return "invalid", ""
            return "failed", f"{made.text}{made.tail}\n{made.parameters} {world.settings}\n{e.code}: {e.message}"
        if wanted is None:
            return "invalid", ""
        if self._is_same(found, wanted, made) or is_undetermined(world, made, wanted):
            return "same", ""
        difference = differ(found, wanted, made)
        return "failed", f"{made.text}{made.tail}\n{made.parameters} {world.settings}\n{difference}"

    def _is_same(self, found: pa.Table, wanted: pa.Table, made: Statement) -> bool:
        if differ(found, wanted, made) is None:
            return True
        if made.limit is not None or found.num_rows != wanted.num_rows or found.schema.types != wanted.schema.types:
            return False
        # Sums of floats hang on the order of the rows.
        pairs = zip(unordered(rows_of(found)), unordered(rows_of(wanted)), strict=False)
        return all(same(a, b, 1e-9) for a, b in pairs)


@contextlib.contextmanager
def checker(seed: int, folder: str, spark: Any, whole: int = WHOLE) -> Iterator[SparkChecker]:
    """Check the statements of a store, which is made in a folder."""
    with regime(seed):
        found = SparkChecker(seed, folder, spark, whole)
        try:
            yield found
        finally:
            found.end()


def chosen(text: str) -> tuple[range, int]:
    """Return the stores and the number of statements of each that ``100-120x2500`` means."""
    stores, count = text.split("x")
    first, last = map(int, stores.split("-"))
    return range(first, last), int(count)


def main() -> int:
    """Ask many statements; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chosen", metavar="FIRST-LASTxSTATEMENTS")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the first statement of each store")
    given = parser.parse_args()
    from kartosql.engines.spark.session import session

    spark, total, failed = session(master="local[1]", memory="1g"), Counter[str](), 0
    seeds, count = chosen(given.chosen)
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder, checker(seed, folder, spark) as found:
            began = time.perf_counter()
            for number in range(given.start, count):
                if found.ask(number) == "failed":
                    print(found.failures[-1], end="\n\n", flush=True)
                    failed += 1
                if number % 100 == 99:
                    took = (time.perf_counter() - began) / sum(v for k, v in found.tally.items() if "users" not in k)
                    print(f"store {seed} to {number}: {dict(found.tally)}, {took:.2f} s each", flush=True)
            total += found.tally
        print(f"after store {seed}: {dict(total)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
