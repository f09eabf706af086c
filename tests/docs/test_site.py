"""The documentation is built as a site, and a browser shows it."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fences
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ".mkdocs.yml", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=fences.CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    made = {path.stem for path in site.glob("*.html")}
    assert {page.stem for page in (fences.CHECKOUT / "docs").glob("*.md")} <= made
    assert {"examples", "engines", "reference", "reports"} <= made


def test_the_reference_has_every_setting_and_code(site: Path) -> None:
    from kartosql.settings import SETTINGS

    text = (site / "reference.html").read_text("utf-8")
    assert {name for name in SETTINGS if f"<code>{name}</code>" not in text} == set()
    assert 'href="errors.html#unknown-column"' in text


def test_the_matrix_of_engines_names_what_spark_answers(site: Path) -> None:
    from kartosql.engines.spark.portable import functions

    text = html.unescape((site / "engines.html").read_text("utf-8"))
    assert {name for name in functions.RULES if f"<code>{name}</code>" not in text} == set()
    assert "<code>sum</code>" in text
    assert "<code>row_number</code>" in text


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text("utf-8")
        assert 'src="http' not in text, page
        assert [tag for tag in re.findall(r"<link[^>]*>", text) if 'href="http' in tag] == [], page


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    return found


def _dom(browser: str, page: Path, folder: Path, *options: str) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", *options]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_browser_shows_the_reports(site: Path, browser: str, tmp_path: Path) -> None:
    dom = _dom(browser, site / "reports.html", tmp_path, "--dump-dom")
    assert dom.count('class="report"') == 4
    for text in ("inverted index", "N375JB", "<svg", "partition key", "</table>"):
        assert text in dom


def test_a_browser_draws_the_reports(site: Path, browser: str, tmp_path: Path) -> None:
    shot = tmp_path / "reports.png"
    _dom(browser, site / "reports.html", tmp_path, f"--screenshot={shot}", "--window-size=1200,2400")
    assert shot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert shot.stat().st_size > 50_000  # a blank page takes a tenth of that
