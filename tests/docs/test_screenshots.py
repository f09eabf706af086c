"""The pictures of the shell are made from the real program."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import fences
import pytest

from kartosql.demo import build_flights
from tests.benchmarks import plots

DOCS = fences.CHECKOUT / "docs"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", DOCS / "screenshots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_shown_and_can_be_made() -> None:
    shown = set(re.findall(r"\]\(images/([a-z-]+)\.svg\)", "".join(p.read_text("utf-8") for p in DOCS.glob("*.md"))))
    made = {*_script().PICTURES, *(f"cost-by-{name}" for name in plots.CURVES)}
    assert shown == {path.stem for path in (DOCS / "images").glob("*.svg")} == made


@pytest.mark.process
def test_the_script_draws_what_the_shell_shows_and_that_is_the_picture(tmp_path: Path) -> None:
    store = tmp_path / "kartosql-demo"
    build_flights(store)
    script = _script()
    for name, shown in (("result", "saved"), ("values", "SFO"), ("coverage", "not know")):
        drawn = script.picture(name, str(store))
        text, held = (_text(svg) for svg in (drawn, (DOCS / "images" / f"{name}.svg").read_text("utf-8")))
        assert shown.replace(" ", "") in text
        assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
        if name != "result":  # which has times, and rows in any order
            assert text == held, f"python docs/screenshots.py makes {name}.svg anew"


def _text(svg: str) -> str:
    lines = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return "".join("".join(lines).replace("&#160;", " ").split())  # blanks belong to one piece or to another
