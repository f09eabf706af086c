from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kartosql.cli import config
from kartosql.errors import UsageError


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
