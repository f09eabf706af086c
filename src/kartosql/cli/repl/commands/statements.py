"""Commands that run, keep, edit and repeat statements."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time

from kartosql.cli import config
from kartosql.cli.options import pairs, value
from kartosql.cli.repl.registry import arguments, command
from kartosql.cli.repl.running import Cancelled
from kartosql.cli.repl.shell import Shell
from kartosql.errors import StoreError, UsageError

_GROUP = "Statements"
_NAME = re.compile(r"[\w][\w.-]{0,99}")
MAX_BYTES = 5_000_000


@command("read", r"\i", usage="FILE", about="run the statements and commands of a file", group=_GROUP, takes=("file",))
def _read(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    if not found:
        raise UsageError("Name a file.", hint=".read report.sql")
    script = text_of(os.path.expanduser(found[0]))
    depth = shell.read_depth
    if depth >= 10:
        raise UsageError(f"{found[0]}: files that read files, ten deep.", hint="A file reads itself.")
    shell.read_depth = depth + 1
    try:
        if not script.rstrip().endswith(";") and script.strip():
            script += "\n;"
        shell.execute(script)
    finally:
        shell.read_depth = depth


def text_of(path: str) -> str:
    """Return the text of a file; raises ``invalid-argument``."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{path!r} has more than {MAX_BYTES:,} bytes.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"Cannot read {path!r}: it is not UTF-8.") from None
    except (OSError, ValueError) as e:
        raise UsageError(f"Cannot read {path!r}: {getattr(e, 'strerror', None) or e}.") from None


# -- saved statements --------------------------------------------------------------------------------


def folder() -> str:
    """Return the folder of saved statements, which need not exist."""
    return os.path.join(config.folder(), "queries")


def saved() -> list[str]:
    """Return the names of saved statements, sorted."""
    try:
        return sorted(name.removesuffix(".sql") for name in os.listdir(folder()) if name.endswith(".sql"))
    except OSError:
        return []


def _place(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a statement.", hint="Letters, digits, _, - and dots.")
    return os.path.join(folder(), f"{name}.sql")


@command(
    "save",
    r"\fs",
    usage="NAME [SQL]",
    about="keep the last statement, or the one given, under a name",
    group=_GROUP,
    takes=("saved", "sql"),
)
def _save(shell: Shell, text: str) -> None:
    name, _, given = text.partition(" ")
    statement = given.strip() or shell.statement
    if not name or statement is None:
        raise UsageError("Name the statement." if statement else "There is no statement yet.", hint=".save NAME [SQL]")
    place = _place(name.rstrip(";"))
    try:
        os.makedirs(folder(), mode=0o700, exist_ok=True)
        with open(place, "w", encoding="utf-8") as file:
            file.write(statement.rstrip().rstrip(";") + ";\n")
    except OSError as e:
        raise StoreError(f"Cannot write {place!r}: {e.strerror or e}") from None
    shell.screen.say(f"Saved as {name.rstrip(';')}; .run {name.rstrip(';')} runs it.", "note")


@command(
    "run",
    r"\fr",
    usage="[NAME [K=V ...]]",
    about="run a saved statement, with values of its parameters; without a name, list them",
    group=_GROUP,
    takes=("saved",),
)
def _run(shell: Shell, text: str) -> None:
    found = arguments(text)
    if not found:
        for name in saved():
            shell.screen.say(f"{name}: {' '.join(text_of(_place(name)).split())}")
        if not saved():
            shell.screen.say("No statement is saved; .save NAME keeps the last one.", "note")
        return
    if not os.path.exists(_place(found[0])):
        raise UsageError(
            f"No statement {found[0]!r} is saved.", hint=f"Saved: {', '.join(saved())}." if saved() else ".save NAME"
        )
    given = {k: value(v) for k, v in pairs(".run", found[1:]).items()}
    statement = text_of(_place(found[0]))
    shell.statement = statement.strip()
    shell.run_sql(statement, parameters={**shell.parameters, **given})


@command("forget", usage="NAME", about="delete a saved statement", group=_GROUP, takes=("saved",))
def _forget(shell: Shell, text: str) -> None:
    found = arguments(text, 1)
    if not found or found[0] not in saved():
        raise UsageError("Name a saved statement.", hint=".run lists them.")
    try:
        os.unlink(_place(found[0]))
    except OSError as e:
        raise StoreError(f"Cannot delete {found[0]!r}: {e.strerror or e}") from None
    shell.screen.say(f"Deleted {found[0]}.", "note")


@command(
    "param",
    usage="[NAME [VALUE]]",
    about="value of the parameter $NAME or :NAME; without a value, none",
    group=_GROUP,
)
def _param(shell: Shell, text: str) -> None:
    found = arguments(text, 2)
    if len(found) == 2:
        shell.parameters[found[0]] = value(found[1])
    elif found:
        shell.parameters.pop(found[0], None)
    for name, given in shell.parameters.items():
        shell.screen.say(f"{name} = {given!r}")


# -- editing and repeating ---------------------------------------------------------------------------


@command(
    "edit",
    r"\e",
    usage="[SQL]",
    about="write the next statement, or the last one again, in an editor",
    group=_GROUP,
    takes=("sql",),
)
def _edit(shell: Shell, text: str) -> None:
    editor = shell.options["editor"] or os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.NamedTemporaryFile("w", suffix=".sql", prefix="kartosql-", delete=False, encoding="utf-8") as file:
        file.write(text or shell.statement or "")
    try:
        if subprocess.run([*shlex.split(editor), file.name], check=False).returncode:
            raise UsageError(f"The editor {editor!r} failed; nothing is changed.")
        shell.draft = text_of(file.name).rstrip("\n")
    except (OSError, ValueError) as e:
        raise UsageError(f"Cannot run the editor {editor!r}: {getattr(e, 'strerror', None) or e}.") from None
    finally:
        os.unlink(file.name)


@command(
    "watch",
    usage="[SECONDS] [SQL]",
    about="run a statement, or the last one, again and again until Ctrl-C",
    group=_GROUP,
    takes=("", "sql"),
)
def _watch(shell: Shell, text: str) -> None:
    first, _, rest = text.partition(" ")
    try:
        seconds, sql = max(0.1, float(first)), rest.strip()
    except ValueError:
        seconds, sql = 2.0, text
    statement = sql or shell.statement
    if statement is None:
        raise UsageError("There is no statement yet.", hint=".watch 5 SELECT count(*) FROM t")
    try:
        while True:
            shell.screen.say(f"-- {time.strftime('%H:%M:%S')}, every {seconds:g} s, Ctrl-C ends", "note")
            shell.run_sql(statement, quiet=True)
            time.sleep(seconds)
    except (KeyboardInterrupt, Cancelled):
        shell.screen.say("No longer watched.", "note")
