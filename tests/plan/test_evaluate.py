"""Conditions against inverted indices that do not hold every value as it stands in the files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.store import Store
from written import write_dataset

NAN = float("nan")


@pytest.fixture
def make(local: Store) -> Callable[..., Any]:
    """Write dataset ``d``, one file ``n`` per list of values of the indexed column ``i``.

    ``indexed`` replaces what the index says of each value.
    """

    def make(type_: pa.DataType, files: Sequence[Sequence[Any]], indexed: Callable[[Any], Any] = lambda v: v) -> Any:
        rows = [(n, value) for n, values in enumerate(files) for value in values]
        table = pa.table({"n": [n for n, _ in rows], "i": pa.array([v for _, v in rows], type_, from_pandas=False)})
        write_dataset(local, "d", table, partition_on="n")
        labels: dict[Any, list[str]] = {}
        for label, values in zip(builders.read_document(local, "d")["partitions"], files, strict=True):
            for value in values:
                if value is not None and value == value and label not in labels.setdefault(indexed(value), []):
                    labels[indexed(value)].append(label)
        index = pa.table({"i": pa.array(labels, type_), "partition": pa.array(labels.values(), pa.list_(pa.string()))})
        local.put("d/indices/i/x.by-dataset-index.parquet", builders.parquet(index))
        document = builders.read_document(local, "d")
        document["indices"] = {"i": "d/indices/i/x.by-dataset-index.parquet"}
        builders.write_document(local, document)
        return kartosql.connect(local.url)

    return make


def _check(connection: Any, where: str, files: list[int], rows: list[int], parameters: Any = None) -> None:
    sql = f"SELECT n FROM d WHERE {where} ORDER BY n"
    query = connection.sql(sql, parameters)
    (scan,) = query.explain().to_dict()["scans"]
    kept = [int(key.split("n=")[1].split("/")[0]) for key in scan["datasets"][0]["files"]]
    assert kept == files, str(query.explain())
    assert [n for (n,) in query.rows()] == rows


@pytest.mark.parametrize(
    ("where", "files", "rows"),
    [
        ("i = 1", [0], [0]),
        ("i > 1", [0, 1, 2, 3], [0, 1, 2]),
        ("i < 5", [0, 3], [0, 0, 3]),
        ("i = 'nan'", [0, 1, 2, 3], [2]),
        ("isnan(i)", [0, 1, 2, 3], [2]),
        ("i <> 1", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("i NOT BETWEEN -10 AND 10", [0, 1, 2, 3], [1, 2]),
        ("i IS NULL", [0, 1, 2, 3], [3]),
        ("NOT (i < 5)", [0, 1, 2, 3], [1, 2]),
        ("i BETWEEN 1 AND 5", [0], [0, 0]),
        ("coalesce(i, n + 1) = 4", [0, 3], [0, 3]),
        ("i > n + 60", [0, 1, 2, 3], [2]),
    ],
)
def test_nan_and_null_stand_in_no_index_and_count_as_possible(make, where, files, rows):
    connection = make(pa.float64(), [[1.0, 4.0], [50.0], [NAN], [None, -1.0]])
    _check(connection, where, files, rows)


@pytest.mark.parametrize(
    ("where", "files", "rows"),
    [
        ("i = 0", [0, 1], [0, 1]),
        ("i = -0.0", [0, 1], [0, 1]),
        ("1 / i < 0", [0, 1], [1]),
        ("CAST(i AS VARCHAR) = '0.0'", [0, 1], [0]),
        ("CAST(i AS VARCHAR) = '-0.0'", [0, 1], [1]),
        ("signbit(i) AND i > -1", [0, 1], [1]),
    ],
)
@pytest.mark.parametrize("stored", [0.0, -0.0])
def test_the_two_zeros_are_one_value_of_an_index(make, stored, where, files, rows):
    connection = make(pa.float64(), [[0.0], [-0.0], [1.0]], lambda v: stored if v == 0 else v)
    _check(connection, where, files, rows)


def _cut(value: bytes) -> bytes:
    return value.split(b"\0")[0]


@pytest.mark.parametrize(
    ("where", "parameters", "rows"),
    [
        ("i = 'ab'::BLOB", None, [0]),
        ("i = 'ab\\x00c'::BLOB", None, [1]),
        ("i = ?", [b"ab\0c"], [1]),
        ("i = ?", [b"\0z"], [3]),
        ("i = ?", [b"ab"], [0]),
        ("i IN (?, ?)", [b"ab\0d", b"b"], [2, 4]),
        ("i > 'ab'::BLOB", None, [1, 2, 4]),
        ("i >= 'ab'::BLOB AND i < 'ac'::BLOB", None, [0, 1, 2]),
        ("i < 'ab'::BLOB", None, [3]),
        ("i <> 'ab'::BLOB", None, [1, 2, 3, 4]),
        ("i BETWEEN 'ab'::BLOB AND 'ab\\x00c'::BLOB", None, [0, 1]),
        ("octet_length(i) = 4", None, [1, 2]),
        ("NOT i = 'ab'::BLOB AND NOT i = 'b'::BLOB", None, [1, 2, 3]),
        ("i IS NOT NULL", None, [0, 1, 2, 3, 4]),
        ("i = 'b'::BLOB", None, [4]),
    ],
)
def test_binary_values_cut_at_a_nul_byte_are_found(make, where, parameters, rows):
    connection = make(pa.binary(), [[b"ab"], [b"ab\0c"], [b"ab\0d"], [b"\0z"], [b"b"]], _cut)
    sql = f"SELECT n FROM d WHERE {where} ORDER BY n"
    assert [n for (n,) in connection.sql(sql, parameters).rows()] == rows


def test_binary_values_without_nul_bytes_prune(make):
    connection = make(pa.binary(), [[b"ab"], [b"ac"], [b"b", b"\xff"]], _cut)
    _check(connection, "i = 'ac'::BLOB", [1], [1])
    _check(connection, "i >= 'b'::BLOB", [2], [2, 2])


@pytest.mark.parametrize(
    ("where", "files", "rows"),
    [
        ("TRY_CAST(i AS INTEGER) = 7", [1], [1]),
        ("TRY_CAST(i AS INTEGER) IS NULL", [0, 1, 2], [0, 2]),
        ("CASE WHEN i SIMILAR TO '[0-9]+' THEN i::INT END = 7", [1], [1]),
    ],
)
def test_casts_of_text(make, where, files, rows):
    connection = make(pa.string(), [["abc"], ["07"], [None]])
    _check(connection, where, files, rows)


def test_a_cast_that_fails_while_planning_keeps_the_file_and_fails_in_the_run(make):
    connection = make(pa.string(), [["abc"], ["7"], ["8"]])
    query = connection.sql("SELECT n FROM d WHERE i::INTEGER = 7")
    kept = [key.split("/")[2] for key in query.explain().to_dict()["scans"][0]["datasets"][0]["files"]]
    assert set(kept) >= {"n=0", "n=1"}
    with pytest.raises(kartosql.KartosqlError) as e:
        query.rows()
    assert e.value.code == "invalid-value"


@pytest.mark.parametrize(
    ("type_", "files", "where", "kept"),
    [
        (pa.int64(), [[-1], [0], [2**53 + 1]], "i = 9007199254740993", [2]),
        (pa.int64(), [[-1], [0], [2**53 + 1]], "i = 9007199254740992::DOUBLE", [2]),
        (pa.uint64(), [[0], [2**63], [2**64 - 1]], "i = 18446744073709551615", [2]),
        (pa.uint64(), [[0], [2**63], [2**64 - 1]], "i > -1", [0, 1, 2]),
        (pa.bool_(), [[True], [False], [True, False]], "NOT i", [1, 2]),
        (pa.bool_(), [[True], [False], [True, False]], "i = 1", [0, 2]),
        (pa.date32(), [[dt.date(1969, 12, 31)], [dt.date(2020, 1, 1)]], "i < '1970-01-01'", [0]),
        (pa.date32(), [[dt.date(1969, 12, 31)], [dt.date(2020, 1, 1)]], "i = TIMESTAMP '2020-01-01 00:00:01'", []),
        (pa.date32(), [[dt.date(1969, 12, 31)], [dt.date(2020, 1, 1)]], "year(i) = 2020", [1]),
        (
            pa.timestamp("us"),
            [[dt.datetime(1900, 1, 1, 0, 0, 0, 1)], [dt.datetime(2020, 1, 1)]],
            "i::DATE = '2020-01-01'",
            [1],
        ),
        (pa.string(), [[""], ["it's"], ["日本", "A"]], "i = ''", [0]),
        (pa.string(), [[""], ["it's"], ["日本", "A"]], "i = 'it''s'", [1]),
        (pa.string(), [[""], ["it's"], ["日本", "A"]], "lower(i) = 'a'", [2]),
        (pa.string(), [[""], ["it's"], ["日本", "A"]], "i > 'z'", [2]),
    ],
)
def test_every_type_that_can_be_indexed_prunes(make, type_, files, where, kept):
    connection = make(type_, files)
    (scan,) = connection.explain(f"SELECT n FROM d WHERE {where}").to_dict()["scans"]
    assert [int(key.split("n=")[1][0]) for key in scan["datasets"][0]["files"]] == kept
    assert {n for (n,) in connection.sql(f"SELECT n FROM d WHERE {where}").rows()} == set(kept)


def test_settings_of_the_session_apply_to_conditions(make):
    connection = make(pa.string(), [["a"], ["A"], ["b"]])
    connection.sql("SET default_collation = nocase")
    _check(connection, "i = 'a'", [0, 1], [0, 1])


def test_the_time_zone_of_the_session_applies_to_conditions(make):
    connection = make(pa.timestamp("us"), [[dt.datetime(2020, 1, 1)], [dt.datetime(2020, 1, 1, 1)]])
    connection.sql("SET TimeZone = 'Europe/Berlin'")
    _check(connection, "i = TIMESTAMPTZ '2020-01-01 00:00:00+00'", [1], [1])


def test_conditions_of_one_conjunction_must_hold_for_one_value(make):
    connection = make(pa.int64(), [[1, 9], [4], [3, 5]])
    _check(connection, "i > 3 AND i < 5", [1], [1])
    _check(connection, "i > 3 AND n > 0 AND i < 5 AND i <> 4", [], [])


def test_an_index_with_labels_nobody_has_is_no_problem(make, local):
    connection = make(pa.int64(), [[1], [2]])
    index = builders.read_parquet(local, "d/indices/i/x.by-dataset-index.parquet").to_pylist()
    index[0]["partition"].append("n=9/gone")
    schema = pa.schema([("i", pa.int64()), ("partition", pa.list_(pa.string()))])
    local.put("d/indices/i/x.by-dataset-index.parquet", builders.parquet(pa.Table.from_pylist(index, schema)))
    _check(connection, "i = 1", [0], [0])


@pytest.mark.parametrize("type_", [pa.int32(), pa.uint8()], ids=str)
def test_an_index_of_narrow_integers_is_read(make, local, type_):
    make(pa.int64() if type_ == pa.int32() else pa.uint64(), [[1], [2]])
    key = "d/indices/i/x.by-dataset-index.parquet"
    index = builders.read_parquet(local, key)
    local.put(key, builders.parquet(index.set_column(0, "i", index["i"].cast(type_))))
    _check(kartosql.connect(local.url), "i = 1", [0], [0])
