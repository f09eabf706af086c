from __future__ import annotations

import pyarrow as pa
import pytest

from builders import schema_bytes
from kartosql.errors import FormatError
from kartosql.formats.kartothek.metadata import merge_types, normalise, read_schema

KEY = "u/table/_common_metadata"


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (pa.int8(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.uint8(), pa.uint64()),
        (pa.uint32(), pa.uint64()),
        (pa.float16(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.bool_(), pa.bool_()),
        (pa.string(), pa.string()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.date32(), pa.date32()),
        (pa.decimal128(5, 2), pa.decimal128(5, 2)),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.null(), pa.null()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.list_(pa.int8()), pa.list_(pa.int64())),
        (pa.list_(pa.field("element", pa.float32())), pa.list_(pa.float64())),
        (pa.large_list(pa.list_(pa.uint16())), pa.list_(pa.list_(pa.uint64()))),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
    ],
    ids=str,
)
def test_types_are_normalised_as_the_original_does(given, normal):
    assert normalise(given) == normal
    assert normalise(normal) == normal
    if pa.types.is_list(normal):
        assert normalise(given).value_field.name == "item"


def test_a_schema_file_gives_columns_in_order_with_its_metadata():
    given = pa.schema([("p", pa.large_string()), ("b", pa.int8()), ("a", pa.float32())], metadata={"pandas": "{}"})
    found = read_schema(schema_bytes(given), KEY)
    assert found == pa.schema([("p", pa.string()), ("b", pa.int64()), ("a", pa.float64())])
    assert found.metadata[b"pandas"] == b"{}"


def test_golden_schemas_have_the_types_of_the_manifest(ktk_store):
    found = read_schema((ktk_store / "types1++seed/table/_common_metadata").read_bytes(), KEY)
    assert found.field("u64").type == pa.uint64()
    assert found.field("dec").type == pa.decimal128(5, 2)
    assert found.field("allnull").type == pa.null()
    assert found.field("li").type == pa.list_(pa.int64())
    assert all(pa.types.is_string(found.field(c).type) for c in ("p", "s", "sx"))


GOOD = schema_bytes({"a": pa.int64(), "b": pa.string()})


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, GOOD[:-1], GOOD[: len(GOOD) // 2], GOOD[:40], b"\0" * len(GOOD)],
    ids=lambda data: f"{len(data)} bytes",
)
def test_torn_schema_files_are_refused(data):
    with pytest.raises(FormatError, match=f"^{KEY}: ") as e:
        read_schema(data, KEY)
    assert e.value.code == "invalid-schema"
    assert e.value.hint


@pytest.mark.parametrize("names", [["a", "a"], [""], ["a\0b"], ["n" * 2000]], ids=["twice", "empty", "nul", "long"])
def test_columns_without_a_usable_name_of_their_own_are_refused(names):
    data = schema_bytes(pa.schema([(name, pa.int64()) for name in names]))
    with pytest.raises(FormatError, match=f"^{KEY}: ") as e:
        read_schema(data, KEY)
    assert e.value.code == "invalid-schema"
    assert len(str(e.value)) < 1000


@pytest.mark.parametrize(
    ("left", "right", "merged"),
    [
        (pa.int64(), pa.int64(), pa.int64()),
        (pa.int64(), pa.null(), pa.int64()),
        (pa.null(), pa.string(), pa.string()),
        (pa.null(), pa.null(), pa.null()),
        (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us")),
        (pa.int64(), pa.uint64(), None),
        (pa.int64(), pa.float64(), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.decimal128(5, 2), pa.decimal128(4, 2), None),
    ],
)
def test_shared_columns_need_one_type(left, right, merged):
    assert merge_types(left, right) == merged
