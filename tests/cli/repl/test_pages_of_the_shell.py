"""docs/shell.md and the page for those who come from kartothek_cube say what there is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from kartosql.cli.repl import registry

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_generated_parts_of_the_page_are_up_to_date():
    page = (DOCS / "shell.md").read_text("utf-8")
    # Else run: python docs/shell_tables.py
    assert runpy.run_path(str(DOCS / "shell_tables.py"))["renewed"](page) == page


def test_every_command_is_on_the_page_and_no_other():
    registry.load()
    page = (DOCS / "shell.md").read_text("utf-8")
    assert set(re.findall(r"^\| `\.(\w+)", page, re.MULTILINE)) == set(registry.COMMANDS)


def test_commands_that_pages_name_exist():
    registry.load()
    for page in ("shell.md", "coming-from-kartothek-cube.md"):
        for name in re.findall(r"`\.([a-z]+)", (DOCS / page).read_text("utf-8")):
            assert name in registry.COMMANDS, f"{page}: .{name}"


def test_the_commands_of_kartothek_cube_are_here():
    registry.load()
    page = (DOCS / "coming-from-kartothek-cube.md").read_text("utf-8")
    for name in ("info", "stats", "query", "copy", "delete", "cleanup", "index"):
        assert name in registry.COMMANDS
        assert f"| `{name}" in page
        assert f"`.{name}" in page


def test_commands_have_no_word_in_common():
    registry.load()
    words = [f".{c.name}" for c in registry.COMMANDS.values()] + [
        a for c in registry.COMMANDS.values() for a in c.aliases
    ]
    assert len(words) == len(set(words)) == len(registry.words())
