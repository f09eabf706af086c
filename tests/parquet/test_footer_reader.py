"""Footers are read by as few requests as there can be, and remembered with the table that names the files."""

from __future__ import annotations

import gc
import json
import uuid
from typing import Any

import pyarrow as pa
import pytest

import builders
from kartosql import parquet
from kartosql.errors import FormatError
from kartosql.parquet import (
    TAIL,
    FooterCache,
    Reader,
    bytes_of_columns,
    column_sizes,
    file_metadata,
    footer_of,
    read_footer,
    schema_bytes,
)
from kartosql.store import Store

NARROW = pa.table({"x": [1, 2]})
WIDE = pa.table({f"column {i} {'x' * 100}": [i] for i in range(300)})


@pytest.fixture(params=["disk", "memory"])
def store(request: Any, tmp_path: Any) -> Store:
    return Store(str(tmp_path) if request.param == "disk" else f"memory://{uuid.uuid4().hex}")


def footer(rows: pa.Table) -> bytes:
    found = footer_of(builders.parquet(rows))
    assert found is not None
    return found


def test_a_short_footer_takes_one_request_and_a_long_one_two(store):
    for rows, requests in ((NARROW, 1), (WIDE, 2)):
        data = builders.parquet(rows)
        store.put("t/a.parquet", data)
        before = store.counter.reads
        assert read_footer(store, "t/a.parquet", len(data)) == footer(rows)
        assert store.counter.reads - before == (0 if store.is_local else requests)
    assert len(footer(NARROW)) < TAIL < len(footer(WIDE))


def test_a_footer_of_more_than_the_most_is_not_read(store):
    data = builders.parquet(WIDE)
    store.put("t/a.parquet", data)
    assert read_footer(store, "t/a.parquet", len(data), most=TAIL) is None
    assert read_footer(store, "t/a.parquet", len(data), tail=len(data), most=TAIL) == footer(WIDE)


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b"x" * 100, b"PAR1" + (2**31).to_bytes(4, "little") + b"PAR1", b"PAR1" + b"\xff" * 4 + b"PAR1"],
)
def test_a_file_without_a_footer_has_none(store, data):
    store.put("t/a.parquet", data)
    assert read_footer(store, "t/a.parquet", len(data)) is None
    with pytest.raises(FormatError) as e:
        file_metadata(store, "t/a.parquet")
    assert e.value.code == "corrupt-file"


def test_a_file_that_is_not_there_is_missing(store):
    with pytest.raises((KeyError, OSError)):
        read_footer(store, "t/a.parquet", 100)
    with pytest.raises(FormatError) as e:
        file_metadata(store, "t/a.parquet")
    assert e.value.code == "missing-file"


def test_bytes_of_columns_of_files_that_cannot_be_read_are_not_told(store):
    data = builders.parquet(NARROW)
    store.put("t/a.parquet", data)
    store.put("t/b.parquet", data[:-30] + data[-8:])
    for key in ("t/b.parquet", "t/c.parquet"):
        files = [("t/a.parquet", len(data)), (key, len(data) - 22)]
        assert bytes_of_columns(store, files, None, 0) == 2 * len(data) - 22
        with pytest.raises(FormatError) as e:
            bytes_of_columns(store, files, frozenset({"x"}), 10**9)
        assert e.value.code == "corrupt-file"


def test_bytes_are_added_up_until_they_are_enough(store, monkeypatch):
    monkeypatch.setattr(parquet, "AT_ONCE", 2)
    data = builders.parquet(NARROW)
    files = [(f"t/{n}.parquet", len(data)) for n in range(6)]
    for key, _ in files[:4]:
        store.put(key, data)
    one = bytes_of_columns(store, files[:1], frozenset({"x"}), 0)
    assert bytes_of_columns(store, files, frozenset({"x"}), 3 * one) == 4 * one  # the others are not even there


def test_hostile_footers_end_neither_in_recursion_nor_in_foreign_errors():
    lists, structs, count = b"\x19" * 100_000, b"\x1c" * 100_000, b"\x19\xfc\xff\xff\xff\xff\x0f"
    for data in (lists, structs, count, b"\x29" + lists, b"\x15\x02" + lists):
        assert schema_bytes(data) is None
        assert column_sizes(data) is None
        with pytest.raises(IndexError):
            Reader(data).struct()
        assert FooterCache().recognise(data + b"geo") >= 0


def with_note(note: Any) -> bytes:
    return footer(NARROW.replace_schema_metadata({"geo": json.dumps(note)}))


def test_schemas_have_one_number_each():
    known = FooterCache()
    of = known.recognise
    first = of(footer(NARROW))
    assert of(footer(pa.concat_tables([NARROW] * 9))) == first
    assert of(footer(WIDE)) != first
    assert of(footer(NARROW.rename_columns(["geo"]))) == of(footer(pa.table({"geo": [7]})))
    # What is noted behind the schema is part of it.
    assert of(with_note({"columns": {"x": {}}})) == of(with_note({"columns": {"x": {}}}))
    assert len({first, of(with_note({"columns": {"x": {}}})), of(with_note({"columns": {"y": {}}}))}) == 3
    damaged = footer(NARROW)[:-20] + b"geo"
    assert of(damaged) != first
    assert of(damaged) == of(damaged)


def test_numbers_stay_when_their_beginnings_are_forgotten(monkeypatch):
    monkeypatch.setattr(parquet, "MAX_PREFIXES", 2)
    known = FooterCache()
    footers = [footer(pa.table({f"x{n}": [n]})) for n in range(5)]
    numbers = [known.recognise(f) for f in footers]
    assert len({*numbers}) == 5
    assert [known.recognise(f) for f in footers] == numbers


class Table:
    """Something that names files."""


def test_schemas_go_with_their_table():
    known, table = FooterCache(), Table()
    known.schemas(table)["a", 1] = 1
    assert known.schemas(table) == {("a", 1): 1}
    assert known.schemas(Table()) == {}
    del table
    gc.collect()
    known.schemas(other := Table())
    assert list(known._schemas) == [other]


def test_all_is_forgotten_rather_than_too_much_kept(monkeypatch):
    monkeypatch.setattr(parquet, "MAX_FILES", 3)
    known, tables = FooterCache(), [Table(), Table()]
    for table in tables:
        known.schemas(table)["a", 1] = 1
    known.make_room(1)
    assert [len(known.schemas(t)) for t in tables] == [1, 1]
    known.make_room(2)
    assert [len(known.schemas(t)) for t in tables] == [0, 0]
