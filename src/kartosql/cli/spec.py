"""``kartosql --spec``: options, commands, settings, formats and error codes as JSON, for editors and other tools."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from kartosql import __version__
from kartosql.cli import resources
from kartosql.cli.messages import EXIT_CODES
from kartosql.cli.options import FORMATS
from kartosql.cli.repl import registry
from kartosql.cli.repl.options import OPTIONS
from kartosql.settings import SETTINGS


def spec(parser: argparse.ArgumentParser) -> str:
    """Return the description of the whole command as JSON."""
    registry.load()
    found = {
        "kartosql": __version__,
        "options": [_option(action) for action in parser._actions if action.option_strings and action.help != HIDDEN],
        "formats": list(FORMATS),
        "exit_codes": {str(code): about for code, about in EXIT_CODES.items()},
        "settings": [
            {"name": s.name, "default": s.default, "about": s.about, "in_sql": s.in_sql} for s in SETTINGS.values()
        ],
        "shell": {
            "commands": [
                {
                    "name": f".{c.name}",
                    "aliases": list(c.aliases),
                    "usage": c.synopsis,
                    "about": c.about,
                    "group": c.group,
                }
                for c in registry.COMMANDS.values()
            ],
            "options": [
                {"name": o.name, "default": o.default, "values": list(o.choices), "about": o.about}
                for o in OPTIONS.values()
            ],
        },
        "errors": error_codes(),
    }
    return json.dumps(found, ensure_ascii=False, indent=1)


HIDDEN = argparse.SUPPRESS


def _option(action: argparse.Action) -> dict[str, Any]:
    return {
        "names": list(action.option_strings),
        "value": action.metavar if action.nargs != 0 else None,
        "values": list(action.choices) if action.choices else [],
        "repeats": isinstance(action, argparse._AppendAction),
        "about": action.help,
    }


def error_codes() -> list[dict[str, str]]:
    """Return every error code with the first sentence of its section in the page of errors."""
    first = {code: " ".join(s.split("\n\n")[0].split()) for code, s in resources.error_sections().items()}
    return [{"code": code, "about": re.split(r"(?<=[.:]) ", text)[0]} for code, text in first.items()]
