from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from kartosql.cli import resources

CHECKOUT = Path(__file__).resolve().parents[2]


def test_pages_and_examples_are_found_in_a_checkout():
    assert resources.text("docs/errors.md").startswith("# Errors")
    assert "01_one_aircraft.sql" in resources.names("sql_examples")
    assert resources.names("no such folder") == []


def test_an_installed_package_has_them_too(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        timeout=280,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "from kartosql.cli import resources; import kartosql\n"
        "print(kartosql.__file__); print(resources.path('docs/errors.md'))\n"
        "print(len(resources.text('docs/errors.md')), len(resources.names('sql_examples')))\n"
        "print([resources.completion(shell)[:8] for shell in ('bash', 'zsh', 'fish')])"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, env=env, check=True
    )
    package, page, counts, scripts = found.stdout.splitlines()
    assert package.startswith(str(tmp_path))
    assert page.startswith(str(tmp_path))
    assert scripts == "['_kartosq', '#compdef', 'function']"
    assert counts.split()[1] == str(len(os.listdir(CHECKOUT / "sql_examples")))
