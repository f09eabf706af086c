from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kartosql.cli import config
from kartosql.errors import UsageError


def _ask(folder, *arguments):
    command = [sys.executable, "-m", "kartosql", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_store_begins_when_it_is_first_written_to(tmp_path):
    made = _ask(tmp_path, "fresh", "--write", "-c", "CREATE DATASET t AS SELECT 1 AS a; SELECT a FROM t")
    assert (made.returncode, made.stderr) == (0, "fresh is new: what is written makes it a store.\n")
    assert made.stdout.endswith("a\n1\n")
    again = _ask(tmp_path, "fresh", "--write", "-c", "SELECT a FROM t")
    assert (again.returncode, again.stdout, again.stderr) == (0, "a\n1\n", "")


def test_a_new_store_that_nothing_is_written_to_goes_away(tmp_path):
    asked = _ask(tmp_path, "fresh", "--write", "-c", "SELECT 1 AS a")
    assert (asked.returncode, asked.stdout) == (0, "a\n1\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "more"),
    [("fresh", []), ("lakes", ["--write"]), ("prods", ["--write"]), ("a/b", ["--write"]), ("lake/x.csv", ["--write"])],
)
def test_no_store_is_made_of_a_slip(run, place, tmp_path, monkeypatch, path, more):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "x.csv").write_text("a\n1\n")
    place.write_text('[profiles.prod]\nurl = "lake"\n')
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert "error[store-not-found]" in run(path, *more, "-c", "SELECT 1").err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("KARTOSQL_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


def test_a_profile_is_a_store_with_settings(run, cube, place):
    place.write_text(f'[profiles.prod]\nurl = "{cube}"\nsettings = {{ timeout = 5 }}\n')
    sql = "SELECT count(*) AS n FROM c"
    assert run("prod", "-c", sql).out == run("@prod", "-c", sql).out == "n\n4\n"
    shown = run("prod", "-c", "SHOW SETTINGS", "--format", "csv").out
    assert "timeout,5.0," in shown
    assert "timeout,7.0," in run("prod", "--timeout", "7", "-c", "SHOW SETTINGS").out


def test_only_a_profile_that_says_so_may_write(run, cube, place):
    place.write_text(f'[profiles.a]\nurl = "{cube}"\n[profiles.b]\nurl = "{cube}"\nwrite = true\n')
    sql = "CLEANUP c"
    assert "error[read-only]" in run("a", "-c", sql).err
    assert run("b", "-c", sql).code == 0


def test_a_folder_comes_before_a_profile_but_not_before_its_sign(run, cube, place, tmp_path, monkeypatch):
    place.write_text(f'[profiles.prod]\nurl = "{cube}"\n')
    (tmp_path / "prod").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("prod", "-c", "SHOW CUBES", "--format", "jsonl").out == ""
    assert run("@prod", "-c", "SHOW CUBES", "--format", "jsonl").out != ""


def test_an_unknown_profile_is_told_with_those_there_are(run, place):
    place.write_text('[profiles.prod]\nurl = "x"\n')
    found = run("@prd", "-c", "SELECT 1")
    assert found.code == 2
    assert found.err.startswith("error[unknown-profile]")
    assert "Did you mean prod?" in found.err
    assert "error[store-not-found]" in run("prd", "-c", "SELECT 1").err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[", "is no TOML"),
        ("x = 1", "has 'x'"),
        ("profiles = 1", "'profiles' is no table"),
        ("[profiles.a]", "has no url"),
        ("[profiles]\na = 1", "[profiles.a] is no table"),
        ('[profiles.a]\nulr = "x"', "Did you mean url?"),
        ("[profiles.a]\nurl = 5", "url is not a text"),
        ('[profiles.a]\nurl = "x"\nwrite = "yes"', "write is not true or false"),
        (b"\xff\xfe", "is not UTF-8"),
        ("#" * 1_000_001, "more than 1,000,000 bytes"),
        ("a = " + "[" * 100_000, "is no TOML"),
    ],
)
def test_a_broken_config_file_is_told_with_its_place(run, place, text, what):
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = run("@prod", "-c", "SELECT 1")
    assert found.code == 2
    assert found.err.startswith("error[invalid-config]")
    assert str(place) in found.err
    assert what in found.err


def test_a_config_file_that_is_a_folder_is_told(run, place):
    place.mkdir()
    assert "error[invalid-config]" in run("@prod", "-c", "SELECT 1").err


def test_without_a_config_file_there_is_no_profile(place):
    assert config.read().profiles == {}
    with pytest.raises(UsageError, match="no profile 'x'"):
        config.resolve("@x")
    assert config.resolve("s3://x/y").url == "s3://x/y"


def test_a_local_folder_needs_no_config_at_all(cube):
    code = (
        "import sys; from kartosql.cli.main import main; code = main([sys.argv[1], '-c', 'SELECT 1 AS a'])\n"
        "print([m for m in ('platformdirs', 'tomllib', 'prompt_toolkit', 'rich') if m in sys.modules], code)"
    )
    found = subprocess.run([sys.executable, "-c", code, cube], capture_output=True, text=True, timeout=200)
    assert found.stdout.splitlines()[-1] == "[] 0"


def test_the_folder_of_the_config_file_is_that_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv("KARTOSQL_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert config.path() == os.path.join(tmp_path, "kartosql", "config.toml")


def test_what_a_profile_and_the_project_attach_is_there_in_each_session(run, cube, place, tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("a;b\n1;x\n")
    attach = '\n[profiles.prod.attach.mine]\nurl = "x.csv"\ntype = "csv"\nDELIM = ";"\n'
    place.write_text(f'[profiles.prod]\nurl = "{cube}"\n{attach}')
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "kartosql.toml").write_text('[attach.near]\nurl = "../x.csv"\ntype = "csv"\n')
    monkeypatch.chdir(tmp_path / "work")
    assert run("@prod", "-c", "SELECT b FROM mine").out == "b\nx\n"
    assert run("@prod", "-c", "SELECT count(*) AS n FROM near").out == "n\n1\n"
    listed = run(str(cube), "-c", "SHOW TABLES").out.splitlines()
    assert "near,csv files" in listed
    assert "mine,csv files" not in listed
    assert "error[not-allowed]" not in run("@prod", "--set", "attach=false", "-c", "SELECT count(*) FROM c").err
    assert "error[unknown-table]" in run("@prod", "--set", "attach=false", "-c", "FROM mine").err


def test_what_is_wrong_with_something_to_attach_is_told(run, cube, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kartosql.toml").write_text('[attach.t]\ntype = "csv"\n')
    found = run(str(cube), "-c", "SELECT 1")
    assert found.code == 2
    assert "error[invalid-config]" in found.err
    assert "[attach.t] has no url" in found.err
    (tmp_path / "kartosql.toml").write_text('[attach.t]\nurl = "nowhere"\ntype = "orc"\n')
    assert "error[unknown-type]" in run(str(cube), "-c", "FROM t").err
    assert run(str(cube), "-c", "SELECT count(*) AS n FROM c").out == "n\n4\n"
