"""Conditions of query_cube: objects, tuples, text, and how they become SQL."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartosql.conditions import C, Condition, Conjunction, check_types, parse_conditions, to_sql
from kartosql.errors import UsageError

TYPES = {
    "a": pa.int64(),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "t": pa.timestamp("us"),
    "d": pa.date32(),
    "r": pa.binary(),
    "n": pa.null(),
    "l": pa.list_(pa.int64()),
    "u": pa.uint64(),
}


@pytest.mark.parametrize(
    ("condition", "op", "value"),
    [
        (C("a") == 1, "==", 1),
        (C("a") != 1, "!=", 1),
        (C("a") < 1, "<", 1),
        (C("a") <= 1, "<=", 1),
        (C("a") > 1, ">", 1),
        (C("a") >= 1, ">=", 1),
        (C("a").isin([1, 2]), "in", (1, 2)),
        (C("a").isin("xy"), "in", ("xy",)),
        (C("a").isin(None), "in", ()),
        (C("a").isin(iter([3])), "in", (3,)),
        (C("a").in_interval(1, 2), "interval", (1, 2)),
        (C("a").in_interval(stop=2), "interval", (None, 2)),
    ],
)
def test_a_column_makes_conditions(condition, op, value):
    assert condition == Condition("a", op, value)


def test_conditions_are_joined_by_and():
    one, two, three = C("a") == 1, C("s") < "x", C("b") == True  # noqa: E712
    assert one & two & three == Conjunction((one, two, three))
    assert one & (two & three) == Conjunction((one, two, three))
    assert str(one & C("a").in_interval(stop=5)) == "(a == 1) & (a.in_interval(, 5))"


@pytest.mark.parametrize(
    "act",
    [
        lambda: bool(C("a") == 1),
        lambda: 1 < C("a") < 3,
        lambda: C("a") == C("s"),
        lambda: bool((C("a") == 1) & (C("a") == 2)),
        lambda: (C("a") == 1) | (C("a") == 2),
        lambda: ~(C("a") == 1),
        lambda: (C("a") == 1) & 5,
    ],
)
def test_conditions_have_no_truth_value_and_know_no_or_and_not(act):
    with pytest.raises(TypeError):
        act()


@pytest.mark.parametrize(
    "null", [None, float("nan"), pd.NaT, pd.NA, np.datetime64("NaT", "s"), np.float64("nan")], ids=repr
)
@pytest.mark.parametrize("make", [lambda v: C("a") == v, lambda v: C("a") != v, lambda v: C("a").isin([1, v])])
def test_null_is_refused(null, make):
    with pytest.raises(UsageError) as e:
        make(null)
    assert e.value.code == "invalid-condition"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int8(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (pd.Timestamp(2020, 1, 1), dt.datetime(2020, 1, 1)),
        (np.datetime64("2020-01-01"), dt.datetime(2020, 1, 1)),
    ],
    ids=repr,
)
def test_scalars_of_numpy_and_pandas_become_plain(value, plain):
    given = (C("a") == value).value
    assert given == plain
    assert type(given) is type(plain)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ("", []),
        ([], []),
        (C("a") == 1, [("a", "==", 1)]),
        ((C("a") == 1) & (C("s") == "x"), [("a", "==", 1), ("s", "==", "x")]),
        (("a", "<", 1), [("a", "<", 1)]),
        ([("a", "=", 1), ["s", "in", ["x"]]], [("a", "==", 1), ("s", "in", ("x",))]),
        ([("a", "interval", 1, 5)], [("a", "interval", (1, 5))]),
        (
            [C("a") == 1, (C("a") < 5) & (C("a") > 2), "s = x", ("f", ">", 0.5)],
            [("a", "==", 1), ("a", "<", 5), ("a", ">", 2), ("s", "==", "x"), ("f", ">", 0.5)],
        ),
        ("(a >= 5) & (s == 'it is')", [("a", ">=", 5), ("s", "==", "it is")]),
        ("a!=5", [("a", "!=", 5)]),
        ("f < 1e3 & b = yes & b != F", [("f", "<", 1000.0), ("b", "==", True), ("b", "!=", False)]),
        ("t >= 2020-01-01 12:00", [("t", ">=", dt.datetime(2020, 1, 1, 12))]),
        ('s == "x"', [("s", "==", "x")]),
        ("s == 'x", [("s", "==", "'x")]),
        ("s == NULL", [("s", "==", "NULL")]),
    ],
)
def test_every_form_becomes_a_list(given, expected):
    assert [(c.column, c.op, c.value) for c in parse_conditions(given, TYPES)] == expected


@pytest.mark.parametrize(
    "given",
    [
        "a",
        "a ==",
        "a = x",
        "a ~ 1",
        "s == ",
        "a == 1 & ",
        "& a == 1",
        "a < 1 < 2",
        "f = x",
        "b = maybe",
        "t = then",
        "d = 2020-01-01",
        "r = x",
        "l = 1",
        "a = 1 | a = 2",
        5,
        [5],
        [("a", "==")],
        [("a", "==", 1, 2)],
        [(1, "==", 1)],
        ("a", "like", 1),
        ("a", "interval", 5),
        [None],
        {"a": 1},
    ],
)
def test_what_cannot_be_understood_is_refused(given):
    with pytest.raises(UsageError) as e:
        parse_conditions(given, TYPES)
    assert e.value.code in ("invalid-condition", "unknown-column")


def test_an_unknown_column_in_text_is_named():
    with pytest.raises(UsageError) as e:
        parse_conditions("zz = 1", TYPES)
    assert (e.value.code, "zz" in e.value.message) == ("unknown-column", True)


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [
        ("a", [1, -1], [1.0, True, "1", dt.date(2020, 1, 1)]),
        ("u", [2**63], [1.0]),
        ("f", [1.0], [1, True, "1"]),
        ("s", ["x", b"x"], [1]),
        ("b", [True], [1, "true"]),
        ("r", [b"x", "x"], [1]),
        (
            "t",
            [dt.datetime(2020, 1, 1)],
            ["2020-01-01", dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)],
        ),
        ("d", [dt.date(2020, 1, 1), "2020-01-01"], [dt.datetime(2020, 1, 1), "x", 1]),
        ("n", [1, "x"], []),
        ("l", [], [1, [1]]),
    ],
)
def test_operands_must_have_the_type_of_the_column(column, good, bad):
    for value in good:
        check_types(
            [
                Condition(column, "==", value),
                Condition(column, "in", (value,)),
                Condition(column, "interval", (None, value)),
            ],
            TYPES,
        )
    for value in bad:
        for op, operand in (("==", value), ("in", (value,)), ("interval", (value, None))):
            with pytest.raises(UsageError) as e:
                check_types([Condition(column, op, operand)], TYPES)
            assert e.value.code == "invalid-condition"


def test_all_unknown_columns_are_named():
    with pytest.raises(UsageError) as e:
        check_types([C("z2") == 1, C("a") == 1, C("z1") == 1], TYPES)
    assert e.value.code == "unknown-column"
    assert "z1, z2" in e.value.message


def test_conditions_become_sql_with_parameters():
    conditions = [
        C("a") == 1,
        C("s").isin(["x", "y"]),
        C("f").in_interval(0.5, 1.5),
        C("s").isin([]),
        C("a").in_interval(),
        Condition("b", "!=", True),
    ]
    text, parameters = to_sql(conditions, lambda name: f'"{name}"')
    assert text == '"a" = $v0 AND "s" IN ($v1, $v2) AND "f" >= $v3 AND "f" < $v4 AND FALSE AND "b" <> $v5'
    assert parameters == {"v0": 1, "v1": "x", "v2": "y", "v3": 0.5, "v4": 1.5, "v5": True}
