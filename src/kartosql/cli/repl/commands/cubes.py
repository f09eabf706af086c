"""The commands of ``kartothek_cube``, for those who know them; ``.stats`` stands in ``look``."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from kartosql.cli.repl.registry import arguments, command
from kartosql.cli.repl.shell import Shell
from kartosql.engines.duckdb.types import literal
from kartosql.errors import UsageError
from kartosql.result import Query
from kartosql.tables.names import Tables, quote_if_needed
from kartosql.tables.table import Table

_GROUP = "Cubes, as with kartothek_cube"


@command(
    "info",
    usage="[CUBE]",
    about="a cube: its dimensions, partitions, indices and datasets",
    group=_GROUP,
    takes=("cube",),
)
def _info(shell: Shell, text: str) -> None:
    name = shell.one_table(text, cube=True)
    source = _source(shell.connection.tables(), name)
    if source.cube is None:
        raise UsageError(f"{name} is no cube.", hint=".cubes lists them; .schema shows a table.")
    cube = source.cube
    say = shell.screen.say
    say("Info", "name")
    say(f"UUID Prefix:        {cube.uuid_prefix}")
    for title, columns in (
        ("Dimension Columns:", cube.dimension_columns),
        ("Partition Columns:", cube.partition_columns),
        ("Index Columns:", sorted(cube.index_columns)),
    ):
        say(title)
        for column in columns:
            say(f"  - {column}: {source.columns.get(column, 'unknown')}")
        if not columns:
            say("  (none)")
    say(f"Seed Dataset:       {cube.seed_dataset}")
    for part in source.parts:
        say("")
        say(f"Dataset: {part.name}", "name")
        say(f"Partition Keys:  {', '.join(part.table.partition_keys) or '(none)'}")
        say(f"Files:           {len(part.table.files):,}")
        say("Payload Columns:")
        payload = [c for c in part.columns if c not in part.join_key and c not in part.table.partition_keys]
        for column in payload:
            say(f"  - {column}: {part.table.types[column]}")
        if not payload:
            say("  (none)")


def _source(tables: Tables, name: str) -> Table:
    from kartosql.sql import Describe, parse

    statement = parse(f"DESCRIBE {name}")
    if not isinstance(statement, Describe) or statement.target is None:
        raise UsageError(f"{name!r} is no name of a cube.")
    return tables.find(statement.target)


class _QueryParser(argparse.ArgumentParser):
    """A parser whose errors look like all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f".query: {message}.", hint=_USAGE)


_USAGE = '[CUBE] [--where "A > 1 & B = 2"] [--payload A,B] [--dimensions A,B] [--datasets A,B]'


@command("query", usage=_USAGE, about="rows of a cube as query_cube gives them", group=_GROUP, takes=("cube", "column"))
def _query(shell: Shell, text: str) -> None:
    parser = _QueryParser(prog=".query", add_help=False, allow_abbrev=False)
    parser.add_argument("cube", nargs="?", default="")
    parser.add_argument("--where")
    for name in ("payload", "dimensions", "datasets"):
        parser.add_argument(f"--{name}", type=lambda given: [c.strip() for c in given.split(",") if c.strip()])
    found = parser.parse_args(arguments(text))
    name = shell.one_table(found.cube, cube=True)

    def run() -> Query:
        query: Any = shell.connection.query_cube(
            name,
            dimension_columns=found.dimensions,
            payload_columns=found.payload,
            conditions=found.where,
            datasets=found.datasets,
        )
        return query  # type: ignore[no-any-return]

    shell.run_query(run, text)


@command("copy", usage="CUBE URL [NAME]", about="copy a cube to another store", group=_GROUP, takes=("cube", "store"))
def _copy(shell: Shell, text: str) -> None:
    found = arguments(text, 3)
    if len(found) < 2:
        raise UsageError("Name a cube and a store.", hint=".copy CUBE URL [NAME]")
    named = f" AS {found[2]}" if len(found) > 2 else ""
    shell.run_sql(f"COPY CUBE {found[0]} TO {literal(found[1])}{named}")


@command("delete", usage="CUBE", about="delete a cube with all its datasets; asks first", group=_GROUP, takes=("cube",))
def _delete(shell: Shell, text: str) -> None:
    if not text:
        raise UsageError("Name a cube.", hint=".delete CUBE")
    source = _source(shell.connection.tables(), text)
    if not shell.connection.read_only:
        listed = ", ".join(part.name for part in source.parts)
        if not shell.confirm(f"Delete the cube {source.name} with its datasets {listed}? "):
            shell.screen.say("Nothing is deleted.", "note")
            return
    shell.run_sql(f"DROP CUBE {text}")


@command(
    "cleanup",
    usage="TABLE [--dry-run]",
    about="remove files that belong to nothing any more",
    group=_GROUP,
    takes=("table",),
)
def _cleanup(shell: Shell, text: str) -> None:
    dry = text.endswith("--dry-run")
    name = text.removesuffix("--dry-run").strip()
    shell.run_sql(f"CLEANUP {shell.one_table(name)}{' DRY RUN' if dry else ''}")


@command(
    "index",
    usage="TABLE COLUMN [COLUMN ...]",
    about="build indices for columns of a table",
    group=_GROUP,
    takes=("table", "column"),
)
def _index(shell: Shell, text: str) -> None:
    found = arguments(text)
    if len(found) < 2:
        raise UsageError("Name a table and at least one column.", hint=".index TABLE COLUMN")
    columns = ", ".join(quote_if_needed(c) for c in found[1:])
    shell.run_sql(f"CREATE INDEX ON {found[0]} ({columns})")
