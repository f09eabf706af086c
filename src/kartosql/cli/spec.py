"""What shells and tools ask about the command line: its completion in bash, zsh and fish, and ``--spec`` as JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kartosql import __version__
from kartosql.cli.config import profile_names
from kartosql.cli.options import FORMATS
from kartosql.settings import ENGINES, SETTINGS

FILES, FOLDERS = ":files", ":folders"  # what the shell completes by itself
COMMANDS = {
    "cube": "look at a cube, copy, tidy or delete it",
    "demo": "build a sample cube and query it",
    "serve": "serve a store by Flight SQL, HTTP and MCP",
}


def lines(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last of the words: a word, a tab and what it is; or FILES or FOLDERS."""
    *before, last = words or [""]
    options = {name: action for action in parser._actions for name in action.option_strings}
    waiting = options.get(before[-1]) if before else None
    if before == ["demo"]:
        yield FOLDERS
    elif before[:1] == ["cube"]:
        from kartosql.cli import cube

        if before[1:] and before[1] in cube.COMMANDS:
            yield from lines(cube.parser_of(before[1]), words[2:])
        elif not before[1:]:
            yield from _beginning({name: found.about for name, found in cube.COMMANDS.items()}, last)
    elif waiting is not None and waiting.nargs != 0:
        yield from _values(waiting, last)
    elif last.startswith("-"):
        for name, action in options.items():
            if name.startswith(last) and action.help != argparse.SUPPRESS:
                yield f"{name}\t{action.help or ''}"
    elif not _has_place(before, options):
        yield from _beginning(COMMANDS if parser.prog == "kartosql" else {}, last)
        for name in filter(str.isprintable, profile_names()):
            if name.startswith(last):
                yield f"{name}\tprofile"
            if last.startswith("@") and f"@{name}".startswith(last):
                yield f"@{name}\tprofile"
        yield FOLDERS


def _has_place(words: Sequence[str], options: dict[str, argparse.Action]) -> bool:
    """Return whether one of the words is no option and no value of one."""
    waits = False
    for word in words:
        action = None if waits else options.get(word)
        if not waits and action is None:
            return True
        waits = action is not None and action.nargs != 0
    return False


def _values(action: argparse.Action, last: str) -> Iterator[str]:
    option = action.option_strings[0]
    if option in ("-f", "-o"):
        yield FILES
    found = dict.fromkeys(ENGINES if option == "--engine" else action.choices or (), "")
    if option == "--set":
        found = {f"{name}=": setting.about for name, setting in SETTINGS.items()}
    yield from _beginning(found, last)


def _beginning(found: Mapping[str, str], last: str) -> Iterator[str]:
    for value, about in found.items():
        if value.startswith(last):
            yield f"{value}\t{about}".rstrip()


def _options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    return [
        {
            "names": list(action.option_strings),
            "value": action.metavar if action.nargs != 0 else None,
            "values": list(action.choices) if action.choices else [],
            "repeats": isinstance(action, argparse._AppendAction),
            "about": action.help,
        }
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def spec(parser: argparse.ArgumentParser) -> str:
    """Return the description of the whole command as JSON."""
    from kartosql.cli import cube, resources
    from kartosql.cli.output import EXIT_CODES
    from kartosql.cli.repl import registry
    from kartosql.cli.repl.options import OPTIONS

    registry.load()
    first = {code: " ".join(s.split("\n\n")[0].split()) for code, s in resources.error_sections().items()}
    commands = [
        {"name": f".{c.name}", "aliases": list(c.aliases), "usage": c.synopsis, "about": c.about, "group": c.group}
        for c in registry.COMMANDS.values()
    ]
    found = {
        "kartosql": __version__,
        "options": _options(parser),
        "cube": [
            {"name": name, "usage": c.usage, "about": c.about, "options": _options(cube.parser_of(name))}
            for name, c in cube.COMMANDS.items()
        ],
        "formats": list(FORMATS),
        "exit_codes": {str(code): about for code, about in EXIT_CODES.items()},
        "settings": [
            {"name": s.name, "default": s.default, "about": s.about, "in_sql": s.in_sql} for s in SETTINGS.values()
        ],
        "shell": {
            "commands": commands,
            "options": [
                {"name": o.name, "default": o.default, "values": list(o.choices), "about": o.about}
                for o in OPTIONS.values()
            ],
        },
        "errors": [{"code": code, "about": re.split(r"(?<=[.:]) ", text)[0]} for code, text in first.items()],
    }
    return json.dumps(found, ensure_ascii=False, indent=1)
