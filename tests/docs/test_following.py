"""The recipe that follows a dataset, ended at each of its lines."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from types import FrameType
from typing import Any

import fences
import pyarrow as pa

import kartosql

PAGE = fences.CHECKOUT / "docs" / "recipes.md"


class Killed(BaseException):
    """The process is gone."""


def killed_at(function: Any, line: int, *arguments: Any) -> bool:
    """Call a function, end it before the line that it reaches as number ``line``, and return whether it got there."""
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code is not function.__code__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


def test_who_follows_a_dataset_has_each_row_once_wherever_he_is_killed(tmp_path):
    (text,) = [text for text in fences.blocks(PAGE, "python") if "def follow" in text]
    names: dict[str, Any] = {}
    exec(text, names)
    (tmp_path / "store").mkdir()
    with kartosql.connect(str(tmp_path / "store")) as con:
        con.create_dataset("planes", pa.table({"tailnum": ["a", "a", None], "seats": [1, 1, 2]}))
        line = 0
        while True:
            results = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
            was_killed = killed_at(names["follow"], line, con, results)
            results.close()
            if not was_killed:
                break
            line += 1
            if line % 5 == 2:
                con.append_to_dataset("planes", pa.table({"tailnum": ["b"], "seats": [line]}))
            elif line % 5 == 4:
                con.sql("INSERT OVERWRITE planes SELECT * FROM planes WHERE seats <> 2 OR tailnum IS NULL")
            if line % 3 == 0:
                results = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
                names["follow"](con, results)
                results.close()
        results = sqlite3.connect(tmp_path / "results.db")
        found = Counter(results.execute("SELECT tailnum, seats FROM planes").fetchall())
        results.close()
        assert found == Counter(con.sql("SELECT tailnum, seats FROM planes").rows())
    assert line > 10
