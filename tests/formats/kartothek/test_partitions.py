from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartosql.errors import FormatError
from kartosql.formats.kartothek import dataset
from kartosql.formats.kartothek.dataset import parse_partitions, partition_type
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.text.types import type_name


def parse(folders, *types, keys=("p", "q")):
    files = [f"u/table/{folder}/f.parquet" for folder in folders]
    return parse_partitions(files, "u", "table", keys[: len(types)], types)


def value(text, type_):
    ((found,),) = parse([f"p={text}"], type_).tuples
    return found


@pytest.mark.parametrize(
    ("text", "type_", "expected"),
    [
        ("a", pa.string(), "a"),
        ("", pa.string(), ""),
        ("None", pa.string(), "None"),
        ("..", pa.string(), ".."),
        ("a%2Fb", pa.string(), "a/b"),
        ("a/b", pa.string(), "a/b"),
        ("a//b/", pa.string(), "a//b/"),
        ("a%3Db%25%26", pa.string(), "a=b%&"),
        ("%F0%9F%98%80%20emoji", pa.string(), "😀 emoji"),
        ("ü", pa.string(), "ü"),
        ("text", pa.null(), "text"),
        ("%00%FF/a", pa.binary(), b"\x00\xff/a"),
        ("0", pa.int64(), 0),
        ("-1", pa.int64(), -1),
        ("9223372036854775807", pa.int64(), 2**63 - 1),
        ("-9223372036854775808", pa.int64(), -(2**63)),
        ("18446744073709551615", pa.uint64(), 2**64 - 1),
        ("0.5", pa.float64(), 0.5),
        ("0.10000000149011612", pa.float64(), 0.10000000149011612),
        ("1e%2B22", pa.float64(), 1e22),
        ("1e+22", pa.float64(), 1e22),
        ("-1e-07", pa.float64(), -1e-07),
        ("inf", pa.float64(), math.inf),
        ("-inf", pa.float64(), -math.inf),
        ("3", pa.float64(), 3.0),
        ("True", pa.bool_(), True),
        ("False", pa.bool_(), False),
        ("true", pa.bool_(), True),
        ("2026-01-31", pa.date32(), dt.date(2026, 1, 31)),
        ("1955-11-05", pa.date32(), dt.date(1955, 11, 5)),
        ("2026-01-31%2000%3A00%3A00", pa.date32(), dt.date(2026, 1, 31)),
    ],
)
def test_values_have_the_type_of_the_schema(text, type_, expected):
    found = value(text, type_)
    assert found == expected
    assert type(found) is type(expected)


def test_minus_zero_and_nan_keep_what_they_are():
    assert math.copysign(1, value("-0.0", pa.float64())) == -1
    assert math.isnan(value("nan", pa.float64()))


def micros(*parts):
    return (dt.datetime(*parts) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2020-01-01%2000%3A00%3A00", micros(2020, 1, 1)),
        ("2020-01-01 01:02:03", micros(2020, 1, 1, 1, 2, 3)),
        ("2020-01-01T01:02:03", micros(2020, 1, 1, 1, 2, 3)),
        ("2020-01-01", micros(2020, 1, 1)),
        ("2020-01-01%2000%3A00%3A00.000001", micros(2020, 1, 1) + 1),
        ("2020-01-01%2000%3A00%3A00.5", micros(2020, 1, 1) + 500_000),
        ("2020-01-01%2000%3A00%3A00.000001000", micros(2020, 1, 1) + 1),
        ("1700-03-01%2001%3A02%3A03.000004", micros(1700, 3, 1, 1, 2, 3) + 4),
        ("1969-12-31%2023%3A59%3A59.999999", -1),
    ],
)
def test_timestamps_are_numbers_in_their_unit(text, expected):
    assert value(text, pa.timestamp("us")) == expected
    assert value(text, pa.timestamp("ns")) == expected * 1000


def test_nanoseconds_are_kept_where_the_type_has_them():
    assert value("1970-01-01 00:00:00.000000007", pa.timestamp("ns")) == 7


@pytest.mark.parametrize("text", ["1970-01-01 02:00:00+02:00", "1970-01-01 00:00:00Z", "1969-12-31 23:00:00-0100"])
def test_zones_are_read_where_the_type_has_one(text):
    assert value(text, pa.timestamp("us", "UTC")) == 0
    with pytest.raises(FormatError):
        value(text, pa.timestamp("us"))


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("", pa.int64()),
        ("x", pa.int64()),
        ("1.0", pa.int64()),
        (" 1", pa.int64()),
        ("1_000", pa.int64()),
        ("0x10", pa.int64()),
        ("%D9%A1", pa.int64()),
        ("9223372036854775808", pa.int64()),
        ("9" * 5000, pa.int64()),
        ("-1", pa.uint64()),
        ("", pa.float64()),
        ("one", pa.float64()),
        ("1_0.5", pa.float64()),
        ("%201.0", pa.float64()),
        ("%D9%A1", pa.float64()),
        ("yes", pa.bool_()),
        ("", pa.bool_()),
        ("%FF", pa.bool_()),
        ("%FF", pa.string()),
        ("2026-02-30", pa.date32()),
        ("2026-01-31%2001%3A00%3A00", pa.date32()),
        ("20260131", pa.date32()),
        ("", pa.date32()),
        ("today", pa.timestamp("us")),
        ("2020-13-01", pa.timestamp("us")),
        ("2020-01-01 25:00:00", pa.timestamp("us")),
        ("2020-01-01 00:00:00.", pa.timestamp("us")),
        ("0001-01-01 00:00:00", pa.timestamp("ns")),
        ("2020-01-01 00:00:00+99:99", pa.timestamp("us", "UTC")),
        ("1.5", pa.decimal128(5, 2)),
        ("1", pa.list_(pa.int64())),
    ],
    ids=lambda v: str(v)[:30],
)
def test_values_that_do_not_fit_are_refused(text, type_):
    with pytest.raises(FormatError) as e:
        value(text, type_)
    assert e.value.code == "invalid-partition-value"
    assert e.value.message.startswith("u/table/p=")
    assert "'p'" in e.value.message
    assert f"is no {type_name(type_)}" in e.value.message


@pytest.mark.parametrize("folder", ["", "q=1", "x=1", "p", "p=1", "P=1/q=1", "q=1/p=1"])
def test_paths_without_a_key_are_refused(folder):
    with pytest.raises(FormatError, match="no value for the partition key") as e:
        parse([folder], pa.int64(), pa.int64())
    assert e.value.code == "invalid-partition-value"


def test_each_folder_stands_once_and_files_point_to_it():
    table = parse(["p=1/q=a", "p=2/q=a", "p=1/q=a", "p=01/q=a"], pa.int64(), pa.string())
    assert table.tuples == ((1, "a"), (2, "a"), (1, "a"))
    assert table.part_of_file == (0, 1, 0, 2)
    assert table.arrow.to_pydict() == {"p": [1, 2, 1], "q": ["a", "a", "a"]}


def test_zeros_of_both_signs_stay_apart():
    table = parse(["p=0.0", "p=-0.0", "p=0"], pa.float64())
    assert [str(row[0]) for row in table.tuples] == ["0.0", "-0.0", "0.0"]


def test_numbers_of_different_types_stay_apart_in_different_columns():
    table = parse(["p=1/q=True", "p=1/q=False"], pa.int64(), pa.bool_())
    assert table.tuples == ((1, True), (1, False))


def test_without_partition_keys_all_files_are_one_part():
    table = parse_partitions(["u/table/a.parquet", "u/table/b.parquet"], "u", "table", (), ())
    assert (table.tuples, table.part_of_file) == (((),), (0, 0))
    assert parse_partitions([], "u", "table", (), ()).tuples == ()


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1955-11-05%2006%3A15%3A00", pa.timestamp("us")),
        ("1955-11-05%2006%3A15%3A00", pa.timestamp("us", "Europe/Berlin")),
        ("1955-11-05", pa.date32()),
        ("False", pa.bool_()),
        ("%FF", pa.binary()),
        ("18446744073709551615", pa.uint64()),
        ("x", pa.null()),
    ],
)
def test_values_of_every_type_become_arrow(text, type_):
    table = parse([f"p={text}"], type_).arrow
    assert table.schema.field("p").type == partition_type(type_)
    assert table["p"].null_count == 0


def test_golden_values_with_odd_characters_are_read(ktk_store):
    snapshot = Snapshot(Store(str(ktk_store)))
    found = {row[0] for row in snapshot.dataset("types1++seed").tables["table"].partitions.tuples}
    assert found == {
        " ", "", "#?*:", "100%", "a&b;c", "a=b", "back\\slash", 'dq"x', "it's", "plain", "ünï☃", "😀 emoji",
    }  # fmt: skip
    tables = {
        name: snapshot.dataset(f"{name}++seed").tables["table"] for name in ("quirk-slash", "quirk-bool", "tsdim")
    }
    assert {row[0] for row in tables["quirk-slash"].partitions.tuples} == {"a/b", "c/d/e", "f"}
    assert {row[0] for row in tables["quirk-bool"].partitions.tuples} == {True, False}
    assert dt.date(1955, 11, 5) in {row[0] for row in tables["tsdim"].partitions.tuples}


# -- many folders ----------------------------------------------------------------------------


def outcome(folders, *types):
    try:
        found = parse(folders, *types)
    except FormatError as e:
        return e.code, e.message
    return [[repr(v) for v in row] for row in found.tuples], list(found.part_of_file)


components = st.sampled_from(
    ["p=1", "p=1", "p=2", "q=a", "q=b", "q=", "p=", "q=%61", "p=%31", "q=é", "q=a=b", "x", "", "p=-1", "p=+1", "p=01",
     "p=1_0", "p=٣", "p=²", "p=9223372036854775807", "p=9223372036854775808", "p= 1", "%70=1", "p=q=1"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.lists(components, max_size=3), max_size=5), st.sampled_from([1, 2]))
def test_folders_read_at_once_give_what_folders_read_one_by_one_give(parts, keys):
    folders = ["/".join(f) for f in parts]
    types = [pa.int64(), pa.string()][:keys]
    found = outcome(folders, *types)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_plain_columns", lambda *args: None)
        assert outcome(folders, *types) == found


# -- what is derived -------------------------------------------------------------------------

SOME = ["p=1/q=a", "p=2/q=a", "p=1/q=b", "p=1/q=a", "p=2/q=a"]


def test_files_are_found_by_folder():
    table = parse(SOME, pa.int64(), pa.string())
    assert table.files_of([0]) == {0, 3}
    assert table.files_of(frozenset({0, 1, 2})) == set(range(5))
    assert table.files_of([]) == frozenset()
    assert not table.is_one_to_one
    alone = parse(["p=1", "p=2"], pa.int64())
    assert alone.is_one_to_one
    assert alone.files_of([1]) == {1}


@pytest.mark.parametrize("keys", [[], [0], [1], [0, 1], [1, 0]])
@pytest.mark.parametrize("folders", [SOME, ["p=1/q=a", "p=2/q=b"], []])
def test_codes_and_groups_tell_which_files_have_the_same_values(folders, keys):
    table = parse(folders, pa.int64(), pa.string())
    values = [tuple(table.tuples[part][i] for i in keys) for part in table.part_of_file]
    assert [table.comparable(f, keys) for f in range(len(folders))] == values
    codes = table.codes(keys)
    assert [[codes[a] == codes[b] for b in range(len(folders))] for a in range(len(folders))] == [
        [a == b for b in values] for a in values
    ]
    expected = [[f for f, v in enumerate(values) if v == value] for value in dict.fromkeys(values)]
    assert [list(g) for g in table.groups(keys)] == [g for g in expected if len(g) > 1]


def test_nan_equals_itself_and_the_zeros_each_other_when_compared():
    table = parse(["p=nan", "p=0.0", "p=NaN", "p=-0.0"], pa.float64())
    assert [list(g) for g in table.groups([0])] == [[0, 2], [1, 3]]


def test_what_is_derived_is_computed_once():
    table = parse(SOME, pa.int64(), pa.string())
    assert table.tuples is table.tuples
    assert table.arrow is table.arrow
    assert table.codes([0]) is table.codes([0])
    assert table.groups([0]) is table.groups([0])
    assert table.groups([0]) != table.groups([1])


def test_a_table_without_keys_is_one_group():
    table = parse_partitions(["u/table/a", "u/table/b"], "u", "table", (), ())
    assert [list(g) for g in table.groups([])] == [[0, 1]]
    assert table.files_of([0]) == {0, 1}
