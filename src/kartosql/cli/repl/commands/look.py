"""Commands that look at what the store holds."""

from __future__ import annotations

import pyarrow as pa

from kartosql.cli.repl.registry import command
from kartosql.cli.repl.results import look_of, table_lines
from kartosql.cli.repl.shell import Shell

_GROUP = "Look around"


@command("tables", r"\dt", r"\l", about="every table that a statement can name", group=_GROUP)
def _tables(shell: Shell, text: str) -> None:
    shell.run_sql("SHOW TABLES")


@command("cubes", r"\dc", about="cubes with their dimensions, partitions and indices", group=_GROUP)
def _cubes(shell: Shell, text: str) -> None:
    shell.run_sql("SHOW CUBES")


@command("datasets", r"\dd", usage="[CUBE]", about="datasets, or those of a cube", group=_GROUP, takes=("cube",))
def _datasets(shell: Shell, text: str) -> None:
    shell.run_sql(f"SHOW DATASETS FROM {text}" if text else "SHOW DATASETS")


@command(
    "schema",
    r"\d",
    usage="[TABLE]",
    about="columns of a table, with type, role and index",
    group=_GROUP,
    takes=("table",),
)
def _schema(shell: Shell, text: str) -> None:
    shell.run_sql(f"DESCRIBE {shell.one_table(text)}")


@command("columns", r"\dC", usage="[TEXT]", about="columns of all tables whose name has a text in it", group=_GROUP)
def _columns(shell: Shell, text: str) -> None:
    from kartosql.cli.repl.known import load

    rows = [
        (column.name, column.type, column.role, table.name)
        for table in load(shell.connection).tables
        for column in table.columns
        if text.lower() in column.name.lower()
    ]
    names = ("column", "type", "role", "table")
    table = pa.table({name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate(names)})
    lines = table_lines(table, ["varchar"] * 4, shell.options["mode"], look_of(shell.screen, shell.options))
    shell.screen.show(lines if rows else [f"No column has {text!r} in its name."], page=True)


@command(
    "partitions", r"\dp", usage="[TABLE]", about="partitions of a table and their files", group=_GROUP, takes=("table",)
)
def _partitions(shell: Shell, text: str) -> None:
    shell.run_sql(f"SHOW PARTITIONS FROM {shell.one_table(text)}")


@command("files", r"\df", usage="[TABLE]", about="files of a table and their sizes", group=_GROUP, takes=("table",))
def _files(shell: Shell, text: str) -> None:
    shell.run_sql(f"SHOW FILES FROM {shell.one_table(text)}")


@command("indexes", r"\di", usage="[TABLE]", about="indices of a table", group=_GROUP, takes=("table",))
def _indexes(shell: Shell, text: str) -> None:
    shell.run_sql(f"SHOW INDEXES FROM {shell.one_table(text)}")


@command(
    "stats",
    r"\ds",
    usage="[TABLE]",
    about="partitions, files, rows and bytes of a table",
    group=_GROUP,
    takes=("table",),
)
def _stats(shell: Shell, text: str) -> None:
    shell.run_sql(f"SHOW STATS FROM {shell.one_table(text)}")
