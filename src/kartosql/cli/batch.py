"""Running statements one after another."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from kartosql.cli import resources
from kartosql.cli.config import open_store, resolve
from kartosql.cli.options import Options, StatementSource
from kartosql.cli.output import interruptible, opened, say
from kartosql.connection import Connection
from kartosql.errors import ExecutionError, KartosqlError, SqlError, UsageError
from kartosql.query import SelectQuery
from kartosql.render.formats import BINARY_FORMATS, Style, format_of, write_folder, write_stream
from kartosql.result import Query, ReportQuery
from kartosql.sql import Attach, Describe, Detach, Inspect, Reset, Select, Set, Statement, parse, split_statements
from kartosql.sql.statements import Write
from kartosql.sql.tree import placeholders
from kartosql.text.report import Page

if TYPE_CHECKING:
    from kartosql.cli.remember import Remembered


_MARK = re.compile(r"^\s*[.\\]", re.MULTILINE)  # what commands of the shell begin with, and statements hardly ever
STDIN = "stdin"  # names the rows that are piped in
SILENT = (Set, Reset, Attach, Detach)  # statements without rows
SEPARATED = ("csv", "tsv", "unaligned")


@dataclass(frozen=True)
class _Step:
    """One statement to run, with its place in the script it was taken from."""

    text: str
    script: str
    start: int
    place: str


def run_batch(options: Options) -> None:
    """Run the statements of a command line; raises KartosqlError, and what stdout raises."""
    if not options.url:
        raise UsageError("The store is missing.", hint="kartosql URL -c SQL; kartosql demo shows a sample cube.")
    if not options.sources and sys.stdin is None:
        raise UsageError("There is no stdin to read statements from.", hint='kartosql URL -c "SHOW TABLES"')
    if sys.stdout is None and options.output in (None, "-"):
        raise UsageError("There is no stdout to write rows to.", hint="Write them with -o FILE.")
    sources = options.sources or [StatementSource("-", "-")]
    page = _page_of_reports(options)
    options = replace(options, format=requested_format(options))
    scripts = [_script(source) for source in sources]
    if any(_MARK.search(script) for script in scripts):
        from kartosql.cli.repl.registry import has_commands
        from kartosql.cli.repl.start import run_scripts

        if any(map(has_commands, scripts)):
            run_scripts(scripts, options)
            return
    steps = [step for source, script in zip(sources, scripts, strict=True) for step in _steps(source, script)]
    if not steps:
        raise UsageError("There is no statement.", code="empty-statement", hint="Give one with -c SQL.")
    with open_store(resolve(options.url), options) as connection:
        several = len(steps) > 1
        queries = _check(steps, options) if several else 1
        if _reads_stdin(steps, sources) and STDIN not in connection.datasets():
            _register_stdin(connection)
        elif not several:
            connection.expect_one_statement()
        with nullcontext(io.BytesIO()) if options.partition_by else output_of(connection, options) as out:
            runner = _Runner(connection, options, out, several, queries > 0, page)
            for step in steps:
                with _placed(step, several):
                    runner.run(step)


def is_terminal(options: Options) -> bool:
    """Return whether a person looks at the rows."""
    return options.output is None and sys.stdout.isatty()


def _page_of_reports(options: Options) -> Page | None:
    """Return the page for reports as text, None for one in the format that is asked for."""
    if options.format != "box" and (options.format or options.output or options.separator is not None):
        return None
    if not is_terminal(options):
        return Page()
    from kartosql.cli.repl.screen import Screen, chosen

    screen = Screen()
    screen.theme = chosen("auto", is_terminal=True)
    return screen.page


def requested_style(options: Options) -> Style:
    """Return how a command line asks for rows to look."""
    return Style(options.header, is_terminal(options), options.null, options.separator)


def requested_format(options: Options) -> str:
    """Return the format that a command line asks for; raises ``invalid-argument`` for options that do not fit it."""
    if options.partition_by:
        if options.output is None:
            raise UsageError("--partition-by writes a folder.", hint="Name it with -o FOLDER.")
        return options.format or "parquet"
    if options.format is None and options.output is not None:
        found = format_of(options.output)
    else:
        found = options.format or ("box" if is_terminal(options) and options.separator is None else "csv")
    if options.separator is not None and (found not in SEPARATED or not options.separator):
        raise UsageError(f"--separator is a text for {', '.join(SEPARATED)}, not for {found}.")
    return found


def output_of(connection: Connection, options: Options) -> AbstractContextManager[BinaryIO]:
    """Open what the rows are written to."""
    return opened(options.output, _output_options(connection, options))


def _output_options(connection: Connection, options: Options) -> Mapping[str, Any] | None:
    """Return the storage options for the output: those of the store, where it is one of the same kind."""
    is_alike = options.output is not None and _scheme(options.output) == _scheme(connection.store.url)
    return connection._session.storage_options if is_alike else None


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _reads_stdin(steps: list[_Step], sources: list[StatementSource]) -> bool:
    """Return whether a statement names the rows of stdin, which no statement comes from."""
    is_free = sys.stdin is not None and not sys.stdin.isatty() and all(s.kind != "-" for s in sources)
    return is_free and any(re.search(rf"\b{STDIN}\b", step.text, re.IGNORECASE) for step in steps)


def _register_stdin(connection: Connection) -> None:
    from kartosql.formats.any_file import reader_of
    from kartosql.write.inputs import reading

    with reading(STDIN):
        connection.register(STDIN, reader_of(sys.stdin.buffer))


# -- from text to statements -------------------------------------------------------------------


def _script(source: StatementSource) -> str:
    if source.kind == "-c":
        return source.value
    return resources.script(None if source.kind == "-" else source.value, f"the statements of {source.value!r}")


def _steps(source: StatementSource, script: str) -> Iterator[_Step]:
    name = {"-c": "-c", "-": "stdin"}.get(source.kind, source.value)
    try:
        texts = split_statements(script)
    except SqlError as e:
        e.sql = e.sql or script
        raise
    at = 0
    for number, text in enumerate(texts, 1):
        at = script.index(text, at)
        yield _Step(text, script, at, f"{name}, statement {number}")
        at += len(text)


@contextmanager
def _placed(step: _Step, several: bool) -> Iterator[None]:
    """Give errors of the block the place of their statement in the script."""
    try:
        yield
    except KartosqlError as error:
        at = -1 if error.sql is None else step.script.find(error.sql, step.start)
        if at >= 0:
            for e in (error, *getattr(error, "errors", ())):
                e.sql = step.script
                e.span = (e.span[0] + at, e.span[1] + at) if e.span else None
        if several:
            error.add_note(f"at: {step.place}")
        raise


# -- running -----------------------------------------------------------------------------------


def _check(steps: list[_Step], options: Options) -> int:
    """Find what is wrong with the command line as a whole before anything runs; returns how many statements ask."""
    statements = []
    for step in steps:
        try:
            statements.append(parse(step.text))
        except SqlError:
            return 0  # what stands before it runs, then it is reported
    queries = sum(not isinstance(s, (*SILENT, Write)) for s in statements)
    results = queries or sum(isinstance(s, Write) for s in statements)
    if results > 1 and (options.format in BINARY_FORMATS or options.partition_by):
        raise UsageError(f"{options.format} holds one result, but {results} statements have one.")
    unused = set(options.parameters)
    for statement in statements:
        unused -= parameter_names(statement, unused)
    if unused:
        raise UsageError(f"No statement has a parameter {sorted(unused)[0]!r}.", code="invalid-parameters")
    return queries


class _Runner:
    """Runs statements and writes their rows, and reports on a ``page``, if they are no rows.

    With ``queries`` for a file it tells on stderr what others wrote.
    """

    def __init__(
        self, connection: Connection, options: Options, out: BinaryIO, several: bool, queries: bool, page: Page | None
    ) -> None:
        self._connection = connection
        self._options = options
        self._out = out
        self._several = several
        self._page = page
        self._tells_writes = queries and several and (options.output is not None or options.format in BINARY_FORMATS)
        self._style = requested_style(options)
        self._results = 0

    def run(self, step: _Step) -> None:
        """Run one statement to its end, or until Ctrl-C."""
        interruptible(lambda: self._work(step.text), self._connection.interrupt)

    def _work(self, text: str) -> None:
        statement, given = parse(text), self._options.parameters
        parameters = parameters_of(statement, given) if self._several else positional_or_named(given)
        query = self._connection.sql(text, parameters)
        if isinstance(statement, SILENT):
            return
        if isinstance(statement, Write) and self._tells_writes:
            for row in query.arrow().to_pylist():
                say(" · ".join(f"{name} {value}" for name, value in row.items() if value is not None))
            return
        out, format_ = self._out, self._options.format or ""
        if self._results and format_ == "markdown":
            out.write(b"\n")
        self._results += 1
        lines = query._laid_out(self._page) if isinstance(query, ReportQuery) and self._page is not None else None
        if lines is not None:
            out.write("".join(line + "\n" for line in lines).encode())
            rows = len(lines)
        else:
            reader = query.reader()
            remembered = self._remembered(query, text)
            if self._options.partition_by:
                folder, columns = self._options.output or "", self._options.partition_by
                rows = write_folder(reader, folder, format_, columns, _output_options(self._connection, self._options))
            else:
                rows = write_stream(reader, format_, out, self._style)
            if remembered is not None:
                remembered.keep(rows)
        out.flush()
        if isinstance(query, ReportQuery) and getattr(query.content, "is_failed", False):
            raise ExecutionError("Answers that must not differ do.", code="answers-differ", sql=text)
        if self._options.stats:
            say(json.dumps(query.stats or {"rows": rows}))

    def _remembered(self, query: Query, text: str) -> Remembered | None:
        session = self._connection._session
        if self._several or not isinstance(query, SelectQuery) or session.user_cache.folder is None:
            return None
        from kartosql.cli.remember import Remembered

        return Remembered(session, query, text)


def parameters_of(statement: Statement, given: dict[str, Any]) -> Any:
    """Return those of the given parameters that a statement has, as ``Connection.sql`` takes them."""
    used = parameter_names(statement, set(given))
    return positional_or_named({name: value for name, value in given.items() if name in used})


def positional_or_named(parameters: dict[str, Any]) -> Any:
    """Return parameters as ``Connection.sql`` takes them: a list if their names are 1, 2 and so on."""
    numbers = [str(n) for n in range(1, len(parameters) + 1)]
    return [parameters[n] for n in numbers] if numbers and set(parameters) == set(numbers) else parameters or None


def parameter_names(statement: Statement, given: set[str]) -> set[str]:
    """Return the parameters that a statement has; of one that cannot be planned, all that are given."""
    if isinstance(statement, Inspect | Describe | Write):
        statement = getattr(statement, "query", None) or statement
    if isinstance(statement, Attach):
        return {statement.parameter} if statement.parameter else set()
    if not isinstance(statement, Select):
        return set()
    if statement.tree is None:
        return given
    names = [name for name, _ in placeholders(statement.tree)]
    return {n for n in names if n} | {str(at) for at in range(1, names.count(None) + 1)}
