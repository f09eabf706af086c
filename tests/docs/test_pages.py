"""The pages name what there is, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import fences
import pytest

from codes import error_codes
from kartosql.cli.cube import COMMANDS, parser_of
from kartosql.cli.options import FORMATS, command_parser
from kartosql.settings import SETTINGS

DOCS = fences.CHECKOUT / "docs"
SOURCE = fences.CHECKOUT / "src" / "kartosql"
_CODE = re.compile(r"[a-z]+(-[a-z]+)*")


# -- README and CI -----------------------------------------------------------------------------


def _sh_blocks() -> list[str]:
    return fences.blocks(fences.CHECKOUT / "README.md", "sh")


def test_readme_has_two_commands_of_one_line_each() -> None:
    found = _sh_blocks()
    assert len(found) == 2
    for text in found:
        logical = text.rstrip("\n").replace("\\\n", "")
        assert "\n" not in logical
        subprocess.run(["bash", "-n", "-c", text], check=True)


def test_readme_commands_run_the_demo_and_the_tests() -> None:
    demo, tests = (text.rstrip("\n") for text in _sh_blocks())
    assert demo.endswith(".venv/bin/kartosql demo")
    assert "pip install '.[shell]'" in demo
    assert tests.endswith(".venv/bin/python -m pytest")
    assert "pip install --editable '.[all,dev]'" in tests


def test_ci_runs_the_second_command_of_readme() -> None:
    script = fences.CHECKOUT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    shown = subprocess.run([script, "--show"], check=True, capture_output=True, text=True, cwd="/").stdout
    assert shown == _sh_blocks()[1]


# -- errors ------------------------------------------------------------------------------------


def test_every_error_code_has_a_section_and_every_section_a_code() -> None:
    sections = re.findall(r"^## `?([a-z-]+)`?$", (DOCS / "errors.md").read_text("utf-8"), re.MULTILINE)
    codes = error_codes()
    assert {"unknown-column", "null-in-key", "not-grouped", "invalid-metadata", "internal"} <= codes
    assert sorted(set(sections)) == sorted(sections)
    assert set(sections) == codes


# -- options, settings, formats ----------------------------------------------------------------


def test_cli_page_names_every_option_and_no_other() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    parsers = [command_parser(), *map(parser_of, COMMANDS)]
    options = {o for parser in parsers for action in parser._actions for o in action.option_strings}
    assert {o for o in options if not re.search(rf"`{re.escape(o)}[ `]", text)} == set()
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= options


def test_cli_page_names_every_format() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    assert {f for f in FORMATS if f"`{f}`" not in text} == set()


def test_python_page_names_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (DOCS / "python.md").read_text("utf-8"), re.MULTILINE)
    texts = {name: default.strip().strip("`") for name, default in rows if name in SETTINGS}
    shown = {name: None if text == "none" else SETTINGS[name].parse(text) for name, text in texts.items()}
    assert shown == {s.name: s.default for s in SETTINGS.values()}


# -- pages -------------------------------------------------------------------------------------


def test_index_lists_every_page() -> None:
    text = (DOCS / "index.md").read_text("utf-8")
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", text))
    assert listed == {p.name for p in DOCS.glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", fences.PAGES, ids=lambda p: p.stem)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", text):
        other = page.parent / target if target else page
        heads = re.findall(r"^#+ (.+)$", other.read_text("utf-8"), re.MULTILINE)
        assert anchor in {_anchor(h) for h in heads}, f"{target}#{anchor}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", fences.PAGES, ids=lambda p: p.stem)
def test_blocks_of_a_page_are_in_languages_that_are_tested(page: Path) -> None:
    # The block of Spark runs where there is a session, see tests/write/spark.
    more = {"README.md": {"sh"}, "recipes.md": {"sh"}, "writing.md": {"pyspark"}, "spark.md": {"pyspark"}}
    allowed = {"python", "sql", "console", "text", "json"} | more.get(page.name, set())
    assert fences.languages(page) <= allowed


def test_module_names_in_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", text))
    assert len(named) > 20
    assert {n for n in named if not (SOURCE / n).exists() and not (fences.CHECKOUT / n).exists()} == set()
