from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kartosql.errors import FormatError
from kartosql.formats.odf import data_schema
from kartosql.formats.odf.data_schema import NAIVE, compare_events, compare_schemas, event_schema, from_arrow, to_arrow

EVERY = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms")),
    *(pa.time64("us"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ms", "UTC")),
    *(
        pa.timestamp("us", "Europe/Berlin"),
        pa.duration("s"),
        pa.duration("ns"),
        pa.decimal32(9, 2),
        pa.decimal64(18, 4),
    ),
    *(pa.decimal128(38, 10), pa.decimal256(76, 20), pa.decimal128(10, -2), pa.string(), pa.large_string()),
    *(pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16), pa.list_(pa.int32())),
    *(pa.list_(pa.field("item", pa.string(), nullable=False)), pa.large_list(pa.string()), pa.list_view(pa.int64())),
    *(pa.large_list_view(pa.int8()), pa.list_(pa.float32(), 3), pa.struct([]), pa.map_(pa.string(), pa.int64())),
    pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.struct([("c", pa.large_string())]))]),
    pa.map_(pa.string(), pa.list_(pa.int8()), keys_sorted=True),
    pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.list_(pa.timestamp("ms", "UTC"))))])),
]
RAW_ONLY: list[pa.DataType] = [
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string(), ordered=True)),
    *(pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.string()), pa.uuid(), pa.json_(), pa.bool8()),
    pa.dense_union([pa.field("x", pa.int32()), pa.field("y", pa.string())], [3, 5]),
    pa.sparse_union([pa.field("x", pa.int32())]),
    pa.list_(pa.timestamp("us")),
    pa.map_(pa.string(), pa.timestamp("us")),
    pa.list_(pa.dictionary(pa.int8(), pa.string())),
]


@pytest.mark.parametrize("type_", [*EVERY, *RAW_ONLY], ids=str)
def test_every_type_is_kept_as_bytes(type_: pa.DataType) -> None:
    field = pa.field("a", type_, metadata={"k": "v"})
    schema = pa.schema([field, pa.field("ü", type_, nullable=pa.types.is_null(type_))], metadata={"m": "ä" * 50})
    data = data_schema.to_bytes(schema)
    assert data_schema.from_bytes(data).equals(schema, check_metadata=True)
    assert data_schema.to_bytes(data_schema.from_bytes(data)) == data


@pytest.mark.parametrize("type_", EVERY, ids=str)
def test_every_type_that_the_format_has_is_translated_and_back(type_: pa.DataType) -> None:
    schema = pa.schema([pa.field("a", type_), pa.field("b", type_, nullable=pa.types.is_null(type_))])
    assert to_arrow(from_arrow(schema)).equals(schema)


@pytest.mark.parametrize("type_", RAW_ONLY, ids=str)
def test_other_types_are_said_to_be_inexpressible(type_: pa.DataType) -> None:
    with pytest.raises(FormatError, match=r"field 'a'.*not expressible") as caught:
        from_arrow(pa.schema([("a", type_)]))
    assert caught.value.code == "odf-invalid-schema"


def test_without_encodings_layouts_are_gone_but_zones_are_not() -> None:
    schema = pa.schema([("a", pa.large_string()), ("b", pa.timestamp("us")), ("c", pa.date64())])
    fields = from_arrow(schema, encodings=False)["fields"]
    assert [f.get("extra") for f in fields] == [None, {NAIVE: True}, None]


def option(kind: Any) -> dict[str, Any]:
    return {"kind": "Option", "inner": {"kind": kind} if isinstance(kind, str) else kind}


@pytest.mark.parametrize(
    ("type_", "extra"),
    [
        ({"kind": "Decimal", "precision": 77, "scale": 0}, None),
        ({"kind": "Decimal", "precision": 0, "scale": 0}, None),
        ({"kind": "Decimal", "precision": 39, "scale": 0}, {"arrow.apache.org/decimalEncoding": {"bitWidth": 128}}),
        ({"kind": "Decimal", "precision": 3, "scale": 0}, {"arrow.apache.org/decimalEncoding": {"bitWidth": 7}}),
        ({"kind": "Decimal", "precision": 3, "scale": 0}, {"arrow.apache.org/decimalEncoding": "x"}),
        ({"kind": "String"}, {"arrow.apache.org/bufferEncoding": {"kind": "RunEnd"}}),
        ({"kind": "String"}, {"arrow.apache.org/bufferEncoding": 5}),
        ({"kind": "String"}, {"arrow.apache.org/bufferEncoding": {"kind": [], "offsetBitWidth": {}}}),
        ({"kind": "Binary", "fixedLength": 1 << 40}, None),
        ({"kind": "List", "itemType": {"kind": "Int8"}, "fixedLength": 1 << 40}, None),
        ({"kind": "Map", "keyType": option("String"), "valueType": {"kind": "Int8"}}, None),
        (option(option("Int8")), None),
    ],
    ids=str,
)
def test_logical_types_that_arrow_has_not(type_: dict[str, Any], extra: dict[str, Any] | None) -> None:
    with pytest.raises(FormatError) as caught:
        to_arrow({"fields": [{"name": "a", "type": type_, "extra": extra}]}, "block f1620")
    assert caught.value.code == "odf-invalid-schema"
    assert "block f1620, field 'a'" in caught.value.message


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 64, b"\0" * 64, pa.schema([]).serialize().to_pybytes()])
def test_bytes_that_are_no_schema(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        event_schema({"kind": "SetDataSchema", "rawArrowSchema": data}, "block f1620")
    assert caught.value.code == "odf-invalid-schema"
    assert "block f1620" in caught.value.message


# -- evolution -------------------------------------------------------------------------------

BASE = pa.schema(
    [("a", pa.int32()), ("s", pa.struct([("x", pa.int8())])), ("l", pa.list_(pa.struct([("x", pa.int8())])))]
)


def with_field(at: int, field: pa.Field) -> pa.Schema:
    return BASE.set(at, field)


@pytest.mark.parametrize(
    ("new", "verdict", "words"),
    [
        (BASE, "no-op", "nothing"),
        (BASE.append(pa.field("b", pa.string())), "compatible", "b added (VARCHAR)"),
        (BASE.append(pa.field("b", pa.string(), nullable=False)), "incompatible", "b added (VARCHAR, not NULL)"),
        (BASE.remove(0), "incompatible", "a removed"),
        (with_field(0, pa.field("b", pa.int32())), "incompatible", "a removed; b added (INTEGER)"),
        (with_field(0, pa.field("a", pa.int64())), "incompatible", "type of a changed from INTEGER to BIGINT"),
        (with_field(0, pa.field("a", pa.int32(), nullable=False)), "incompatible", "a must not be NULL"),
        (with_field(0, pa.field("a", pa.int32(), metadata={"k": "v"})), "compatible", "attributes changed"),
        (BASE.with_metadata({"k": "v"}), "compatible", "attributes changed"),
        (pa.schema([BASE.field(1), BASE.field(0), BASE.field(2)]), "compatible", "order of columns changed"),
        (
            with_field(1, pa.field("s", pa.struct([("x", pa.int8()), ("y", pa.int8())]))),
            "compatible",
            "s.y added (TINYINT)",
        ),
        (with_field(1, pa.field("s", pa.struct([("x", pa.int16())]))), "incompatible", "type of s.x changed"),
        (with_field(1, pa.field("s", pa.int8())), "incompatible", "type of s changed"),
        (
            with_field(2, pa.field("l", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.int8())])))),
            "compatible",
            "l[].y added (TINYINT)",
        ),
        (with_field(2, pa.field("l", pa.list_(pa.struct([])))), "incompatible", "l[].x removed"),
        (
            with_field(2, pa.field("l", pa.large_list(BASE.field(2).type.value_field))),
            "compatible",
            "attributes changed",
        ),
        (
            with_field(2, pa.field("l", pa.list_(BASE.field(2).type.value_field, 3))),
            "incompatible",
            "type of l changed",
        ),
    ],
    ids=str,
)
def test_changes_are_told_and_judged(new: pa.Schema, verdict: str, words: str) -> None:
    found = compare_schemas(BASE, new)
    assert found.verdict == verdict
    assert words in str(found)


def test_a_column_without_values_may_get_a_type_between_raw_schemas() -> None:
    old, new = pa.schema([("a", pa.null())]), pa.schema([("a", pa.string())])
    assert compare_schemas(old, new).verdict == "compatible"
    assert "a got a type (VARCHAR)" in str(compare_schemas(old, new))
    assert compare_schemas(new, old).verdict == "incompatible"
    raw, logical = ([{"kind": "SetDataSchema", **form(s)} for s in (old, new)] for form in (raw_form, logical_form))
    assert compare_events(*raw).verdict == "compatible"
    assert compare_events(*logical).verdict == "incompatible"


def raw_form(schema: pa.Schema) -> dict[str, Any]:
    return {"rawArrowSchema": data_schema.to_bytes(schema)}


def logical_form(schema: pa.Schema) -> dict[str, Any]:
    return {"schema": from_arrow(schema)}


def test_layouts_are_no_types() -> None:
    old = pa.schema([("a", pa.string()), ("b", pa.binary()), ("c", pa.date32()), ("d", pa.decimal128(5, 2))])
    new = pa.schema([("a", pa.string_view()), ("b", pa.large_binary()), ("c", pa.date64()), ("d", pa.decimal64(5, 2))])
    assert compare_schemas(old, new).verdict == "compatible"


def test_the_step_from_raw_to_logical_ignores_optionality_only() -> None:
    def logical(schema: pa.Schema) -> dict[str, Any]:
        return {"kind": "SetDataSchema", "schema": from_arrow(schema)}

    raw = {"kind": "SetDataSchema", "rawArrowSchema": data_schema.to_bytes(BASE)}
    required = pa.schema([f.with_nullable(False) for f in BASE])
    assert compare_events(raw, logical(BASE)).verdict == "compatible"
    assert compare_events(raw, logical(required)).verdict == "compatible"
    assert compare_events(raw, raw).verdict == "no-op"
    assert compare_events(logical(BASE), logical(BASE)).verdict == "no-op"
    assert compare_events(logical(BASE), logical(required)).verdict == "incompatible"
    assert compare_events(raw, logical(BASE.remove(0))).verdict == "incompatible"
