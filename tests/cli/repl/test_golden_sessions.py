"""Sessions as they look, beside what they looked like: ``KARTOSQL_WRITE_GOLDEN=1`` writes that anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"
SESSIONS = {
    "help": [".help", ".help .mode", ".help unknown-command", ".help \\x"],
    "tables": [
        "select * from sales order by shop, day;",
        "select * from shops order by shop;",
        ".mode vertical",
        "select * from shops order by shop;",
        ".mode markdown",
        "select country, amount, rain from sales order by shop, day;",
        ".mode box",
        ".config rows 2",
        "select country, amount from sales order by shop, day;",
        ".last",
        "select true as b, date '2024-02-29' as d, interval 1 day as i, [1, null] as l, {'a': 'x'} as s, 1e300 as f;",
    ],
    "looking": [".tables", ".cubes", ".datasets sales", ".schema", ".partitions", ".indexes", ".columns o", ".info"],
    "errors": ["selec 1;", "select nothing from sales;", "select * from sale;", ".tabels", ".mode boxx", ".once"],
}
_CHANGING = [
    (re.compile(r"\d+\.\d{3} s \(plan [\d.]+, read [\d.]+\)"), "TIME"),
    (re.compile(r"\d+\.\d{3} s\b"), "TIME"),
    (re.compile(r"\d+(\.\d+)? (B|KiB)\b"), "SIZE"),
    (re.compile(r"sales\+\+\w+/indices/\S+"), "INDEX"),
    (re.compile(r"^kartosql [\d.]+:", re.MULTILINE), "kartosql VERSION:"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+"), "TIME"),
]


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_looks_as_it_did(shell, name):
    shown = "".join(f"> {line}\n{shell(line)}" for line in SESSIONS[name])
    for pattern, word in _CHANGING:
        shown = pattern.sub(word, shown)
    place = FOLDER / f"{name}.txt"
    if os.environ.get("KARTOSQL_WRITE_GOLDEN"):
        place.write_text(shown, "utf-8")
    assert shown == place.read_text("utf-8")
