"""The commands of the shell, by group."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any

import pyarrow as pa

from kartosql import __version__
from kartosql.cli import config, resources
from kartosql.cli.cube import QUERY, info_of, names_in
from kartosql.cli.options import Parser, pairs, value
from kartosql.cli.repl.known import load
from kartosql.cli.repl.options import OPTIONS
from kartosql.cli.repl.registry import COMMANDS, GROUPS, Run, arguments, command, find
from kartosql.cli.repl.shell import Cancelled, Result, Shell
from kartosql.demo import build_flights
from kartosql.errors import StoreError, UsageError
from kartosql.opening import connect
from kartosql.render import tables
from kartosql.render.formats import Style, write_stream
from kartosql.render.values import is_number, texts
from kartosql.settings import SETTINGS
from kartosql.sql import Describe, parse
from kartosql.store import Store
from kartosql.tables.names import quote_if_needed
from kartosql.text.constants import literal
from kartosql.text.report import Page

MAX_BARS = 200
MAX_BYTES = 5_000_000
MAX_SYNOPSIS = 34
EXAMPLES = "sql_examples"
_NAME = re.compile(r"[\w][\w.-]{0,99}")
_looks, _results, _statements, _plans, _cubes, _session = (partial(command, group=group) for group in GROUPS)


_file_name = partial(arguments, most=1, least=1, missing="Name a file.")


def _option(name: str, *aliases: str, declare: Callable[..., Callable[[Run], Run]], **declaration: Any) -> None:
    """Declare a command that sets the option or setting of its name, if a value is given, and prints it."""

    @declare(name, *aliases, takes=(name,), **declaration)
    def run(shell: Shell, text: str) -> None:
        values = shell.connection.settings if name in SETTINGS else shell.options
        if text and name in SETTINGS:
            values.set(name, text)
        elif text:
            shell.set_option(name, text)
        shell.screen.say(f"{name}: {values[name]}", "note")


# -- what the store holds ----------------------------------------------------------------------------

_looks("tables", r"\dt", r"\l", about="every table that a statement can name")(lambda shell, text: "SHOW TABLES")
_looks("cubes", r"\dc", about="cubes with their dimensions, partitions and indices")(lambda shell, text: "SHOW CUBES")
_looks("datasets", r"\dd", usage="[CUBE]", about="datasets, or those of a cube", takes=("cube",))(
    lambda shell, text: f"SHOW DATASETS FROM {text}" if text else "SHOW DATASETS"
)
_looks("schema", r"\d", usage="[TABLE]", about="columns of a table, with type, role and index", takes=("table",))(
    lambda shell, text: f"DESCRIBE {_one_table(shell, text)}"
)


@_looks("columns", r"\dC", usage="[TEXT]", about="columns of all tables whose name has a text in it")
def _columns(shell: Shell, text: str) -> None:
    rows = [
        {"column": column.name, "type": column.type, "role": column.role, "table": table.name}
        for table in load(shell.connection).tables
        for column in table.columns
        if text.lower() in column.name.lower()
    ]
    lines = [f"No column has {text!r} in its name."]
    if rows:
        lines = tables.readable(pa.Table.from_pylist(rows), ["varchar"] * 4, shell.options["mode"], shell.look)
    shell.screen.show(lines, page=True)


def _of_table(shown: str, shell: Shell, text: str) -> str:
    return f"SHOW {shown} FROM {_one_table(shell, text)}"


for _name, _alias, _about in (
    ("partitions", r"\dp", "partitions of a table and their files"),
    ("files", r"\df", "files of a table and their sizes"),
    ("indexes", r"\di", "indices of a table"),
    ("stats", r"\ds", "partitions, files, rows and bytes of a table"),
):
    _looks(_name, _alias, usage="[TABLE]", about=_about, takes=("table",))(partial(_of_table, _name.upper()))


@_looks(
    "coverage",
    usage="[CUBE [COLUMN [COLUMN]]]",
    about="which cells of a cube there are, as a map",
    takes=("cube", "column"),
)
def _coverage(shell: Shell, text: str) -> str:
    cube, *columns = text.split() or [""]
    by = f" BY {', '.join(columns)}" if columns else ""
    return f"SHOW COVERAGE OF {_one_table(shell, cube, cube=True)}{by}"


def _one_table(shell: Shell, given: str, *, cube: bool = False) -> str:
    """Return the table of a command's argument, or the only cube of the store; raises ``invalid-argument``."""
    if given:
        return given
    found = [shell.cube] if shell.cube else list(shell.connection.cubes())
    if len(found) == 1:
        return quote_if_needed(found[0])
    what = "cube" if cube else "table"
    raise UsageError(f"Name a {what}.", hint=f".{what}s lists what the store holds.")


# -- results -----------------------------------------------------------------------------------------

_option("mode", r"\f", declare=_results, usage="[FORMAT]", about="format of results; without one, which it is")


@_results("once", r"\o", usage="FILE", about="write the next result to a file", takes=("file",))
def _once(shell: Shell, text: str) -> None:
    shell.target.once(_file_name(text, hint=".once result.parquet")[0])


@_results(
    "output", usage="[FILE]", about="write all results to a file; without one, to the screen again", takes=("file",)
)
def _output(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    shell.target.every(found[0] if found else None)
    shell.screen.say(f"Results go to {shell.target.path or 'the screen'}.", "note")


@_results("last", r"\g", usage="[FORMAT]", about="all rows of the last result", takes=("mode",))
def _last(shell: Shell, text: str) -> None:
    result = _last_of(shell)
    if result.kept < result.rows:
        shell.screen.say(f"The first {result.kept:,} of {result.rows:,} rows are kept; .once FILE gives all.", "hint")
    mode = text or shell.options["mode"]
    if mode in tables.READABLE:
        shell.show(result, every_row=True, mode=mode)
        return
    from io import BytesIO

    out = BytesIO()
    write_stream(result.table.to_reader(), mode, out, Style(terminal=True))
    shell.screen.show(out.getvalue().decode().rstrip("\n").split("\n"), page=True)


def _last_of(shell: Shell) -> Result:
    if shell.last is None or shell.last.schema is None:
        raise UsageError("There is no result yet.", code="no-result", hint="Run a statement first.")
    return shell.last


@_results("timing", r"\t", usage="[on|off]", about="the line below each result", takes=("timing",))
def _timing(shell: Shell, text: str) -> None:
    shell.options.set("timing", _switched(text) if text else not shell.options["timing"])
    shell.screen.say(f"timing: {shell.options.text_of('timing')}", "note")


def _switched(text: str) -> bool:
    try:
        found: bool = OPTIONS["timing"].parse(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither on nor off.") from None
    return found


_option("pager", declare=_results, usage="[auto|on|off]", about="pager for results that the screen is too low for")
_option("nullvalue", declare=_results, usage="[TEXT]", about="what is shown for NULL")


@_results("print", usage="[TEXT]", about="print a text")
def _print(shell: Shell, text: str) -> None:
    shell.screen.say(text)


@_results("chart", usage="[LABEL [VALUE]]", about="the last result as bars", takes=("result column", "result column"))
def _chart(shell: Shell, text: str) -> None:
    result = _last_of(shell)
    table = result.table.slice(0, MAX_BARS)
    label, value = _chart_columns(result, arguments(text, 2))
    numbers = [float(v) if v is not None else float("nan") for v in table.column(value).to_pylist()]
    shown = [text for chunk in table.column(value).chunks for text in texts(chunk)]
    labels = [text for chunk in table.column(label).chunks for text in texts(chunk)]
    lines = tables.bars(
        [tables.NULL if t is None else t[:40] for t in labels],
        numbers,
        [tables.NULL if t is None else tables.grouped(t) for t in shown],
        shell.look,
    )
    if result.rows > table.num_rows:
        lines.append(shell.screen.paint("hint", f"{table.num_rows:,} of {result.rows:,} shown"))
    shell.screen.show(lines)


def _chart_columns(result: Result, given: list[str]) -> tuple[int, int]:
    """Return the columns of labels and of values: those given, else the first column and the last number."""
    assert result.schema is not None
    names = list(result.schema.names)
    for name in given:
        if name not in names:
            raise UsageError(f"The last result has no column {name!r}.", hint=f"It has {', '.join(names)}.")
    numbers = [i for i, type_ in enumerate(result.schema.types) if is_number(type_)]
    if len(given) > 1 and names.index(given[1]) not in numbers:
        raise UsageError(f"{given[1]!r} holds no numbers.")
    if not numbers:
        raise UsageError("The last result has no column of numbers.")
    return names.index(given[0]) if given else 0, names.index(given[1]) if len(given) > 1 else numbers[-1]


# -- statements: kept, edited, repeated --------------------------------------------------------------


@_statements("read", r"\i", usage="FILE", about="run the statements and commands of a file", takes=("file",))
def _read(shell: Shell, text: str) -> None:
    path = _file_name(text, hint=".read report.sql")[0]
    script = _script(os.path.expanduser(path))
    depth = shell.read_depth
    if depth >= 10:
        raise UsageError(f"{path}: files that read files, ten deep.", hint="A file reads itself.")
    shell.read_depth = depth + 1
    try:
        if not script.rstrip().endswith(";") and script.strip():
            script += "\n;"
        shell.execute(script)
    finally:
        shell.read_depth = depth


def _script(path: str) -> str:
    return resources.script(path, repr(path), MAX_BYTES)


def saved() -> list[str]:
    """Return the names of saved statements, sorted."""
    with contextlib.suppress(OSError):
        return sorted(name.removesuffix(".sql") for name in os.listdir(_folder()) if name.endswith(".sql"))
    return []


def _folder() -> str:
    return os.path.join(config.folder(), "queries")


def _place(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a statement.", hint="Letters, digits, _, - and dots.")
    return os.path.join(_folder(), f"{name}.sql")


def _statement(shell: Shell, given: str, hint: str) -> str:
    """Return the statement of a command: the one given, else the last one."""
    if not (found := given or shell.statement):
        raise UsageError("There is no statement yet.", hint=hint)
    return found


@_statements(
    *("save", r"\fs"),
    usage="NAME [SQL]",
    about="keep the last statement, or the one given, under a name",
    takes=("saved", "sql"),
)
def _save(shell: Shell, text: str) -> None:
    name, _, given = text.partition(" ")
    statement = _statement(shell, given.strip(), ".save NAME [SQL]")
    if not name:
        raise UsageError("Name the statement.", hint=".save NAME [SQL]")
    name = name.rstrip(";")
    place = _place(name)
    try:
        os.makedirs(_folder(), mode=0o700, exist_ok=True)
        with open(place, "w", encoding="utf-8") as file:
            file.write(statement.rstrip().rstrip(";") + ";\n")
    except OSError as e:
        raise StoreError(f"Cannot write {place!r}: {e.strerror or e}") from None
    shell.screen.say(f"Saved as {name}; .run {name} runs it.", "note")


@_statements(
    *("run", r"\fr"),
    usage="[NAME [K=V ...]]",
    about="run a saved statement, with values of its parameters; without a name, list them",
    takes=("saved",),
)
def _run(shell: Shell, text: str) -> None:
    found = arguments(text)
    if not found:
        for name in saved():
            shell.screen.say(f"{name}: {' '.join(_script(_place(name)).split())}")
        if not saved():
            shell.screen.say("No statement is saved; .save NAME keeps the last one.", "note")
        return
    if not os.path.exists(_place(found[0])):
        raise UsageError(
            f"No statement {found[0]!r} is saved.", hint=f"Saved: {', '.join(saved())}." if saved() else ".save NAME"
        )
    given = {k: value(v) for k, v in pairs(".run", found[1:]).items()}
    statement = _script(_place(found[0]))
    shell.statement = statement.strip()
    shell.run_sql(statement, parameters={**shell.parameters, **given})


@_statements("forget", usage="NAME", about="delete a saved statement", takes=("saved",))
def _forget(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    if not found or found[0] not in saved():
        raise UsageError("Name a saved statement.", hint=".run lists them.")
    try:
        os.unlink(_place(found[0]))
    except OSError as e:
        raise StoreError(f"Cannot delete {found[0]!r}: {e.strerror or e}") from None
    shell.screen.say(f"Deleted {found[0]}.", "note")


@_statements("param", usage="[NAME [VALUE]]", about="value of the parameter $NAME or :NAME; without a value, none")
def _param(shell: Shell, text: str) -> None:
    found = arguments(text, 2)
    if len(found) == 2:
        shell.parameters[found[0]] = value(found[1])
    elif found:
        shell.parameters.pop(found[0], None)
    for name, given in shell.parameters.items():
        shell.screen.say(f"{name} = {given!r}")


@_statements(
    "edit", r"\e", usage="[SQL]", about="write the next statement, or the last one again, in an editor", takes=("sql",)
)
def _edit(shell: Shell, text: str) -> None:
    editor = shell.options["editor"] or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.NamedTemporaryFile("w", suffix=".sql", prefix="kartosql-", delete=False, encoding="utf-8") as file:
        file.write(text or shell.statement or "")
    try:
        if subprocess.run([*shlex.split(editor), file.name], check=False).returncode:
            raise UsageError(f"The editor {editor!r} failed; nothing is changed.")
        shell.draft = _script(file.name).rstrip("\n")
    except (OSError, ValueError) as e:
        raise UsageError(f"Cannot run the editor {editor!r}: {getattr(e, 'strerror', None) or e}.") from None
    finally:
        os.unlink(file.name)


@_statements(
    "watch",
    usage="[SECONDS] [SQL]",
    about="run a statement, or the last one, again and again until Ctrl-C",
    takes=("", "sql"),
)
def _watch(shell: Shell, text: str) -> None:
    first, _, rest = text.partition(" ")
    try:
        seconds, sql = max(0.1, float(first)), rest.strip()
    except ValueError:
        seconds, sql = 2.0, text
    statement = _statement(shell, sql, ".watch 5 SELECT count(*) FROM t")
    try:
        while True:
            shell.screen.say(f"-- {time.strftime('%H:%M:%S')}, every {seconds:g} s, Ctrl-C ends", "note")
            shell.run_sql(statement, quiet=True)
            time.sleep(seconds)
    except (KeyboardInterrupt, Cancelled):
        shell.screen.say("No longer watched.", "note")


# -- plans -------------------------------------------------------------------------------------------


def _before_select(before: str, shell: Shell, text: str) -> str:
    return f"{before} {_statement(shell, text, '.explain SELECT ...')}"


_of_select = partial(_plans, usage="[SQL]", takes=("sql",), quiet=True)
for _name, _aliases, _about, _before in (
    ("explain", (r"\x",), "what a SELECT, or the last one, reads and why", "EXPLAIN"),
    ("analyze", (), "run a SELECT, or the last one, and tell what it really read", "EXPLAIN ANALYZE"),
    ("cost", (), "what a SELECT, or the last one, would cost", "EXPLAIN COST"),
    ("advise", (), "why a SELECT, or the last one, is slow, and what helps", "ADVISE"),
):
    _of_select(_name, *_aliases, about=_about)(partial(_before_select, _before))


@_plans("why", usage="FILE", about="why the last SELECT reads a file or does not", takes=("data file",), quiet=True)
def _why(shell: Shell, text: str) -> str:
    name = _file_name(text, hint=".files lists them; the end of a name will do.")[0]
    return _before_select(f"EXPLAIN WHY {literal(name)}", shell, "")


_of_select("verify", about="answer a SELECT, or the last one, in several ways")(partial(_before_select, "VERIFY"))


# -- cubes -------------------------------------------------------------------------------------------


@_cubes("info", usage="[CUBE]", about="a cube: its columns, and files and metadata of its datasets", takes=("cube",))
def _info(shell: Shell, text: str) -> None:
    target = _named(_one_table(shell, text, cube=True))
    for line in info_of(shell.connection, target):
        shell.screen.say(line, "name" if line == "Infos" or line.startswith("Dataset: ") else "")


def _named(name: str) -> tuple[str, ...]:
    statement = parse(f"DESCRIBE {name}")
    if not isinstance(statement, Describe) or statement.target is None:
        raise UsageError(f"{name!r} is no name of a cube.")
    return statement.target


_USAGE = '[CUBE] [--where "A > 1 & B = 2"] [--payload A,B] [--dimensions A,B] [--datasets A,B]'


@_cubes("query", usage=_USAGE, about="rows of a cube as query_cube gives them", takes=("cube", "column"))
def _query(shell: Shell, text: str) -> None:
    parser = Parser(prog=".query", add_help=False, allow_abbrev=False)
    parser.hint = _USAGE
    parser.add_argument("cube", nargs="?", default="")
    for option, declared in {**QUERY, "--datasets": {"type": names_in}}.items():
        parser.add_argument(option, **declared)
    found = vars(parser.parse_args(arguments(text)))
    query: Any = partial(shell.connection.query_cube, _one_table(shell, found.pop("cube"), cube=True), **found)
    shell.run_query(query)


@_cubes("copy", usage="CUBE URL [NAME]", about="copy a cube to another store", takes=("cube", "store"))
def _copy(shell: Shell, text: str) -> str:
    cube, url, *name = arguments(text, 3, least=2, missing="Name a cube and a store.", hint=".copy CUBE URL [NAME]")
    return f"COPY CUBE {cube} TO {literal(url)}{f' AS {name[0]}' if name else ''}"


@_cubes("delete", usage="CUBE", about="delete a cube with all its datasets; asks first", takes=("cube",))
def _delete(shell: Shell, text: str) -> str | None:
    if not text:
        raise UsageError("Name a cube.", hint=".delete CUBE")
    source = shell.connection.tables().find(_named(text))
    if not shell.connection.read_only:
        listed = ", ".join(part.name for part in source.parts)
        if not shell.confirm(f"Delete the cube {source.name} with its datasets {listed}? "):
            shell.screen.say("Nothing is deleted.", "note")
            return None
    return f"DROP CUBE {text}"


@_cubes("cleanup", usage="TABLE [--dry-run]", about="remove files that belong to nothing any more", takes=("table",))
def _cleanup(shell: Shell, text: str) -> str:
    name = text.removesuffix("--dry-run")
    return f"CLEANUP {_one_table(shell, name.strip())}{' DRY RUN' if name != text else ''}"


@_cubes(
    "index", usage="TABLE COLUMN [COLUMN ...]", about="build indices for columns of a table", takes=("table", "column")
)
def _index(shell: Shell, text: str) -> str:
    missing = "Name a table and at least one column."
    table, *columns = arguments(text, least=2, missing=missing, hint=".index TABLE COLUMN")
    return f"CREATE INDEX ON {table} ({', '.join(map(quote_if_needed, columns))})"


# -- session: store, settings, options, help ---------------------------------------------------------


_option("engine", declare=_session, usage="[NAME]", about="engine of statements")


@_session("store", about="the store, and how often it was asked")
def _store(shell: Shell, text: str) -> None:
    store = shell.connection.store
    counts = store.counter.to_dict()
    shell.screen.say(f"store: {store.url}")
    shell.screen.say(f"writes: {'no, .write on allows them' if shell.connection.read_only else 'yes'}")
    shell.screen.say("calls: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))


@_session("write", usage="[on|off]", about="whether statements may write, as --write says", takes=("timing",))
def _write(shell: Shell, text: str) -> None:
    if text:
        shell.connection._session.read_only = not _switched(text)
    shell.screen.say(f"write: {'off' if shell.connection.read_only else 'on'}", "note")


@_session("cd", usage="[FOLDER]", about="go to a folder, from which files are named", takes=("store",))
def _cd(shell: Shell, text: str) -> None:
    try:
        os.chdir(os.path.expanduser(arguments(text, 1)[0] if text else "~"))
    except (OSError, ValueError) as e:
        raise UsageError(f"Cannot go to {text!r}: {getattr(e, 'strerror', None) or e}.") from None
    shell.screen.say(os.getcwd(), "note")


@_session("shell", r"\!", usage="COMMAND", about="run a command of the system", takes=("file",))
def _system(shell: Shell, text: str) -> None:
    if not text:
        raise UsageError("Name a command.", hint=".shell ls")
    if code := subprocess.run(text, shell=True, check=False).returncode:
        shell.screen.say(f"It ended with {code}.", "hint")


@_session("open", r"\c", usage="URL|PROFILE", about="open another store", takes=("store",))
def _open(shell: Shell, text: str) -> None:
    missing = "Name a folder, a URL or a profile."
    found = arguments(text, 1, least=1, missing=missing, hint=".open s3://bucket/store")
    shell.open(os.path.expanduser(found[0]))
    shell.screen.say(f"store: {shell.connection.store.url}", "note")


@_session(
    *("attach", r"\a"),
    usage="[URL NAME [TYPE]]",
    about="attach a folder or another store under a name; without one, list what is attached",
    takes=("store", "", "attach type"),
)
def _attach(shell: Shell, text: str) -> str:
    from kartosql.sql.attach_parse import TYPES, type_of

    found = arguments(text, 3)
    if not found:
        return "SHOW ATTACHED"
    if len(found) < 2:
        raise UsageError("Name the table or schema, too.", hint=f".attach URL NAME [{'|'.join(TYPES)}]")
    url, name, type_ = [*found, type_of(found[0]) or "parquet"][:3]
    return f"ATTACH {literal(url)} AS {quote_if_needed(name)} (TYPE {quote_if_needed(type_)})"


@_session("detach", usage="NAME", about="let go of what is attached", takes=("table",))
def _detach(shell: Shell, text: str) -> str:
    if not text:
        raise UsageError("Name what is attached.", hint=".attach lists it.")
    return f"DETACH {text}"


@_session(
    "config",
    usage="[NAME [VALUE]|save]",
    about="options of the shell and settings; save writes the options to the config file",
    takes=("option", "value"),
)
def _config(shell: Shell, text: str) -> None:
    found = arguments(text, 2)
    say, options, settings = shell.screen.say, shell.options, shell.connection.settings

    def setting(name: str) -> str:
        return "not set" if settings[name] is None else str(settings[name])

    if found == ["save"]:
        changed = {n: options[n] for n, o in OPTIONS.items() if options[n] != o.default}
        try:
            say(f"Saved to {config.write_shell(changed)}.", "note")
        except OSError as e:
            raise StoreError(f"Cannot write {config.path()!r}: {e.strerror or e}") from None
        return
    if not found:
        say(f"config file: {config.path()}", "note")
        for name, option in OPTIONS.items():
            say(f"{name} = {options.text_of(name)}  -- {option.about}")
        for name in SETTINGS:
            say(f"{name} = {setting(name)}  -- {SETTINGS[name].about}")
        return
    in_sql = {name.lower(): name for name in SETTINGS if name.lower() not in OPTIONS}
    name = in_sql.get(found[0].lower(), "")
    if name:
        if len(found) == 2:
            settings.set(name, found[1])
        say(f"{name} = {setting(name)}")
        return
    name = options.find(found[0]).name
    if len(found) == 2:
        shell.set_option(name, found[1])
    say(f"{name} = {options.text_of(name)}")


_option("theme", declare=_session, usage="[NAME]", about="colours: auto, dark, light or none")
_option("keys", declare=_session, usage="[emacs|vi]", about="keys of the prompt")


@_session(
    "help", r"\?", r"\h", usage="[COMMAND|CODE]", about="commands, one of them, or an error code", takes=("command",)
)
def _help(shell: Shell, text: str) -> None:
    if not text:
        shell.screen.show(_help_lines(shell), page=True)
        return
    if text[0] not in ".\\" and text not in COMMANDS:
        section = resources.error_sections().get(text)
        if section:
            shell.screen.say(f"{text}\n{section}")
            return
    found = find(text if text[0] in ".\\" else f".{text}")
    shell.screen.say(found.synopsis, "command")
    shell.screen.say(f"  {found.about}")
    if found.aliases:
        shell.screen.say(f"  also: {', '.join(found.aliases)}", "note")


def _help_lines(shell: Shell) -> list[str]:
    first = f"kartosql {__version__}: statements end with a semicolon; Tab completes; Ctrl-C stops; Ctrl-D leaves."
    widest = max(len(c.synopsis) for c in COMMANDS.values() if len(c.synopsis) <= MAX_SYNOPSIS)
    page = shell.screen.page if shell.screen.is_terminal else Page()
    is_beside = page.columns is None or page.columns >= 2 * widest
    lines = page.text(first)
    for group in GROUPS:
        lines += ["", shell.screen.paint("name", group)]
        for found in COMMANDS.values():
            if found.group == group:
                aliases = f"  ({', '.join(found.aliases)})" if found.aliases else ""
                shown = found.synopsis if len(found.synopsis) <= widest else f".{found.name} ..."
                name = shell.screen.paint("command", shown.ljust(widest))
                told = page.text(f"{found.about}{aliases}", " " * (widest + 4) if is_beside else " " * 6)
                lines += [f"  {name}  {told[0].lstrip()}", *told[1:]] if is_beside else [f"  {name}".rstrip(), *told]
    return lines


@_session("quit", r"\q", about="leave the shell, as Ctrl-D does")
def _quit(shell: Shell, text: str) -> None:
    raise SystemExit(0)


# -- the examples of the package, played on a copy of the demo cube -----------------------------------


def examples() -> list[str]:
    """Return the names of the examples in order, without their suffix."""
    return [n.removesuffix(".sql") for n in resources.names(EXAMPLES) if n.endswith(".sql")]


@_session(
    "tour",
    usage="[NUMBER|list]",
    about="play the next example on a copy of the demo cube, or one of them, or list them",
    takes=("tour",),
)
def _tour(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    names = examples()
    if not names:
        raise UsageError("The examples are not installed.", hint="They stand in sql_examples of the source.")
    if found == ["list"]:
        for number, name in enumerate(names, 1):
            # The first sentence of what an example says about itself.
            lines = resources.text(f"{EXAMPLES}/{name}.sql").splitlines()
            about = " ".join(line.removeprefix("-- ") for line in takewhile(lambda line: line[:3] == "-- ", lines))
            shell.screen.say(f"{number:>3}  {re.split(r'(?<=[.:]) ', about)[0] or name}")
        return
    most = len(names)
    if found and not (found[0].isdecimal() and 1 <= int(found[0]) <= most):
        raise UsageError(f"There is no example {found[0]!r}.", hint=f".tour 1 to .tour {most}; .tour list")
    shell.tour_at = int(found[0]) if found else shell.tour_at % most + 1
    _play(shell, names[shell.tour_at - 1], shell.tour_at, most)


def _play(shell: Shell, name: str, number: int, count: int) -> None:
    """Run an example in a folder of its own, so that what it writes harms nothing, and it can be played again."""
    script = resources.text(f"{EXAMPLES}/{name}.sql")
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="kartosql-tour-") as folder, contextlib.chdir(folder):
        place = os.path.join(folder, "kartosql-demo")
        _demo(shell, place)
        # The folder of files that docs/attach.md attaches, beside the demo cube.
        with connect(place) as connection:
            rows = connection.sql("SELECT * FROM flights.weather").arrow()
        pq.write_to_dataset(rows, "weather", partition_cols=["month"])
        shell.screen.say(f"Example {number} of {count}: {name}", "name")
        shell.screen.say(script.strip())
        shell.screen.line()
        before, settings = shell.connection, shell.connection.settings.copy()
        shell.connection = connect(place)
        try:
            ended_well = shell.execute(script)
        finally:
            shell.connection.close()
            shell.connection = before
            before.settings = settings
    if ended_well:
        shell.screen.say(f".tour plays the next one, .tour {number} this one again; .tour list names all.", "note")


def _demo(shell: Shell, place: str) -> None:
    """Put the demo cube into a folder: copied from the open store if that holds it, else built."""
    os.mkdir(place)
    store = shell.connection.store
    cube = shell.connection.cubes().get("flights")
    is_demo = cube is not None and "tailnum" in cube.index_columns
    if not (store.is_local and is_demo and {"planes", "airports"} <= set(shell.connection.datasets())):
        shell.screen.say("Building the demo cube ...", "note")
        build_flights(Store(place))
        return
    for name in os.listdir(store.root):
        if name.startswith(("flights++", "planes", "airports")):
            source = os.path.join(store.root, name)
            copy = shutil.copytree if os.path.isdir(source) else shutil.copyfile
            copy(source, os.path.join(place, name))
