from __future__ import annotations

import os
from pathlib import Path

import pytest

from kartosql.cli.repl.commands import examples
from kartosql.demo import build_flights


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("tour") / "demo")
    build_flights(folder)
    return folder


def files(folder: str) -> list[tuple[str, int]]:
    return sorted((str(p), os.stat(p).st_mtime_ns) for p in Path(folder).rglob("*") if p.is_file())


def test_the_tour_plays_one_example_after_the_other(shell_in, demo):
    session = shell_in(demo, read_only=True)
    names = examples()
    assert len(names) >= 20
    listed = session(".tour list").splitlines()
    assert len(listed) == len(names)
    assert all(line.rstrip().endswith((".", ":")) for line in listed)
    first = session(".tour")
    assert first.startswith(f"Example 1 of {len(names)}: {names[0]}\n-- ")
    assert "┌" in first
    assert "error" not in first
    assert session(".tour").startswith(f"Example 2 of {len(names)}: {names[1]}\n")
    assert "error[invalid-argument]" in session(".tour 99")


def test_what_an_example_writes_changes_nothing(shell_in, demo):
    session = shell_in(demo, read_only=True)
    before = files(demo)
    number = 1 + next(i for i, name in enumerate(examples()) if name.endswith("_delete"))
    found = session(f".tour {number}")
    assert "error" not in found
    assert "flights" in session(".tables")
    assert files(demo) == before
    assert session.shell.connection.read_only


def test_examples_that_name_folders_can_be_played_wherever_the_shell_runs_and_again(
    shell_in, demo, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    session = shell_in(demo, read_only=True)
    numbers = [n for n, name in enumerate(examples(), 1) if "copy" in name or "attach" in name]
    assert len(numbers) == 4
    for number in [*numbers, *numbers]:
        found = session(f".tour {number}")
        assert "error[" not in found, number
        assert ".tour plays the next one" in found
    assert (os.getcwd(), os.listdir(tmp_path)) == (str(tmp_path), [])


def test_without_the_demo_it_is_built(shell, monkeypatch, demo):
    built = []
    monkeypatch.setattr(
        "kartosql.cli.repl.commands.build_flights", lambda store: built.append(store) or build_flights(store)
    )
    assert "┌" in shell(".tour 1")
    assert len(built) == 1


def test_without_the_examples_it_says_where_they_are(shell, monkeypatch):
    monkeypatch.setattr("kartosql.cli.repl.commands.examples", list)
    assert "The examples are not installed." in shell(".tour")
