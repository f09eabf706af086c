"""``%ksql`` in IPython."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from IPython.core.error import UsageError as MagicError
from IPython.core.interactiveshell import InteractiveShell

import kartosql
from kartosql.store import Store
from written import write_dataset


@pytest.fixture(scope="module")
def url():
    store = Store(f"memory://{uuid.uuid4().hex}")
    write_dataset(store, "t", pa.table({"p": [1, 1, 2], "v": ["a", "b", "c"]}), partition_on="p")
    return store.url


@pytest.fixture
def shell(monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "kartosql")
    yield shell
    connection = shell.magics_manager.registry["KartosqlMagics"].connection
    if connection is not None:
        connection.close()
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def test_a_line_and_a_cell_give_results(shell, url):
    assert shell.run_line_magic("ksql", f"--connect {url}") is None
    assert shell.run_line_magic("ksql", "SELECT count(*) FROM t").rows() == [(3,)]
    found = shell.run_cell_magic("ksql", "", "SET threads = 1;\nSELECT v FROM t\nWHERE p = 2;\n")
    assert found.rows() == [("c",)]
    assert "<table" in found._repr_html_()


def test_variables_of_the_notebook_are_parameters(shell, url):
    shell.user_ns["wanted"] = 1
    shell.run_line_magic("ksql", f"--connect {url}")
    assert shell.run_line_magic("ksql", "SELECT v FROM t WHERE p = :wanted ORDER BY v").rows() == [("a",), ("b",)]


def test_results_are_kept_in_a_variable(shell, url):
    assert shell.run_line_magic("ksql", f"--connect {url} --to kept SELECT max(v) FROM t") is None
    assert shell.user_ns["kept"].rows() == [("c",)]


def test_explain_tells_what_would_be_read(shell, url):
    shell.run_line_magic("ksql", f"--connect {url}")
    report = shell.run_cell_magic("ksql", "--explain", "SELECT v FROM t WHERE p = 2")
    assert report.files_selected == 1


def test_it_is_read_only_unless_asked(shell, url):
    shell.run_line_magic("ksql", f"--connect {url}")
    with pytest.raises(MagicError, match="read-only"):
        shell.run_line_magic("ksql", "CREATE DATASET d AS SELECT 1 AS x")
    shell.run_line_magic("ksql", f"--connect {url} --write")
    assert shell.run_line_magic("ksql", "CREATE DATASET d AS SELECT 1 AS x").written == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("SELECT 1", "There is no connection yet"),
        ("--nonsense", "unrecognized arguments"),
        ("--connect", "expected one argument"),
        ("--connect memory://nowhere-at-all SELECT nothing", "nothing"),
    ],
)
def test_errors_are_messages_without_a_traceback(shell, capsys, line, message):
    result = shell.run_cell(f"%ksql {line}")
    assert isinstance(result.error_in_exec, MagicError)
    out, err = capsys.readouterr()
    assert message in out + err
    assert "Traceback" not in out + err


def test_without_anything_it_shows_how(shell, capsys):
    shell.run_line_magic("ksql", "")
    assert "%ksql --connect URL" in capsys.readouterr().out


def test_the_package_does_not_import_ipython():
    import subprocess
    import sys

    assert kartosql.__name__
    code = "import kartosql, sys; kartosql.connect; assert 'IPython' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
