"""The documentation is built as a site, and a browser shows it."""

from __future__ import annotations

import functools
import html
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fences
import pytest

from chromium import Browser


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
    from kartosql.engines.spark.portable import expressions, functions

    assert expressions.texts.rule is expressions.times.rule is functions.rule  # all rules are known
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
def address(site: Path) -> Iterator[str]:
    """The address at which a server of files shows the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_browser_shows_the_reports(address: str, browser: Browser, tmp_path: Path) -> None:
    browser.open(f"{address}/reports.html")
    assert browser.js("document.querySelectorAll('.report').length") == 4
    shown = browser.js("document.querySelector('article').innerText")
    for text in ("inverted index", "N375JB", "partition key"):
        assert text in shown
    assert browser.js("document.querySelectorAll('.report svg').length") > 0
    browser.shot(tmp_path / "reports.png")
    assert (tmp_path / "reports.png").stat().st_size > 20_000  # a blank page takes a tenth of that


@pytest.mark.parametrize("width", [1280, 400])
def test_pages_fit_have_their_pictures_and_fetch_nothing_from_elsewhere(
    address: str, browser: Browser, site: Path, width: int
) -> None:
    wrong: dict[str, object] = {}
    for page in sorted(site.glob("*.html")):
        browser.open(f"{address}/{page.name}", width)
        far = [url for url in browser.requests if not url.startswith(f"{address}/")]
        lost = browser.js("[...document.images].filter(i => !i.naturalWidth || i.width > innerWidth).map(i => i.src)")
        over = browser.js("document.documentElement.scrollWidth") - width
        if far or lost or over > 0:
            wrong[page.name] = (far, lost, over)
    assert wrong == {}


def test_pages_are_light_or_dark_as_the_system_is(address: str, browser: Browser) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        browser.open(f"{address}/index.html", scheme=scheme)
        browser.wait_for("document.body.dataset.mdColorMedia")
        color = browser.js("getComputedStyle(document.body).backgroundColor")
        grounds[scheme] = sum(int(part) for part in re.findall(r"\d+", color)[:3])
    assert grounds["light"] > 700
    assert grounds["dark"] < 150


def test_the_first_page_has_all_that_a_newcomer_looks_for(address: str, browser: Browser) -> None:
    browser.open(f"{address}/index.html")
    assert browser.js("[...document.querySelectorAll('article h2')].map(e => e.firstChild.data)") == [
        *("Start", "Use", "Write", "Operate", "Reference", "Inside")
    ]
    assert browser.js("[...document.querySelectorAll('.md-tabs a')].map(e => e.innerText)")[1:] == [
        *("Start", "Use", "Write", "Operate", "Reference", "Inside")
    ]
    above = "document.querySelector('article h2').getBoundingClientRect().top"
    assert browser.js(f"document.querySelector('article img').getBoundingClientRect().bottom < {above}")
    # No line of its code is cut off.
    assert (
        browser.js("[...document.querySelectorAll('article pre code')].filter(e => e.scrollWidth > e.clientWidth)")
        == []
    )


def test_pictures_of_coverage_have_a_legend_and_no_text_over_another(address: str, browser: Browser) -> None:
    browser.open(f"{address}/reports.html")
    texts = browser.js("""[...document.querySelectorAll('.report svg text')].filter(e => !e.getAttribute('transform'))
        .map(e => [e.textContent, e.getBoundingClientRect().toJSON()])""")
    assert "unknown to the seed" in [text for text, _ in texts]
    for at, (text, box) in enumerate(texts):
        for other, of in texts[at + 1 :]:
            beside = box["right"] <= of["left"] or of["right"] <= box["left"]
            above = box["bottom"] <= of["top"] + 3 or of["bottom"] <= box["top"] + 3
            assert beside or above, (text, other)
