"""VERIFY: one query answered in several ways that have to agree."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, LimitError, StoreError
from kartosql.insight import independent
from kartosql.insight.inspect import Session
from kartosql.insight.multisets import difference, digest
from kartosql.plan.reader import may_tell_time
from kartosql.query import SelectQuery
from kartosql.sql import Select, parse
from kartosql.sql.statements import Verify
from kartosql.sql.undetermined import undetermined
from kartosql.tables.names import Tables
from kartosql.tables.table import arrow_table
from kartosql.text import markup
from kartosql.text.grid import grid, one_line
from kartosql.text.sizes import human_bytes, human_seconds
from kartosql.text.version import VERSION

ATTEMPTS = 3
# What an engine says that is not asked: it is no answer, and no fault.
NOT_ASKED = frozenset({"not-portable", "missing-extra", "invalid-setting", "not-supported", "byte-budget"})
STOPPED = ("interrupted", "connection-closed")
_HEAD = ("answered by", "rows", "digest", "files", "bytes", "time", "verdict")


@dataclass(frozen=True)
class Answer:
    """One of the answers: ``verdict`` is reference, equal, equal but for rounding, different, failed or not asked.

    ``digest`` stands for the rows, whatever their order; ``note`` says more.
    """

    by: str
    verdict: str
    rows: int | None = None
    digest: str | None = None
    files: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Certificate:
    """What several answers to one query have in common.

    ``verdict`` is verified, different, or undecided: what differs may do so, as the query does
    not determine its answer, or the data changed meanwhile.
    """

    sql: str
    store: str
    time: str
    version: str
    tables: tuple[tuple[str, int], ...]  # names and numbers of files
    answers: tuple[Answer, ...]
    verdict: str
    because: str | None = None

    @property
    def is_failed(self) -> bool:
        """Whether answers differ that must not."""
        return self.verdict == "different"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON-able dictionary."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        answers = [{f.name: getattr(a, f.name) for f in fields(a)} for a in self.answers]
        return {**found, "tables": [{"table": n, "files": c} for n, c in self.tables], "answers": answers}

    def table(self) -> pa.Table:
        """Return one row per answer."""
        types = {"rows": pa.int64(), "files": pa.int64(), "bytes": pa.int64(), "seconds": pa.float64()}
        columns = {f.name: [getattr(a, f.name) for a in self.answers] for f in fields(Answer)}
        return pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})

    def _rows(self) -> list[list[str]]:
        return [
            [
                a.by,
                "" if a.rows is None else f"{a.rows:,}",
                "" if a.digest is None else a.digest[:16],
                "" if a.files is None else f"{a.files:,}",
                "" if a.bytes is None else human_bytes(a.bytes),
                "" if a.seconds is None else human_seconds(a.seconds),
                a.verdict,
            ]
            for a in self.answers
        ]

    def _facts(self) -> list[tuple[str, str]]:
        tables = ", ".join(f"{name} ({count:,} {'file' if count == 1 else 'files'})" for name, count in self.tables)
        made = f"{self.time} by kartosql {self.version}"
        return [("query", self.sql), ("store", self.store), ("tables", tables or "none"), ("made", made)]

    def __str__(self) -> str:
        lines = [f"{self.verdict.upper()}{': ' + one_line(self.because, 300) if self.because else ''}"]
        lines += [f"  {name + ':':<8}{one_line(text, 300)}" for name, text in self._facts()]
        lines += grid(_HEAD, self._rows(), right=(1, 3, 4, 5))
        lines += [f"  {a.by}: {one_line(a.note, 400)}" for a in self.answers if a.note]
        return "\n".join(lines)

    def html(self) -> str:
        """Return the certificate as a piece of HTML."""
        facts = [(markup.text(name), markup.text(text)) for name, text in self._facts()]
        rows = [[markup.text(cell) for cell in row] for row in self._rows()]
        notes = [f"<li>{markup.text(f'{a.by}: {a.note}')}</li>" for a in self.answers if a.note]
        verdict = f"<p><b>{markup.text(self.verdict.upper())}</b> {markup.text(self.because or '')}</p>"
        listed = "<ul>" + "".join(notes) + "</ul>" if notes else ""
        return markup.fragment(
            verdict, markup.table(("", ""), facts), markup.table(_HEAD, rows, right=(1, 3, 4, 5)), listed
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html()


def verify(session: Session, statement: Verify) -> Certificate:
    """Answer a query with and without pruning, over files read in another way, and by Spark; compare the rows.

    Rows are compared as multisets. Raises what the query itself raises.
    """
    found = None
    for _ in range(ATTEMPTS):
        found, changed = _attempt(session, statement)
        if not changed:
            break
    assert found is not None
    return found


def _attempt(session: Session, statement: Verify) -> tuple[Certificate, bool]:
    select = statement.query
    query = session.query(select, on="duckdb")
    started = time.perf_counter()
    reference = query.arrow()
    sources = query.sources
    first = _answer("duckdb, pruned", "reference", reference, query, time.perf_counter() - started)
    answers = [first]

    def ask(by: str, make: Callable[[], tuple[pa.Table, SelectQuery | None]]) -> None:
        answers.append(_compared(by, make, reference))

    ask("duckdb, all files", lambda: _run(session.query(select, on="duckdb", pruned=False)))
    ask("duckdb, files read in another way", lambda: (_independent(session, query), None))
    if statement.engine != "duckdb":
        ask("spark", lambda: _run(session.query(select, on="spark")))
    now = session.query(select, on="duckdb").sources
    changed = any(a is not b for a, b in zip(sources, now, strict=True) if a.data is None)
    verdict, because = _verdict(answers, select, changed)
    made = Certificate(
        sql=select.text,
        store=str(session.main.url),
        time=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        version=VERSION,
        tables=tuple((s.name, sum(len(p.table.files) for p in s.parts)) for s in sources),
        answers=tuple(answers),
        verdict=verdict,
        because=because,
    )
    return made, changed


def _run(query: SelectQuery) -> tuple[pa.Table, SelectQuery]:
    return query.arrow(), query


def _independent(session: Session, query: SelectQuery) -> pa.Table:
    """Answer a query over tables that were read without the library's reader."""

    def run(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        statement = parse(sql)
        assert isinstance(statement, Select)
        registered = {name: arrow_table(name, table) for name, table in tables.items()}
        known = Tables(session.tables().snapshot, registered)
        return SelectQuery(statement, known, session.runtime, session.settings).arrow()

    read: dict[int, pa.Table] = {}
    for source in query.sources:
        if id(source) not in read:
            given = source.data is not None
            read[id(source)] = source.data if given else independent.read(session.main, source, run)
    return query.answer_over([read[id(source)] for source in query.sources])


def _compared(by: str, make: Callable[[], tuple[pa.Table, SelectQuery | None]], reference: pa.Table) -> Answer:
    started = time.perf_counter()
    try:
        table, query = make()
    except independent.CannotRead as e:
        return Answer(by, "not asked", note=str(e))
    except KartosqlError as e:
        if e.code in STOPPED:
            raise
        # What the machine or a store refuses says nothing about the answer.
        is_asked = e.code not in NOT_ASKED and not isinstance(e, LimitError | StoreError)
        return Answer(by, "failed" if is_asked else "not asked", note=f"{e.code}: {e.message}")
    seconds = time.perf_counter() - started
    how = difference(table, reference)
    verdict = "equal" if how is None else "equal but for rounding" if how == "" else "different"
    return _answer(by, verdict, table, query, seconds, how or None)


def _answer(
    by: str, verdict: str, table: pa.Table, query: SelectQuery | None, seconds: float, note: str | None = None
) -> Answer:
    stats = (query.stats if query is not None else None) or {}
    files, size = stats.get("files_read"), stats.get("bytes_selected")
    return Answer(by, verdict, table.num_rows, digest(table), files, size, seconds, note)


def _verdict(answers: list[Answer], select: Select, changed: bool) -> tuple[str, str | None]:
    others = answers[1:]
    wrong = [a for a in others if a.verdict in ("different", "failed")]
    if changed:
        return "undecided", "the data changed meanwhile"
    if not wrong:
        equal = sum(a.verdict.startswith("equal") for a in others)
        return ("verified", None) if equal else ("undecided", "no other way to answer it was open")
    reason = undetermined(select.tree)
    if reason is None and may_tell_time(select.text):
        reason = "it asks the clock"
    if reason is not None and all(a.verdict == "different" for a in wrong):
        return "undecided", f"the query does not determine its answer: {reason}"
    return "different", f"{', '.join(a.by for a in wrong)}; please report it with this certificate"
