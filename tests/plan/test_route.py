"""Which engine a query runs on, and what is asked for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from kartosql import query
from kartosql.errors import NotPortable


def never(*_: Any) -> Any:
    raise AssertionError("asked for nothing")


def chosen(wish: str, files: int, size: int | None, limit: int | None = 100, **asked: Any) -> tuple[str, str]:
    """Return the engine for files with a size, and the reason; ``measured`` is the size that is learnt."""
    report = SimpleNamespace(files_selected=files, bytes_selected=size, selected=[])
    measure = (lambda _: setattr(report, "bytes_selected", asked["measured"])) if "measured" in asked else never

    def refuse(_: Any) -> None:
        raise NotPortable(asked["refused"])

    settings = {"engine": wish, "spark_threshold": limit, "memory_limit": asked.get("memory")}
    execution: Any = SimpleNamespace(
        _context=SimpleNamespace(settings=settings),
        _files=SimpleNamespace(stat=measure),
        attempt=SimpleNamespace(not_spark=None),
        check_spark=refuse if "refused" in asked else lambda _: None,
    )
    used = asked.get("used", never)
    with (
        patch.object(query, "_obstacle", asked.get("obstacle", never)),
        patch.object(query, "_bytes_used", lambda report, files, limit: used(limit)),
    ):
        return query.Execution._chosen_engine(execution, report)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 100, 101, None])
def test_a_wish_is_followed_without_a_look(size: int | None) -> None:
    assert chosen("spark", 3, size)[0] == "spark"
    assert chosen("duckdb", 3, size)[0] == "duckdb"


def test_little_work_stays_here_without_a_look_for_spark() -> None:
    assert chosen("auto", 3, 100) == ("duckdb", "3 files, 100 B: one machine is enough")
    assert chosen("auto", 0, None)[0] == "duckdb"
    assert chosen("auto", 1, 1)[1].startswith("1 file, 1 B")


def test_what_is_in_the_way_of_spark_is_told() -> None:
    assert chosen("auto", 3, 101, obstacle=lambda *_: "PySpark is not installed") == (
        "duckdb",
        "3 files, 101 B, more than spark_threshold (100 B), but PySpark is not installed",
    )


def test_bytes_of_the_columns_used_decide() -> None:
    few = chosen("auto", 3, 1000, obstacle=lambda *_: None, used=lambda limit: limit)
    assert few == ("duckdb", "3 files, 1000 B, of which columns used take 100 B: one machine is enough")
    engine, reason = chosen("auto", 3, 1000, obstacle=lambda *_: None, used=lambda limit: limit + 1)
    assert engine == "spark"
    assert "spark_threshold (100 B)" in reason


def test_files_are_measured_only_if_spark_may_come() -> None:
    assert chosen("auto", 3, None, obstacle=lambda *_: "no")[0] == "duckdb"
    assert chosen("auto", 3, None, obstacle=lambda *_: None, measured=100)[0] == "duckdb"
    assert chosen("auto", 3, None, obstacle=lambda *_: None, measured=101, used=lambda _: 101)[0] == "spark"


def test_a_refusal_of_spark_is_part_of_the_reason() -> None:
    engine, reason = chosen("auto", 3, 101, obstacle=lambda *_: None, used=lambda _: 101, refused="it cannot")
    assert engine == "duckdb"
    assert reason.endswith(", but Spark does not run it: it cannot")


def test_without_a_threshold_memory_decides() -> None:
    assert chosen("auto", 1, 40, None, memory=10)[0] == "duckdb"
    assert chosen("auto", 1, 41, None, memory=10, obstacle=lambda *_: None, used=lambda _: 41)[0] == "spark"
    assert chosen("auto", 1, 1 << 30, None)[0] == "duckdb"
