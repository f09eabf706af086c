"""README, docs and sql_examples do what they say, on the demo store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import fences
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.demo import build_flights
from kartosql.sql import split_statements

EXAMPLES = sorted((fences.CHECKOUT / "sql_examples").glob("*.sql"))


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "kartosql-demo"
    build_flights(folder)
    with kartosql.connect(folder) as con:
        weather = con.sql("SELECT * FROM flights.weather").arrow()
    pq.write_to_dataset(weather, folder.parent / "weather", partition_cols=["month"])
    return folder


@pytest.fixture
def demo_copy(demo_folder: Path, tmp_path: Path) -> Path:
    """The demo store for one test, which may write to it, and beside it the folder of docs/attach.md."""
    shutil.copytree(demo_folder.parent / "weather", tmp_path / "weather", copy_function=os.link)
    return shutil.copytree(demo_folder, tmp_path / "kartosql-demo", copy_function=os.link)


@pytest.fixture
def _beside_demo(demo_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder in which ./kartosql-demo is the demo store."""
    monkeypatch.chdir(demo_copy.parent)


def test_there_are_examples_and_each_has_its_output() -> None:
    assert len(EXAMPLES) >= 8
    found = {p.stem for p in EXAMPLES[0].parent.glob("*.expected")}
    assert found == {p.stem for p in EXAMPLES}
    assert len({name.partition("_")[0] for name in found}) == len(found)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_gives_its_expected_output(path: Path, demo_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo_copy.parent)
    code, printed = fences.command([str(demo_copy), "--write", "-f", str(path), "--format", "csv"])
    assert (code, fences.steady(printed)) == (0, fences.steady(path.with_suffix(".expected").read_text("utf-8")))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_says_what_it_shows(path: Path) -> None:
    assert path.read_text("utf-8").startswith("-- ")


def _with(language: str) -> list[Path]:
    return [page for page in fences.PAGES if language in fences.languages(page)]


@pytest.mark.usefixtures("_beside_demo")
@pytest.mark.parametrize("page", _with("python"), ids=lambda p: p.stem)
def test_python_of_a_page_runs(page: Path) -> None:
    fences.run_python(page)


@pytest.mark.usefixtures("_beside_demo")
@pytest.mark.parametrize("page", _with("console"), ids=lambda p: p.stem)
def test_commands_of_a_page_print_what_it_shows(page: Path) -> None:
    for text in fences.blocks(page, "console"):
        fences.run_console(text)


@pytest.mark.parametrize("page", [p for p in _with("sh") if p.name != "README.md"], ids=lambda p: p.stem)
def test_commands_of_a_page_run(page: Path, demo_copy: Path) -> None:
    for text in fences.blocks(page, "sh"):
        fences.run_shell(text, demo_copy.parent)


def test_a_command_that_fails_in_a_page_is_found(tmp_path: Path) -> None:
    for text in ("kartosql --profile nightly\necho done", "kartosql nowhere -c 'SELECT 1' | cat"):
        with pytest.raises(AssertionError):
            fences.run_shell(text, tmp_path)


@pytest.mark.parametrize("page", _with("sql"), ids=lambda p: p.stem)
def test_sql_of_a_page_runs_on_the_demo(page: Path, demo_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo_copy.parent)
    for text in fences.blocks(page, "sql"):
        with kartosql.connect(str(demo_copy)) as con:
            for statement in split_statements(text):
                assert con.sql(statement).columns, statement


def test_only_times_and_sizes_may_differ_from_an_expected_output() -> None:
    shown = "flights: 1 of 12 files, 164.8 KiB\nplanning, ms: parse 0.6, bind 1.7, files 0.9\n"
    assert fences.steady(shown) == fences.steady(shown.replace("164.8", "99.0").replace("0.9", "12.1"))
    assert fences.steady(shown) != fences.steady(shown.replace("1 of 12", "2 of 12"))
    assert fences.steady(shown) != fences.steady(shown.replace(", files 0.9", ""))


def test_a_wrong_output_in_a_page_is_found(demo_folder: Path) -> None:
    shown = f'$ kartosql {demo_folder} -c "SELECT 1 AS x"\nx\n2\n'
    with pytest.raises(AssertionError, match="expected"):
        fences.run_console(shown)
    fences.run_console(shown.replace("2\n", "1\n"))


def test_the_spark_page_does_what_it_says(spark: Any, demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = fences.blocks(fences.CHECKOUT / "docs" / "spark.md", "pyspark")
    exec(text.replace('"kartosql-demo"', repr(str(demo_folder))), {"spark": spark})
    shown = capsys.readouterr().out
    assert "|    1|27004|" in shown
    assert "delay" in shown
    assert not [t.name for t in spark.catalog.listTables() if t.name.startswith("flights")]
