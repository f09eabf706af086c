"""Completion of commands and of their arguments."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kartosql.cli.repl import registry
from kartosql.cli.repl.complete import MOST, Candidate, engines
from kartosql.cli.repl.known import Known
from kartosql.cli.repl.options import OPTIONS
from kartosql.settings import SETTINGS

if TYPE_CHECKING:
    from kartosql.cli.repl.shell import Shell


def of_command(text: str, shell: Shell, known: Known) -> Iterator[Candidate]:
    """Yield the completions at the end of the line of a command."""
    start = len(text) - len(text.lstrip())
    word, space, rest = text[start:].partition(" ")
    if not space:
        for name in registry.words():
            if name.startswith(word.lower() if word.startswith(".") else word):
                found = registry.find(name)
                yield Candidate(
                    f"{name} " if found.usage else name, start, f"{found.usage}  {found.about}".strip(), shown=name
                )
        return
    try:
        takes = registry.find(word).takes
    except Exception:  # noqa: BLE001
        return
    done = rest.split(" ")[:-1]
    number = len([w for w in done if w])
    kind = takes[min(number, len(takes) - 1)] if takes else ""
    if "sql" in takes and number >= takes.index("sql"):
        yield from _of_sql(text, start, takes, word, rest, shell, known)
        return
    if not takes or (number >= len(takes) and takes[-1] not in ("column", "table")):
        return
    typed = rest.rpartition(" ")[2]
    yield from _argument(kind, typed, len(text) - len(typed), done, shell, known)


def _of_sql(
    text: str, start: int, takes: tuple[str, ...], word: str, rest: str, shell: Shell, known: Known
) -> Iterator[Candidate]:
    from kartosql.cli.repl.complete import candidates

    at = start + len(word) + 1
    for _ in range(takes.index("sql")):
        at = text.find(" ", at) + 1
    for found in candidates(text[at:], len(text) - at, shell, known):
        yield Candidate(found.text, found.start + at, found.about, found.suffix, found.shown, found.unasked)


def _argument(kind: str, typed: str, start: int, done: list[str], shell: Shell, known: Known) -> Iterator[Candidate]:
    if kind in ("table", "cube"):
        for table in known.tables:
            if (kind == "table" or table.kind == "cube") and table.name.lower().startswith(typed.lower()):
                yield Candidate(table.name, start, table.kind)
    elif kind == "column":
        found = known.table(next((w for w in done if w), ""))
        for column in found.columns if found is not None else ():
            if column.name.lower().startswith(typed.lower()):
                yield Candidate(column.name, start, f"{column.type}, {column.role}")
    elif kind in ("file", "folder", "store"):
        yield from _files(typed, start, folders_only=kind != "file")
        if kind == "store":
            yield from _named(_profiles(), typed, start, "profile")
    elif kind == "option":
        yield from _named(OPTIONS, typed, start, "option")
        yield from _named(SETTINGS, typed, start, "setting")
        yield from _named(["save"], typed, start, "write the config file")
    elif kind == "value":
        option = OPTIONS.get(done[0] if done else "")
        yield from _named(option.choices if option is not None else (), typed, start, "")
        if done[:1] == ["engine"]:
            yield from _named(engines(), typed, start, "engine")
    else:
        yield from _named(_words(kind, shell), typed, start, "")


def _words(kind: str, shell: Shell) -> Iterable[str]:
    """Return the words of an argument that has only some."""
    if kind == "format":
        return OPTIONS["mode"].choices
    if kind in ("theme", "keys"):
        return OPTIONS[kind].choices
    if kind == "engine":
        return engines()
    if kind == "attach type":
        from kartosql.sql.attach_parse import TYPES

        return TYPES
    if kind == "onoff":
        return ("on", "off")
    if kind == "command":
        return registry.words()
    if kind == "saved":
        from kartosql.cli.repl.commands.statements import saved

        return saved()
    if kind == "tour":
        from kartosql.cli.repl.commands.tour import examples

        return ["list", *(str(n) for n in range(1, len(examples()) + 1))]
    if kind == "data file":
        report = shell.last.report if shell.last is not None else None
        scans = report.scan.occurrences if report is not None else ()
        return (key for scan in scans for part in scan.parts for key in part.part.table.files)
    if kind == "result column":
        return list(shell.last.schema.names) if shell.last is not None and shell.last.schema is not None else ()
    return ()


def _named(names: Iterable[str], typed: str, start: int, about: str) -> Iterator[Candidate]:
    for name in names:
        if name.lower().startswith(typed.lower()):
            text = name if name.isprintable() and " " not in name else shlex.quote(name)
            yield Candidate(text, start, about, shown=name)


def _profiles() -> list[str]:
    from kartosql.cli import config
    from kartosql.errors import KartosqlError

    try:
        return list(config.read().profiles)
    except KartosqlError:
        return []


def _files(typed: str, start: int, *, folders_only: bool) -> Iterator[Candidate]:
    """Yield the local files that begin with what is typed; hidden ones only if that begins with a dot."""
    if "://" in typed:
        return
    folder, _, beginning = typed.rpartition("/")
    place = os.path.expanduser(folder + "/") if "/" in typed else "."
    try:
        with os.scandir(place) as entries:
            found = sorted((e.name, e.is_dir()) for e, _ in zip(entries, range(10 * MOST), strict=False))
    except (OSError, ValueError):
        return
    for name, is_folder in found:
        if (
            not name.startswith(beginning)
            or (name.startswith(".") and not beginning)
            or (folders_only and not is_folder)
        ):
            continue
        path = f"{folder}/{name}" if "/" in typed else name
        text = path if path.isprintable() and " " not in path else shlex.quote(path)
        yield Candidate(text + ("/" if is_folder else ""), start, "folder" if is_folder else "file", shown=name)
