from __future__ import annotations

from typing import Any

import pytest

from kartosql.query import Choice, ReadVolume, choose, default_limit, refused


def never(*_: Any) -> Any:
    raise AssertionError("asked for nothing")


def chosen(wish: str, work: ReadVolume, limit: int = 100, **asked: Any) -> Choice:
    return choose(wish, work, limit, **{"measure": never, "used": never, "obstacle": never, **asked})


@pytest.mark.parametrize("size", [0, 100, 101, None])
def test_a_wish_is_followed_without_a_look(size: int | None) -> None:
    assert chosen("spark", ReadVolume(3, size)).engine == "spark"
    assert chosen("duckdb", ReadVolume(3, size)).engine == "duckdb"


def test_little_work_stays_here_without_a_look_for_spark() -> None:
    assert chosen("auto", ReadVolume(3, 100)) == Choice("duckdb", "3 files, 100 B: one machine is enough")
    assert chosen("auto", ReadVolume(0, None)).engine == "duckdb"
    assert chosen("auto", ReadVolume(1, 1)).reason.startswith("1 file, 1 B")


def test_what_is_in_the_way_of_spark_is_told() -> None:
    choice = chosen("auto", ReadVolume(3, 101), obstacle=lambda: "PySpark is not installed")
    assert choice.engine == "duckdb"
    assert choice.reason == "3 files, 101 B, more than spark_threshold (100 B), but PySpark is not installed"


def test_bytes_of_the_columns_used_decide() -> None:
    few = chosen("auto", ReadVolume(3, 1000), obstacle=lambda: None, used=lambda limit: limit)
    assert few == Choice("duckdb", "3 files, 1000 B, of which columns used take 100 B: one machine is enough")
    many = chosen("auto", ReadVolume(3, 1000), obstacle=lambda: None, used=lambda limit: limit + 1)
    assert many.engine == "spark"
    assert "spark_threshold (100 B)" in many.reason


def test_files_are_measured_only_if_spark_may_come() -> None:
    assert chosen("auto", ReadVolume(3, None), obstacle=lambda: "no").engine == "duckdb"
    assert chosen("auto", ReadVolume(3, None), obstacle=lambda: None, measure=lambda: 100).engine == "duckdb"
    assert (
        chosen("auto", ReadVolume(3, None), obstacle=lambda: None, measure=lambda: 101, used=lambda _: 101).engine
        == "spark"
    )


def test_a_refusal_of_spark_is_part_of_the_reason() -> None:
    assert refused(Choice("spark", "much"), "it cannot") == Choice(
        "duckdb", "much, but Spark does not run it: it cannot"
    )


def test_without_a_threshold_memory_decides() -> None:
    assert default_limit(10) == 40
    assert default_limit(None) > 1 << 30
