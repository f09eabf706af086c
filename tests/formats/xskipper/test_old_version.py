"""Version 0: bounds and values as serialized objects of Java and Scala."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest

from kartosql.formats.xskipper import java
from kartosql.formats.xskipper.domain import Among, ColumnType, OddCells, Range, order_key
from kartosql.formats.xskipper.java import old_bounds, old_values

UID = bytes(8)


def _desc(name: str, flags: int, fields: list[tuple[str, str]], parent: bytes = b"p") -> bytes:
    data = b"r" + struct.pack(">H", len(name)) + name.encode() + UID + bytes([flags]) + struct.pack(">H", len(fields))
    for kind, field in fields:
        data += kind[:1].encode() + struct.pack(">H", len(field)) + field.encode()
        if kind[0] in "L[":
            data += _text(kind)
    return data + b"x" + parent


def _text(value: str) -> bytes:
    return b"t" + struct.pack(">H", len(value.encode())) + value.encode()


def _object(name: str, flags: int, fields: list[tuple[str, str]], content: bytes, parent: bytes = b"p") -> bytes:
    return b"s" + _desc(name, flags, fields, parent) + content


def _number(name: str, kind: str, value: float) -> bytes:
    code = {"I": "i", "J": "q", "D": "d", "F": "f", "S": "h", "B": "b", "Z": "?"}[kind]
    parent = _desc("java.lang.Number", 2, [])
    return _object(f"java.lang.{name}", 2, [(kind, "value")], struct.pack(">" + code, value), parent)


def _decimal(text: str) -> bytes:
    number = Decimal(text)
    sign, digits, exponent = number.as_tuple()
    unscaled = int("".join(map(str, digits)))
    raw = unscaled.to_bytes((unscaled.bit_length() + 7) // 8, "big")
    array = b"u" + _desc("[B", 2, []) + struct.pack(">i", len(raw)) + raw
    signum = 0 if not unscaled else -1 if sign else 1
    integer = _object(
        "java.math.BigInteger", 3, [("I", "signum"), ("[B", "magnitude")], struct.pack(">i", signum) + array + b"x"
    )
    return _object(
        "java.math.BigDecimal",
        2,
        [("I", "scale"), ("Ljava/math/BigInteger;", "intVal")],
        struct.pack(">i", -exponent) + integer,
    )


def _timestamp(millis: int, nanos: int) -> bytes:
    date = _desc("java.util.Date", 3, [])
    return _object(
        "java.sql.Timestamp",
        2,
        [("I", "nanos")],
        b"w\x08" + struct.pack(">q", millis) + b"x" + struct.pack(">i", nanos),
        date,
    )


def _bounds(low: bytes, high: bytes) -> bytes:
    fields = [("Ljava/lang/Object;", "max"), ("Ljava/lang/Object;", "min")]
    return java.MAGIC + _object("com.ibm.metaindex.metadata.index.types.MinMaxMetaData", 2, fields, high + low)


def _values(content: bytes) -> bytes:
    fields = [("Lscala/collection/Set;", "values")]
    return java.MAGIC + _object("com.ibm.metaindex.metadata.index.types.ValueListMetaData", 2, fields, content)


def _passes(found, test) -> list[bool]:
    return found.may_pass(test).to_pylist()


@pytest.mark.parametrize(
    ("low", "high", "family", "keys"),
    [
        (_number("Integer", "I", 3), _number("Integer", "I", 5), "integer", (2, 4, 6)),
        (_number("Long", "J", 3), _number("Long", "J", 5), "integer", (2, 4, 6)),
        (_number("Short", "S", 3), _number("Short", "S", 5), "integer", (2, 4, 6)),
        (_number("Double", "D", 3), _number("Double", "D", 5), "double", tuple(map(order_key, (2.0, 4.0, 6.0)))),
        (_number("Float", "F", 3), _number("Float", "F", 5), "float", tuple(map(order_key, (2.0, 4.0, 6.0)))),
        (_text("c"), _text("e"), "string", (b"b", b"d", b"f")),
        (_decimal("-1.50"), _decimal("2.5"), "decimal", tuple(map(Decimal, ("-2.00", "0.00", "3.00")))),
        (_timestamp(1000, 0), _timestamp(3000, 0), "timestamp", (0, 2_000_000, 4_000_000)),
    ],
)
def test_bounds_of_all_types_are_read(low, high, family, keys):
    found, type_ = old_bounds([_bounds(low, high), None, _bounds(b"p", b"p"), b"no stream"])
    assert type_.family == family
    below, inside, above = (_passes(found, Among(frozenset({key}))) for key in keys)
    # A cell that is NULL or damaged is unknown; one without bounds has no values.
    assert (below, inside, above) == ([False, True, False, True], [True, True, False, True], [False, True, False, True])


@pytest.mark.parametrize(
    "content",
    [
        # A mutable set of Scala 2.12: load factor, size, seed, no index.
        _object(
            "scala.collection.mutable.HashSet",
            3,
            [],
            b"w\x0d" + struct.pack(">iii?", 450, 2, 5, False) + _text("a") + _text("b") + b"x",
        ),
        # An immutable one of 2.12, and a small one.
        _object(
            "scala.collection.immutable.HashSet$SerializationProxy",
            3,
            [],
            b"w\x04" + struct.pack(">i", 2) + _text("a") + _text("b") + b"x",
        ),
        _object(
            "scala.collection.immutable.Set$Set2",
            2,
            [("Ljava/lang/Object;", "elem1"), ("Ljava/lang/Object;", "elem2")],
            _text("a") + _text("b"),
        ),
        # Any of 2.13: a factory, the size, the elements.
        _object(
            "scala.collection.generic.DefaultSerializationProxy",
            3,
            [("Lscala/collection/Factory;", "factory")],
            b"p" + b"w\x04" + struct.pack(">i", 2) + _text("a") + _text("b") + b"x",
        ),
    ],
)
def test_sets_of_all_forms_are_read(content):
    found, type_ = old_values([_values(content), b"", None])
    assert type_ == ColumnType("string")
    assert _passes(found, Among(frozenset({b"a"}))) == [True, True, True]
    assert _passes(found, Among(frozenset({b"c"}))) == [False, True, True]
    assert _passes(found, Range(">", b"b")) == [False, True, True]


@pytest.mark.parametrize(
    "content",
    [
        _object(
            "scala.collection.mutable.HashSet",
            3,
            [],
            b"w\x0d" + struct.pack(">iii?", 450, 3, 5, False) + _text("a") + b"x",
        ),
        _object("scala.collection.mutable.HashSet", 3, [], _text("a") + b"x"),
        _object("scala.collection.mutable.TreeSet", 3, [], b"x"),
        _text("a"),
        b"p",
    ],
)
def test_sets_that_are_not_certain_are_unknown(content):
    good = _object("scala.collection.immutable.Set$Set1", 2, [("Ljava/lang/Object;", "elem1")], _text("a"))
    found, _ = old_values([_values(content), _values(good)])
    assert _passes(found, Among(frozenset({b"c"}))) == [True, False]


def test_dates_and_mixtures_are_not_used():
    # A date is midnight in the zone of whoever wrote it.
    date = _object("java.sql.Date", 2, [], b"w\x08" + bytes(8) + b"x", _desc("java.util.Date", 3, []))
    with pytest.raises(OddCells):
        old_bounds([_bounds(date, date)])
    with pytest.raises(OddCells):
        old_bounds([_bounds(_text("a"), _number("Integer", "I", 1))])
    with pytest.raises(OddCells):
        old_bounds([_bounds(_timestamp(0, 1), _timestamp(0, 1))])
    with pytest.raises(OddCells):
        old_values([None])


def test_columns_of_nothing_but_null_rule_out_all_comparisons():
    found, type_ = old_bounds([_bounds(b"p", b"p")])
    assert _passes(found, Range(">", 0)) == [False]
    assert type_ == ColumnType("integer")
    with pytest.raises(OddCells):
        old_bounds([_bounds(b"p", b"p"), b"no stream"])


def test_objects_of_too_many_bytes_are_not_read(monkeypatch):
    monkeypatch.setattr(java, "MAX_BYTES", 100)
    with pytest.raises(OddCells, match="more than 100 bytes"):
        old_bounds([_bounds(_text("a"), _text("b"))])
