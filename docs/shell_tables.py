"""The tables of ``docs/shell.md``, from what declares commands and options: ``python docs/shell_tables.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kartosql.cli.repl import registry
from kartosql.cli.repl.options import OPTIONS

PAGE = Path(__file__).with_name("shell.md")
_PART = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> str:
    """Return the tables of all commands, by group."""
    registry.load()
    parts = []
    for group in registry.GROUPS:
        parts.append(f"\n### {group}\n\n| command | also | |\n|---|---|---|\n")
        for command in registry.COMMANDS.values():
            if command.group == group:
                aliases = " ".join(f"`{alias}`" for alias in command.aliases)
                parts.append(f"| `{_cell(command.synopsis)}` | {aliases} | {_cell(command.about)} |\n")
    return "".join(parts) + "\n"


def options() -> str:
    """Return the table of all options."""
    lines = ["\n| option | default | values | |\n|---|---|---|---|\n"]
    for option in OPTIONS.values():
        default = ("on" if option.default else "off") if isinstance(option.default, bool) else str(option.default)
        values = ", ".join(f"`{c}`" for c in option.choices) or option.expected
        lines.append(f"| `{option.name}` | {f'`{default}`' if default else ''} | {values} | {option.about} |\n")
    return "".join(lines) + "\n"


def renewed(page: str) -> str:
    """Return a page with its generated parts made anew."""
    made = {"commands": commands, "options": options}
    return _PART.sub(lambda match: match[1] + made[match[2]]() + match[3], page)


def main() -> int:
    """Write the page of the checkout anew."""
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
