"""Code of users is checked by mypy --strict against the types of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pyarrow as pa

import kartosql
from kartosql import typing
from kartosql.render.formats import WRITERS
from kartosql.settings import ENGINES, SETTINGS
from kartosql.sources import SOURCES

SAMPLE = Path(__file__).parent / "typed_sample.py"
ROOT = SAMPLE.parent.parent


def _mypy(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    code = tmp_path / "sample.py"
    code.write_text(text, "utf-8")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-pyarrow.*]\nignore_missing_imports = True\nfollow_imports = skip\n", "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), str(code)]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "sample")]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_the_sample_is_free_of_errors(tmp_path):
    done = _mypy(tmp_path, SAMPLE.read_text("utf-8"))
    assert done.returncode == 0, done.stdout + done.stderr


WRONG = """\
import kartosql
from kartosql.typing import ScanReportDict
con = kartosql.connect("s", engine="duckdb", memory_limit="1GB", timeout=5, history_days=3)
kartosql.connect("s", engine="sparc")
kartosql.connect("s", memory_limt="1GB")
kartosql.connect("s", timeout="soon")
con.sql("SELECT 1", engine="sparc")
con.sql("SELECT 1").write("x", "parket")
con.attach("s", "n", type="parqet")
con.publish("t", "u", "delt")
con.create_dataset("d", [], format="yaml")
report: ScanReportDict = con.explain("SELECT 1").to_dict()
report["engin"]
report["scans"][0]["datasets"][0]["files_selectd"]
con.append_to_dataset("d", [])["row"]
con.append_to_cube("c", [])["seed"]["rows"] + "x"
"""


def test_each_wrong_literal_and_key_is_noticed(tmp_path):
    done = _mypy(tmp_path, WRONG)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {*range(4, 12), *range(13, 17)}, done.stdout + done.stderr


def test_types_for_editors_are_those_of_the_program():
    assert get_args(typing.Engine) == ENGINES
    assert {*get_args(typing.FileFormat)} < {*WRITERS}
    assert {*get_args(typing.SourceType)} == {*SOURCES}
    assert {*typing.SettingValues.__annotations__} == {*SETTINGS} - {"engine", "attach"}


def test_reports_have_the_keys_of_their_types(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        done = con.create_dataset("d", pa.table({"p": [1, 2], "x": [1, 2]}), partition_on="p")
        report = con.explain("SELECT * FROM d WHERE p = 1").to_dict()
    assert done.keys() == typing.WriteReport.__required_keys__
    assert report.keys() == typing.ScanReportDict.__required_keys__
    (scan,) = report["scans"]
    assert scan.keys() == typing.ScanDict.__required_keys__
    assert scan["datasets"][0].keys() == typing.DatasetDict.__required_keys__
    assert scan["datasets"][0]["steps"][0].keys() == typing.StepDict.__required_keys__


def test_tab_shows_what_is_public(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        assert {"sql", "explain", "settings", "close"} < {*dir(con)}
        assert not {"watch_progress", "expect_one_statement", "tables"} & {*dir(con)}
        query = con.sql("SELECT 1 AS x")
        assert {"rows", "stats", "written", "show"} < {*dir(query)}
        assert not {"answer_over", "learn_sizes", "spark_frame", "execution"} & {*dir(query)}
        assert dir(query) == dir(con.sql("EXPLAIN SELECT 1")) == dir(con.sql("SHOW TABLES"))
    assert not [name for thing in (con, query) for name in dir(thing) if name.startswith("_")]
    assert dir(kartosql) == sorted([*kartosql.__all__, "dbapi", "load_ipython_extension", "spark"])
    assert kartosql.dbapi.apilevel == "2.0"


def test_wrong_code_is_noticed(tmp_path):
    done = _mypy(tmp_path, "import kartosql\nkartosql.connect(1)\nx: int = kartosql.connect('s').sql('SELECT 1')\n")
    assert done.stdout.count("error:") == 2, done.stdout + done.stderr
