"""Commands that look at what the store holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from kartosql.cli.repl.registry import command, sql_command
from kartosql.cli.repl.running import look_of
from kartosql.cli.repl.shell import Shell
from kartosql.render.tables import readable

_declare = partial(sql_command, group="Look around")
_of_table = partial(_declare, usage="[TABLE]", takes=("table",))


def _show(word: str) -> Callable[[Shell, str], str]:
    return lambda shell, text: f"SHOW {word} FROM {shell.one_table(text)}"


_declare("tables", r"\dt", r"\l", about="every table that a statement can name", sql=lambda shell, text: "SHOW TABLES")
_declare(
    "cubes", r"\dc", about="cubes with their dimensions, partitions and indices", sql=lambda shell, text: "SHOW CUBES"
)
_declare(
    "datasets",
    r"\dd",
    usage="[CUBE]",
    about="datasets, or those of a cube",
    takes=("cube",),
    sql=lambda shell, text: f"SHOW DATASETS FROM {text}" if text else "SHOW DATASETS",
)
_of_table(
    "schema",
    r"\d",
    about="columns of a table, with type, role and index",
    sql=lambda shell, text: f"DESCRIBE {shell.one_table(text)}",
)


@command(
    "columns", r"\dC", usage="[TEXT]", about="columns of all tables whose name has a text in it", group="Look around"
)
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
    lines = readable(table, ["varchar"] * 4, shell.options["mode"], look_of(shell.screen, shell.options))
    shell.screen.show(lines if rows else [f"No column has {text!r} in its name."], page=True)


for _name, _alias, _about in (
    ("partitions", r"\dp", "partitions of a table and their files"),
    ("files", r"\df", "files of a table and their sizes"),
    ("indexes", r"\di", "indices of a table"),
    ("stats", r"\ds", "partitions, files, rows and bytes of a table"),
):
    _of_table(
        _name,
        _alias,
        about=_about,
        sql=_show(_name.upper()),
    )
