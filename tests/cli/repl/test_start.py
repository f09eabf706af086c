from __future__ import annotations

import subprocess
import sys

import pytest

from kartosql.cli.options import parse_options
from kartosql.cli.repl import start
from kartosql.errors import UsageError


def test_without_prompt_toolkit_the_shell_says_how_to_get_it(sales, monkeypatch):
    for name in [n for n in sys.modules if n.startswith(("prompt_toolkit", "kartosql.cli.repl.front"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("front", "keys", "looks", "menu", "history"):
        monkeypatch.delitem(sys.modules, f"kartosql.cli.repl.{name}", raising=False)
        monkeypatch.delattr(f"kartosql.cli.repl.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    monkeypatch.setattr(start, "wants_plain", lambda screen: False)
    with pytest.raises(UsageError) as e:
        start.run_shell(parse_options([sales]))
    assert e.value.code == "missing-extra"
    assert "kartosql[shell]" in str(e.value.hint)


def test_the_prompt_waits_for_neither_arrow_nor_the_parser():
    code = (
        "import sys, kartosql.cli.command, kartosql.cli.repl.start, kartosql.cli.repl.front; "
        "print([m for m in ('pyarrow', 'duckdb', 'sqlglot', 'fsspec', 'numpy', 'kartosql.store') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "[]\n"


@pytest.fixture
def typed(monkeypatch, capsys):
    """Return a function that runs the shell with lines as if they were typed, and returns what it prints."""

    def typed(*lines: str, options: tuple[str, ...] = ()) -> str:
        waiting = iter(lines)

        def answer() -> str:
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", answer)
        start.run_shell(parse_options(list(options)))
        return capsys.readouterr().out

    return typed


def test_options_of_the_command_line_reach_the_shell(typed, sales, tmp_path):
    found = typed("select $x + 1 as y;", options=(sales, "--format", "jsonl", "--param", "x=2"))
    assert '{"y":3}' in found
    typed("select 1 as a;", "select 2 as a;", options=(sales, "-o", str(tmp_path / "all.csv")))
    assert (tmp_path / "all.csv").read_text() == "a\n1\n2\n"


def test_without_a_store_it_says_how_to_open_one(typed, sales):
    found = typed("select 41 + 1 as answer;", f".open {sales}", ".mode csv", "select count(*) as n from shops;")
    assert ".open URL opens one" in found
    assert "│      42 │" in found
    assert "n\n3\n" in found


def test_the_profile_of_the_config_file_is_opened(typed, sales, tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text(
        f'[profiles.mine]\nurl = "{sales}"\n[shell]\nprofile = "mine"\nmode = "csv"\nrowz = 3\n'
    )
    found = typed("select count(*) as n from shops;")
    assert found.startswith("warning: ")
    assert "There is no option 'rowz'." in found
    assert "n\n3\n" in found


def test_an_interrupted_line_drops_the_statement(typed, sales, monkeypatch):
    lines = iter(["select 'half", KeyboardInterrupt, "select 1 as one;", EOFError])

    def answer() -> str:
        found = next(lines)
        if isinstance(found, str):
            return found
        raise found

    monkeypatch.setattr("builtins.input", answer)
    start.run_shell(parse_options([sales]))
