"""The suite that SQLAlchemy has for dialects, in a process of its own, as it brings its own plugin of pytest.

``KARTOSQL_COMPLIANCE=all`` runs the whole of it, otherwise the part that is about rows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("compliance")
FEW = "CompoundSelect or LikeFunctions"


def test_the_suite_of_sqlalchemy_passes(tmp_path):
    pytest.importorskip("sqlalchemy")
    (tmp_path / "store").mkdir()
    command = [sys.executable, "-m", "pytest", "-c", "setup.cfg", "--confcutdir", ".", "-p", "plugin", "suite.py", "-q"]
    command += ["--dburi", f"kartosql:///{tmp_path / 'store'}", "-p", "no:cacheprovider"]
    command += [] if os.environ.get("KARTOSQL_COMPLIANCE") == "all" else ["-k", FEW]
    path = os.pathsep.join([str(SUITE), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=SUITE, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20
