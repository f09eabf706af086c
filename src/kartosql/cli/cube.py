"""``kartosql cube``: what kartothek_cube does to a cube, and what it prints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from kartosql.cli.batch import output_of, requested_format, requested_style
from kartosql.cli.config import open_store, resolve
from kartosql.cli.options import Options, Parser, StatementSource, command_parser, options_of
from kartosql.cli.output import interruptible, opened
from kartosql.connection import Connection
from kartosql.errors import UsageError, did_you_mean
from kartosql.formats.kartothek.snapshot import unknown_cube
from kartosql.render.formats import write_stream
from kartosql.result import Query
from kartosql.text.escape import escaped_lines
from kartosql.text.types import type_name

_GENERAL = ("help", "storage_option", "set", "timeout", "debug")  # what every command shows of the general options
_PATTERNS = "names of datasets with commas between, wildcards allowed"


@dataclass(frozen=True)
class Asked:
    """What a command is asked to do with a cube; ``datasets`` are those of its patterns, None means all."""

    command: str
    cube: str
    words: Sequence[str]
    given: argparse.Namespace
    options: Options
    datasets: list[str] | None = None

    @property
    def is_session(self) -> bool:
        """Whether it opens the shell, or runs statements."""
        own = (vars(self.given).get(n) for n in ("include", "exclude", *_OF_QUERY))
        return self.command == "query" and all(value is None for value in own)


@dataclass(frozen=True)
class CubeCommand:
    """A command: what stands behind URL and CUBE, where brackets are round what may be missing."""

    words: tuple[str, ...]
    about: str
    run: Callable[[Connection, Asked], Iterator[str]]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def usage(self) -> str:
        """The command as it is typed, without its name and options."""
        return " ".join(("URL", "CUBE", *self.words))


def parse_cube(arguments: Sequence[str]) -> Asked:
    """Return what the words behind ``kartosql cube`` ask for; raises ``invalid-argument``, or ends after a help."""
    top = Parser(
        prog="kartosql cube",
        usage="kartosql cube COMMAND URL CUBE ... [--include P] [--exclude P]",
        description=f"Do one thing with a cube of a store. P: {_PATTERNS}.",
        epilog="\n".join(f"  {f'{name} {c.usage}':38} {c.about}" for name, c in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of those below")
    name: str = top.parse_args(arguments[:1]).command
    found, parser = COMMANDS[name], parser_of(name)
    given = parser.parse_intermixed_args(list(arguments[1:]))
    least = 2 + sum(not word.startswith("[") for word in found.words)
    if not least <= len(given.places) <= 2 + len(found.words):
        what = "Too few" if len(given.places) < least else "Too many"
        raise UsageError(f"{what} words behind {name}.", hint=parser.usage)
    url, cube, *words = given.places
    given.places = [url]
    if name == "query":
        given.sources += [StatementSource("-c", sql) for sql in words]
    options = options_of(given)
    if name != "query":
        if options.sources or options.format or options.output or options.parameters:
            raise UsageError(f"{name} runs no statements.", hint=f"kartosql cube query {url} {cube} -c SQL")
        options = replace(options, write=True)
    asked = Asked(name, cube, words, given, replace(options, cube=cube))
    if name == "query" and not asked.is_session and (options.sources or options.partition_by):
        raise UsageError("Statements and --where do not go together.", hint="A statement has a WHERE of its own.")
    return asked


def parser_of(name: str) -> Parser:
    """Return the parser of what stands behind the name of a command."""
    parser, found = command_parser(), COMMANDS[name]
    parser.prog = f"kartosql cube {name}"
    parser.usage = f"{parser.prog} {found.usage} [options]"
    parser.description, parser.epilog = f"{found.about[:1].upper()}{found.about[1:]}.", None
    for action in parser._actions:
        if name != "query" and action.dest not in _GENERAL:
            action.help = argparse.SUPPRESS
    parser.add_argument("--include", metavar="P", help=f"only these: {_PATTERNS}")
    parser.add_argument("--exclude", metavar="P", help=f"all but these: {_PATTERNS}")
    for option, declared in found.options.items():
        parser.add_argument(option, **declared)
    return parser


def run_cube(asked: Asked) -> None:
    """Run a command and print what it tells; raises KartosqlError, and what stdout raises."""
    with open_store(resolve(asked.options.url), asked.options) as connection, opened(None) as out:

        def work() -> None:
            if asked.command != "cleanup" and asked.cube not in connection._session.snapshot().members:
                listed = f"Cubes: {', '.join(connection.cubes()) or 'none'}."
                raise unknown_cube(asked.cube, did_you_mean(asked.cube, connection.cubes(), listed) or listed)
            for line in COMMANDS[asked.command].run(connection, replace(asked, datasets=_datasets(connection, asked))):
                out.write(f"{escaped_lines(line)}\n".encode())

        interruptible(work, connection.interrupt)


def _datasets(connection: Connection, asked: Asked) -> list[str] | None:
    """Return the datasets that the patterns leave, None without patterns; raises ``unknown-dataset``."""
    include, exclude = asked.given.include, asked.given.exclude
    if include is None and exclude is None:
        return None
    names = connection._session.snapshot().names(asked.cube)
    found = matching(names, "*" if include is None else include, "dataset")
    left_out = matching(names, exclude, "dataset") if exclude is not None else []
    if not (left := [name for name in found if name not in left_out]):
        raise UsageError("No dataset is left.", code="unknown-dataset", hint=f"Datasets: {', '.join(names)}.")
    return left


def matching(names: Iterable[str], patterns: str, what: str) -> list[str]:
    """Return the names that are like one of the patterns; raises ``unknown-dataset`` or ``unknown-column``."""
    names, found = sorted(names), set()
    for pattern in map(str.strip, patterns.split(",")):
        like = [name for name in names if fnmatchcase(name, pattern)]
        if not like:
            code = {"dataset": "unknown-dataset", "column": "unknown-column"}[what]
            raise UsageError(f"There is no {what} {pattern!r}.", code=code, hint=f"Known: {', '.join(names)}.")
        found.update(like)
    return sorted(found)


# -- the commands ------------------------------------------------------------------------------------


def info_of(connection: Connection, name: tuple[str, ...], datasets: Iterable[str] | None = None) -> Iterator[str]:
    """Yield what a cube is, and each of its datasets; raises ``unknown-table``."""
    source = connection.tables().find(name)
    cube = source.cube
    if cube is None:
        raise UsageError(f"{'.'.join(name)} is no cube.", code="unknown-table", hint="SHOW CUBES lists them.")
    yield "Infos"
    yield f"UUID Prefix:        {cube.uuid_prefix}"
    yield from _columns("Dimension Columns:", cube.dimension_columns, source.columns)
    yield from _columns("Partition Columns:", cube.partition_columns, source.columns)
    yield from _columns("Index Columns:", sorted(cube.index_columns), source.columns)
    yield f"Seed Dataset:      {cube.seed_dataset}"
    shared = {*cube.dimension_columns, *cube.partition_columns}
    for part in sorted(source.parts, key=lambda part: part.name):
        if datasets is None or part.name in datasets:
            types = part.table.types
            yield from ("", f"Dataset: {part.name}")
            yield from _columns("Partition Keys:", part.table.partition_keys, types)
            yield f"Partitions: {len(part.table.files)}"
            yield "Metadata:"
            metadata = {key: value for key, value in part.table.metadata.items() if not key.startswith("kartosql")}
            shown = json.dumps(metadata, indent=2, sort_keys=True, ensure_ascii=False, default=str)
            yield from (f"  {line}" for line in shown.split("\n"))
            yield from _columns("Dimension Columns:", sorted(set(cube.dimension_columns) & types.keys()), types)
            yield from _columns("Payload Columns:", sorted(types.keys() - shared), types)


def _columns(title: str, columns: Iterable[str], types: Any) -> Iterator[str]:
    yield title
    for column in columns:
        yield f"  - {column}: {type_name(types[column]) if column in types else 'unknown'}"


def _info(connection: Connection, asked: Asked) -> Iterator[str]:
    return info_of(connection, (asked.cube,), asked.datasets)


def _stats(connection: Connection, asked: Asked) -> Iterator[str]:
    found = connection.collect_stats(asked.cube, asked.datasets)
    total = {what: sum(one[what] for one in found.values()) for what in ("blobsize", "files")}
    for number, (name, values) in enumerate([*sorted(found.items()), ("__total__", total)]):
        yield from ([""] if number else [])
        yield name
        yield from (f"{what}:  {value:,}" for what, value in sorted(values.items()))


def _query(connection: Connection, asked: Asked) -> Iterator[str]:
    options, given = asked.options, {name: getattr(asked.given, name) for name in _OF_QUERY}
    query = connection.query_cube(asked.cube, **given, datasets=asked.datasets)
    assert isinstance(query, Query)
    with output_of(connection, options) as out:
        write_stream(query.reader(), requested_format(options), out, requested_style(options))
    return iter(())


def _index(connection: Connection, asked: Asked) -> Iterator[str]:
    parts = {part.name: part for part in connection.tables().find((asked.cube,)).parts}
    for name in matching(asked.datasets or parts, asked.words[0], "dataset"):
        done = connection.create_index(parts[name].table.uuid, matching(parts[name].columns, asked.words[1], "column"))
        for column, values in done["values"].items():
            yield f"{name}: index of {column}, {values:,} values"


def _copy(connection: Connection, asked: Asked) -> Iterator[str]:
    place, *name = asked.words
    profile = resolve(place)
    target = open_store(profile, Options(place, [], write=True)) if profile.name else place
    done = connection.copy_cube(
        asked.cube, target, name=name[0] if name else None, datasets=asked.datasets, overwrite=asked.given.overwrite
    )
    return _report_lines(done, "copied", "files", "rows", "bytes")


def _delete(connection: Connection, asked: Asked) -> Iterator[str]:
    return _report_lines(connection.delete_cube(asked.cube, asked.datasets), "deleted", "files")


def _cleanup(connection: Connection, asked: Asked) -> Iterator[str]:
    dry_run = asked.given.dry_run
    if asked.datasets is None:
        done = connection.cleanup_cube(asked.cube, dry_run=dry_run)
    else:
        done = {n: connection.garbage_collect(f"{asked.cube}.{n}", dry_run=dry_run) for n in asked.datasets}
    return _report_lines(done, "looked at" if dry_run else "cleaned", "marked", "removed", "bytes")


def _report_lines(done: Mapping[str, Any], what: str, *counts: str) -> Iterator[str]:
    for name, report in sorted(done.items()):
        yield f"{name}: {what}, {', '.join(f'{count} {report[count]:,}' for count in counts)}"


def names_in(text: str) -> list[str]:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


_COLUMNS = {"metavar": "A,B", "type": names_in}
_ROWS = 'rows as query_cube gives them, such as "A > 1 & B = 2"'
QUERY: dict[str, dict[str, Any]] = {
    "--where": {"metavar": "CONDITIONS", "dest": "conditions", "help": _ROWS},
    "--payload": {**_COLUMNS, "dest": "payload_columns", "help": "with these columns"},
    "--dimensions": {**_COLUMNS, "dest": "dimension_columns", "help": "of cells of these dimensions"},
}
_OF_QUERY = [option["dest"] for option in QUERY.values()]
COMMANDS = {
    "info": CubeCommand((), "columns, files and metadata of a cube and of its datasets", _info),
    "stats": CubeCommand((), "bytes, files, partitions and rows of each dataset, and totals", _stats),
    "query": CubeCommand(("[SQL]",), "run SQL, -c, -f or --where; without any, open the shell", _query, QUERY),
    "index": CubeCommand(("DATASET", "COLUMNS"), "build inverted indices; both may have wildcards", _index),
    "copy": CubeCommand(
        ("TARGET", "[NAME]"),
        "copy a cube to another store, or to another name",
        _copy,
        {"--overwrite": {"action": "store_true", "help": "replace datasets that the target has"}},
    ),
    "delete": CubeCommand((), "delete a cube, or datasets of it, at once", _delete),
    "cleanup": CubeCommand(
        (),
        "remove files that belong to nothing any more",
        _cleanup,
        {"--dry-run": {"action": "store_true", "help": "only tell which"}},
    ),
}
