from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kartosql.cli.options import FORMATS, SHELLS, command_parser
from kartosql.cli.repl import registry
from kartosql.cli.resources import completion
from kartosql.cli.spec import lines
from kartosql.settings import SETTINGS
from terminals import Spawn

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch) -> Path:
    place = tmp_path / "config.toml"
    place.write_text('[profiles.prod]\nurl = "s3://x"\n[profiles.test]\nurl = "y"\n')
    monkeypatch.setenv("KARTOSQL_CONFIG", str(place))
    return place


def test_the_spec_has_all_there_is(run):
    found = json.loads(run("--spec").out)
    named = {name for option in found["options"] for name in option["names"]}
    assert named == {name for action in command_parser()._actions for name in action.option_strings}
    assert found["formats"] == list(FORMATS)
    assert [s["name"] for s in found["settings"]] == list(SETTINGS)
    assert [c["name"] for c in found["shell"]["commands"]] == [f".{name}" for name in registry.COMMANDS]
    sections = re.findall(r"^## `([a-z-]+)`$", (DOCS / "errors.md").read_text("utf-8"), re.MULTILINE)
    assert [e["code"] for e in found["errors"]] == sections
    assert all(e["about"].endswith((".", ":")) for e in found["errors"])
    page = (DOCS / "cli.md").read_text("utf-8")
    for code in found["exit_codes"]:
        assert re.search(rf"^\| {code} \|", page, re.MULTILINE), code


def completed(*words: str) -> list[str]:
    return [line.split("\t")[0] for line in lines(command_parser(), words)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--for"], ["--format"]),
        (["store", "--st"], ["--stats", "--storage-option"]),
        (["--format", "js"], ["json", "jsonl"]),
        (["store", "--engine", ""], ["auto", "duckdb", "spark"]),
        (["store", "--set", "thr"], ["threads="]),
        (["store", "-f", "x"], [":files"]),
        (["store", "-c", "sel"], []),
        (["p"], ["prod", ":folders"]),
        (["@t"], ["@test", ":folders"]),
        (["d"], ["demo", ":folders"]),
        (["demo", ""], [":folders"]),
        (["--param", "a=1", "--stats", "pr"], ["prod", ":folders"]),
        (["store", ""], []),
        ([], ["cube", "demo", "serve", "prod", "test", ":folders"]),
        (["cube", "in"], ["info", "index"]),
        (["cube", "stats", "pr"], ["prod", ":folders"]),
        (["cube", "stats", "store", "c", "--in"], ["--include"]),
        (["cube", "stats", "store", "c", "--form"], []),
        (["cube", "query", "store", "c", "--form"], ["--format"]),
        (["cube", "nope", ""], []),
    ],
)
def test_words_of_the_command_line_are_completed(words, found):
    assert completed(*words) == found


def test_every_option_is_completed():
    for action in command_parser()._actions:
        for name in action.option_strings:
            assert name in completed("store", name)


def test_a_broken_config_file_completes_the_rest(config):
    config.write_text("[")
    assert completed("d") == ["demo", ":folders"]


def bash(tmp_path: Path, typed: str) -> list[str]:
    """Return what bash completes at the end of a line, with ``kartosql`` on its path."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    command = folder / "kartosql"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kartosql "$@"\n')
    command.chmod(0o700)
    words = typed.split(" ")
    code = f"""
        export PATH="{folder}:$PATH"
        eval "$(kartosql --completion bash)"
        COMP_WORDS=({" ".join(f"'{w}'" for w in words)}); COMP_CWORD={len(words) - 1}
        _kartosql
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=200, check=True, cwd=tmp_path)
    assert found.stderr == ""
    return found.stdout.split("\n")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path):
    (tmp_path / "report.sql").write_text("")
    (tmp_path / "stores").mkdir()
    assert bash(tmp_path, "kartosql --form") == ["--format"]
    assert bash(tmp_path, "kartosql store -f rep") == ["report.sql"]
    assert bash(tmp_path, "kartosql st") == ["stores"]
    assert bash(tmp_path, "kartosql pro") == ["prod"]


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_the_script_of_a_shell_is_one(shell, check, tmp_path):
    path = tmp_path / "script"
    path.write_text(completion(shell))
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    subprocess.run([shell, check, str(path)], check=True, timeout=200)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "kartosql"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kartosql "$@"\n')
    command.chmod(0o700)
    (tmp_path / "script.fish").write_text(completion("fish"))
    code = f"set -x PATH {folder} $PATH; source {tmp_path}/script.fish; complete -C 'kartosql store --format js'"
    env = {**os.environ, "HOME": str(tmp_path)}
    found = subprocess.run(["fish", "-c", code], capture_output=True, text=True, timeout=200, check=True, env=env)
    assert [line.split("\t")[0] for line in found.stdout.splitlines()] == ["json", "jsonl"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "kartosql"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kartosql "$@"\n')
    command.chmod(0o700)
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb"}
    process = Spawn("zsh", ["-f", "-i"], env=env, encoding="utf-8", timeout=300)
    try:
        # Written in two parts, so that it is not found where the terminal shows what was typed.
        process.sendline("autoload -U compinit; compinit -u; source =(kartosql --completion zsh); PS1='rea''dy> '")
        process.expect("ready> ")
        process.send("kartosql store --form\t")
        process.expect("--format")
    finally:
        process.close(force=True)


def test_every_shell_has_a_script(run):
    for shell in SHELLS:
        assert "--complete" in run("--completion", shell).out
    assert run("--completion", "tcsh").code == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_statement_and_leaves_no_file(cube, tmp_path, number, code):
    sql = "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b"
    out = tmp_path / "out"
    out.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "kartosql", cube, "-c", sql, "-o", str(out / "rows.csv")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not os.listdir(out):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.communicate(timeout=200) == (b"", b"terminated\n")
    assert process.returncode == code
    assert os.listdir(out) == []


def test_a_signal_that_the_starter_ignores_stays_ignored():
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from kartosql.cli.command import end_on_signals; end_on_signals()\n"
        "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert found.stdout == "True False\n"
