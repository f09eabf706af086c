"""Commands about results: how they look, and where they go."""

from __future__ import annotations

from kartosql.cli.repl.options import on_off
from kartosql.cli.repl.registry import arguments, command, option_command
from kartosql.cli.repl.running import Result, look_of
from kartosql.cli.repl.shell import PEOPLES, Shell
from kartosql.errors import UsageError
from kartosql.render import tables
from kartosql.render.formats import write_stream
from kartosql.render.values import is_number, texts

_GROUP = "Results"
MAX_BARS = 200


option_command(
    "mode",
    r"\f",
    usage="[FORMAT]",
    about="format of results; without one, which it is",
    group=_GROUP,
    takes=("format",),
)


@command("once", r"\o", usage="FILE", about="write the next result to a file", group=_GROUP, takes=("file",))
def _once(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    if not found:
        raise UsageError("Name a file.", hint=".once result.parquet")
    shell.target.once(found[0])


@command(
    "output",
    usage="[FILE]",
    about="write all results to a file; without one, to the screen again",
    group=_GROUP,
    takes=("file",),
)
def _output(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    shell.target.every(found[0] if found else None)
    shell.screen.say(f"Results go to {shell.target.path or 'the screen'}.", "note")


@command("last", r"\g", usage="[FORMAT]", about="all rows of the last result", group=_GROUP, takes=("format",))
def _last(shell: Shell, text: str) -> None:
    result = last_of(shell)
    if result.kept < result.rows:
        shell.screen.say(f"The first {result.kept:,} of {result.rows:,} rows are kept; .once FILE gives all.", "hint")
    mode = text or shell.options["mode"]
    if mode in PEOPLES:
        shell.show(result, every_row=True, mode=mode)
        return
    from io import BytesIO

    out = BytesIO()
    write_stream(result.table.to_reader(), mode, out, terminal=True)
    shell.screen.show(out.getvalue().decode().rstrip("\n").split("\n"), page=True)


def last_of(shell: Shell) -> Result:
    """Return the last result; raises ``no-result``."""
    if shell.last is None or shell.last.schema is None:
        raise UsageError("There is no result yet.", code="no-result", hint="Run a statement first.")
    return shell.last


@command("timing", r"\t", usage="[on|off]", about="the line below each result", group=_GROUP, takes=("onoff",))
def _timing(shell: Shell, text: str) -> None:
    try:
        value = on_off(text) if text else not shell.options["timing"]
    except ValueError:
        raise UsageError(f"{text!r} is neither on nor off.") from None
    shell.options.set("timing", value)
    shell.screen.say(f"timing: {shell.options.shown('timing')}", "note")


@command(
    "chart",
    usage="[LABEL [VALUE]]",
    about="the last result as bars",
    group=_GROUP,
    takes=("result column", "result column"),
)
def _chart(shell: Shell, text: str) -> None:
    result = last_of(shell)
    table = result.table.slice(0, MAX_BARS)
    label, value = _chart_columns(result, arguments(text, 2))
    numbers = [float(v) if v is not None else float("nan") for v in table.column(value).to_pylist()]
    shown = [text for chunk in table.column(value).chunks for text in texts(chunk)]
    labels = [text for chunk in table.column(label).chunks for text in texts(chunk)]
    lines = tables.bars(
        [tables.NULL if t is None else t[:40] for t in labels],
        numbers,
        [tables.NULL if t is None else tables.grouped(t) for t in shown],
        look_of(shell.screen, shell.options),
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
    if len(given) > 1:
        value = names.index(given[1])
        if value not in numbers:
            raise UsageError(f"{given[1]!r} holds no numbers.")
    elif not numbers:
        raise UsageError("The last result has no column of numbers.")
    else:
        value = numbers[-1]
    return names.index(given[0]) if given else 0, value
