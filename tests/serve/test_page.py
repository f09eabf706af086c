"""The page of the server in a browser: a token, rows, the report, coverage, errors."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import kartosql

TOKEN = "token-of-the-page"
HOSTILE = "<img src=x onerror=\"document.title='run'\">"
SHOWN = "(document.getElementById('state').innerText)"


@pytest.fixture(scope="module")
def page(tmp_path_factory, browser):
    folder = tmp_path_factory.mktemp("page")
    (folder / "store").mkdir()
    with kartosql.connect(folder / "store") as con:
        cube = kartosql.Cube("c", ["x"], ["p"], index_columns=["k"])
        rows = con.sql("SELECT i // 10 p, i x, i k, 1.5 v FROM range(40) r(i)").arrow()
        con.build_cube(cube, {"seed": rows, "e": con.sql("SELECT 3 p, i x, i w FROM range(30, 50) r(i)").arrow()})
        con.sql(f"CREATE DATASET \"a-b\" AS SELECT '{HOSTILE.replace(chr(39), chr(39) * 2)}' AS s, NULL::INT AS n")
    (folder / "tokens").write_text(TOKEN)
    command = [sys.executable, "-m", "kartosql", "serve", str(folder / "store"), "--workers", "1"]
    process = subprocess.Popen([*command, "--token-file", str(folder / "tokens")], stdout=subprocess.PIPE, text=True)
    end = threading.Timer(600, process.kill)
    end.start()
    with process:
        lines = dict(line.split() for line in iter(process.stdout.readline, "ready\n") if line)
        browser.open(lines["http"])
        browser.address = lines["http"]
        yield browser
        process.terminate()
    end.cancel()


def _given(page, sql, button="run"):
    """Run a statement as somebody does who types it; returns the line of its state."""
    page.js(f"document.getElementById('state').innerText = ''; document.getElementById('sql').value = {sql!r}")
    page.js(f"document.getElementById('{button}').click()")
    return page.wait_for(f"['', 'running'].includes{SHOWN} ? '' : {SHOWN}")


def _cells(page, of):
    return page.js(f"[...document.querySelectorAll('#{of} tr')].map(r => [...r.cells].map(c => c.innerText))")


def test_without_a_token_the_page_says_what_is_needed_and_with_it_lists_tables(page):
    assert "A valid token is needed." in page.wait_for(f"{SHOWN}.includes('token') && {SHOWN}")
    page.js(f"t = document.getElementById('token'); t.value = '{TOKEN}'; t.dispatchEvent(new Event('change'))")
    page.wait_for(f"{SHOWN}.includes('tables in')")
    offered = page.js("[...document.getElementById('of').options].map(o => o.text)")
    assert offered == ["c (cube)", "c.e (dataset of a cube)", "c.seed (dataset of a cube)", '"a-b" (dataset)']


def test_a_statement_shows_its_rows_and_what_was_read(page):
    assert _given(page, "SELECT x, v FROM c WHERE k = 7").startswith("1 row in")
    assert _cells(page, "rows") == [["x\nBIGINT", "v\nDECIMAL(2,1)"], ["7", "1.5"]]
    report = _cells(page, "report")
    assert report[0] == ["table", "condition", "decided by", "files", "bytes"]
    assert report[1][:4] == ["c: seed", "", "", "1 of 4"]
    assert report[2][:4] == ["", "k = 7", "inverted index", "4 → 1"]
    assert report[3][:3] == ["c: e", "no column is used", "not opened"]


def test_numbers_are_shown_with_all_their_digits(page):
    values = ["9007199254740993", "-170141183460469231731687303715884105727", "12345678901234567.25"]
    sql = f"SELECT {', '.join(values)}, [9007199254740993] AS d, 2 AS e, 'f' AS f"
    assert _given(page, sql).startswith("1 row in")
    assert _cells(page, "rows")[1][:3] == values
    assert "9007199254740993" in _cells(page, "rows")[1][3]
    shown = page.js("[...document.querySelectorAll('#rows td')].map(c => c.className)")
    assert shown == ["n", "n", "n", "", "n", ""]


def test_explain_shows_the_report_without_rows(page):
    assert _given(page, "SELECT x FROM c WHERE p = 1", "explain").startswith("planned in")
    assert _cells(page, "rows") == []
    assert _cells(page, "report")[2][:4] == ["", "p = 1", "partition key", "4 → 1"]
    assert '"scans"' in page.js("document.querySelector('#report pre').textContent")


def test_coverage_is_a_picture(page):
    page.js("document.getElementById('of').value = 'c'")
    assert _given(page, "", "coverage").startswith("counted in")
    drawn = page.js("document.querySelector('#rows svg').textContent")
    assert "10 cells unknown to the seed" in drawn
    assert page.js("document.querySelector('#rows svg').getBoundingClientRect().width") > 300


def test_values_of_strangers_are_shown_as_text(page):
    page.js("o = document.getElementById('of'); o.value = '\"a-b\"'; o.dispatchEvent(new Event('change'))")
    sql = page.js("document.getElementById('sql').value")
    assert sql == 'SELECT * FROM "a-b" LIMIT 100'
    assert _given(page, sql).startswith("1 row in")
    assert _cells(page, "rows")[1] == ["NULL", HOSTILE]
    assert page.js("document.title") == "kartosql"


def test_an_error_is_shown_with_its_hint(page):
    said = _given(page, "SELECT nope FROM c")
    assert "nope" in said
    assert "Hint:" in said
    assert page.js("document.getElementById('state').className") == "error"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_page_fits_is_light_or_dark_and_fetches_nothing_from_elsewhere(page, width, scheme):
    page.open(page.address, width, scheme=scheme)
    page.wait_for(f"{SHOWN}.includes('token')")
    assert page.js("document.documentElement.scrollWidth") <= width
    assert [url for url in page.requests if not url.startswith(f"{page.address}/")] == []
    # The page itself has no colour: the system's ground is drawn below it.
    assert page.js("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    assert page.js("getComputedStyle(document.querySelector('textarea')).color") == (
        "rgb(255, 255, 255)" if scheme == "dark" else "rgb(0, 0, 0)"
    )
