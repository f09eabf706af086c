"""Code of users is checked by mypy --strict against the types of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_wrong_code_is_noticed(tmp_path):
    done = _mypy(tmp_path, "import kartosql\nkartosql.connect(1)\nx: int = kartosql.connect('s').sql('SELECT 1')\n")
    assert done.stdout.count("error:") == 2, done.stdout + done.stderr
