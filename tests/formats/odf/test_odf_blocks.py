from __future__ import annotations

import random
from collections.abc import Callable
from struct import pack
from typing import Any

import flatbuffers
import pytest

from kartosql.errors import FormatError, KartosqlError
from kartosql.formats.odf import blocks, hashes, times
from kartosql.formats.odf.blocks import MANIFEST_KIND, Block, read_block, read_root, write_block, write_root
from kartosql.formats.odf.data_schema import event_schema
from kartosql.formats.odf.manifest import to_manifest
from odf_data import DID, SCHEMA, SEED, TIME, slice_of

STRING = {"kind": "String"}


def block_of(event: dict[str, Any], version: int = 3) -> Block:
    return Block(version, TIME, hashes.hash_of(b""), 7, event)


def value_of(field: blocks.Field, pick: random.Random, depth: int) -> Any:
    """Return a random value that a field can hold."""
    if field.many:
        return [one_of(field, pick, depth) for _ in range(pick.randrange(3))]
    return one_of(field, pick, depth)


def one_of(field: blocks.Field, pick: random.Random, depth: int) -> Any:
    if field.kind == "scalar":
        if field.of == "bool":
            return pick.random() < 0.5
        bits = int(field.of[1:]) - (field.of[0] == "i")
        return pick.choice([0, 1, (1 << bits) - 1, *([-(1 << bits)] if field.of[0] == "i" else [])])
    if field.kind == "enum":
        return pick.choice(blocks.ENUMS[field.of][1])
    if field.kind == "union":
        simple = [m for m in blocks.UNIONS[field.of] if not blocks.member_table(field.of, m).fields]
        members = simple if depth > 4 and simple else blocks.UNIONS[field.of]
        member = pick.choice(members)
        return {"kind": member, **table_of(blocks.member_table(field.of, member), pick, depth + 1)}
    if field.kind == "table":
        return table_of(blocks.TABLES[field.of], pick, depth + 1)
    return {
        "string": pick.choice(["", "x", "schön\n"]),
        "bytes": pick.randbytes(pick.randrange(9)),
        "hash": hashes.hash_of(pick.randbytes(2)),
        "did": DID,
        "time": pick.choice([0, TIME, TIME + 1, -1, 10**18]),
        "json": {"kamu.dev/a": pick.choice([1, "x", [None, True], {"b": 1.5}])},
    }[field.kind]


def table_of(table: blocks.TableLayout, pick: random.Random, depth: int) -> dict[str, Any]:
    found = {}
    for field in table.fields:
        is_plain = field.kind in ("scalar", "enum") and not field.optional
        if field.required or is_plain or (pick.random() < 0.6 and depth < 7):
            found[field.name] = value_of(field, pick, depth)
    return found


def event_of(kind: str, pick: random.Random) -> dict[str, Any]:
    event = {"kind": kind, **table_of(blocks.member_table("MetadataEvent", kind), pick, 0)}
    if kind == "SetDataSchema":
        event.pop("schema", None)
        event["rawArrowSchema"] = SCHEMA["rawArrowSchema"]
    return event


@pytest.mark.parametrize("kind", blocks.UNIONS["MetadataEvent"])
def test_every_kind_of_event_is_read_as_it_was_written(kind: str) -> None:
    for seed in range(100):
        pick = random.Random(f"{kind} {seed}")
        for version in (2, 3):
            block = block_of(event_of(kind, pick), version)
            data = write_block(block)
            assert read_block(data) == block
            assert write_block(read_block(data)) == data


def test_versions_differ_in_the_alignment_of_times() -> None:
    event = {"kind": "AddData", "newWatermark": TIME, "newSourceState": {"sourceName": "a", "kind": "b", "value": "c"}}
    old, new = write_block(block_of(event, 2)), write_block(block_of(event, 3))
    assert old != new
    assert read_block(old).event == read_block(new).event == event


def test_an_optional_number_may_be_zero_and_others_need_not_be_stored() -> None:
    with_zero = read_block(write_block(block_of({"kind": "AddData", "prevOffset": 0, "newWatermark": TIME})))
    without = read_block(write_block(block_of({"kind": "AddData", "newWatermark": TIME})))
    assert with_zero.event["prevOffset"] == 0
    assert "prevOffset" not in without.event
    first = slice_of(0, 0)
    assert read_block(write_block(block_of(first))).event["newData"]["offsetInterval"] == {"start": 0, "end": 0}


@pytest.mark.parametrize("version", [0, 1, 4, -1, 1 << 30])
def test_other_versions_are_refused(version: int) -> None:
    content = write_root("MetadataBlock", {"systemTime": TIME, "sequenceNumber": 0, "event": SEED})
    data = write_root("Manifest", {"kind": MANIFEST_KIND, "version": version, "content": content})
    with pytest.raises(FormatError, match=f"version {version} is not supported") as caught:
        read_block(data)
    assert caught.value.code == "odf-unsupported-version"


def test_an_unknown_event_is_refused() -> None:
    data = bytearray(
        write_root("MetadataBlock", {"systemTime": TIME, "sequenceNumber": 0, "event": {"kind": "SetInfo"}})
    )
    (at,) = (i for i in range(len(data)) if data[i] == 8 and read_tag(data, i))
    data[at] = 14
    whole = write_root("Manifest", {"kind": MANIFEST_KIND, "version": 3, "content": bytes(data)})
    with pytest.raises(FormatError, match="event of kind 14") as caught:
        read_block(whole)
    assert caught.value.code == "odf-unknown-event"


def read_tag(data: bytearray, at: int) -> bool:
    """Return whether a byte is the tag of the event: changed, it makes another one."""
    changed = bytes(data[:at]) + b"\x0d" + bytes(data[at + 1 :])
    try:
        return bool(read_root(changed, "MetadataBlock", "it")["event"]["kind"] == "DisablePollingSource")
    except FormatError:
        return False


def test_other_manifests_are_refused() -> None:
    data = write_root("Manifest", {"kind": 5, "version": 3, "content": b""})
    with pytest.raises(FormatError, match="no metadata block"):
        read_block(data)


@pytest.mark.parametrize("event", [{"kind": "SetDataSchema"}, {**SCHEMA, "schema": {"fields": []}}])
def test_a_schema_has_one_form(event: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="not both or none"):
        write_block(block_of(event))
    content = write_root("MetadataBlock", {"systemTime": TIME, "sequenceNumber": 0, "event": event})
    with pytest.raises(FormatError, match="not both or none"):
        read_block(write_root("Manifest", {"kind": MANIFEST_KIND, "version": 3, "content": content}))


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "Seed"},
        {"kind": "Seed", "datasetId": b"x", "datasetKind": "Root"},
        {**SEED, "datasetKind": "Other"},
        {**SEED, "more": 1},
        {"kind": "Nothing"},
        {"kind": "AddData", "prevOffset": -1},
        {"kind": "AddData", "prevOffset": 1 << 64},
        {"kind": "AddData", "prevCheckpoint": b"x"},
    ],
)
def test_what_an_event_cannot_hold_is_not_written(event: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        write_block(block_of(event))


def every_block() -> list[bytes]:
    pick = random.Random(1)
    found = [write_block(block_of(event_of(kind, pick))) for kind in blocks.UNIONS["MetadataEvent"]]
    nested = {"kind": "List", "itemType": {"kind": "Struct", "fields": [{"name": "a", "type": STRING}]}}
    schema = {"fields": [{"name": "n", "type": nested, "extra": {"a/b": 1}}]}
    return [*found, write_block(block_of({"kind": "SetDataSchema", "schema": schema}))]


def test_truncated_blocks_are_refused() -> None:
    for data in every_block():
        for length in range(0, len(data) - 1, 3):
            with pytest.raises(FormatError) as caught:
                read_block(data[:length], "block f1620")
            assert "block f1620" in caught.value.message


def outcome(call: Callable[[], object]) -> str:
    """Return the code of the error that a call gives, empty if it gives none."""
    try:
        call()
    except KartosqlError as e:
        return e.code
    return ""


def test_damaged_blocks_give_a_block_or_an_error_of_ours() -> None:
    pick = random.Random(2)
    kinds = {"", "odf-invalid-block", "odf-unsupported-version", "odf-unknown-event"}
    for data in every_block():
        for _ in range(400):
            changed = bytearray(data)
            for _ in range(pick.randrange(1, 4)):
                at = pick.randrange(len(changed))
                if pick.random() < 0.5:
                    changed[at] = pick.choice([0, 1, 4, 0x7F, 0x80, 0xFF, pick.randrange(256)])
                else:
                    changed[at : at + 4] = pack("<I", pick.choice([0, 1, 4, len(data), 1 << 31, 0xFFFFFFFF, at]))
            assert outcome(lambda data=bytes(changed): to_manifest(read_block(data))) in kinds


def test_damaged_arrow_schemas_give_a_schema_or_an_error_of_ours() -> None:
    pick = random.Random(3)
    data = SCHEMA["rawArrowSchema"]
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(pick.randrange(1, 4)):
            changed[pick.randrange(len(changed))] = pick.randrange(256)
        event = {"kind": "SetDataSchema", "rawArrowSchema": bytes(changed)}
        assert outcome(lambda event=event: event_schema(event)) in ("", "odf-invalid-schema")


def test_tables_that_share_their_parts_do_not_explode() -> None:
    # A struct of 40 fields that all are the struct below, ten levels deep: 40**10 fields.
    data = shared_structs(levels=10, width=40)
    with pytest.raises(FormatError, match="share parts"):
        read_root(data, "DataSchema", "it")


def shared_structs(levels: int, width: int) -> bytes:
    builder = flatbuffers.Builder()
    name = builder.CreateString("a")

    def table(slots: dict[int, int], tag: int = 0) -> int:
        builder.StartObject(3)
        for slot, target in slots.items():
            if tag and slot == 2:
                builder.PrependUint8Slot(1, tag, 0)
            builder.PrependUOffsetTRelativeSlot(slot, target, 0)
        return builder.EndObject()

    def offsets(targets: list[int]) -> int:
        builder.StartVector(4, len(targets), 4)
        for target in reversed(targets):
            builder.PrependUOffsetTRelative(target)
        return builder.EndVector()

    type_, tag = table({}), 24
    for _ in range(levels):
        field = table({0: name, 2: type_}, tag)
        type_, tag = table({0: offsets([field] * width)}), 21
    builder.Finish(table({0: offsets([table({0: name, 2: type_}, tag)])}))
    return bytes(builder.Output())


def test_types_are_not_nested_without_end() -> None:
    type_: dict[str, Any] = STRING
    for _ in range(200):
        type_ = {"kind": "List", "itemType": type_}
    data = write_root("DataSchema", {"fields": [{"name": "a", "type": type_}]})
    with pytest.raises(FormatError, match="levels deep"):
        read_root(data, "DataSchema", "it")


def test_extra_attributes_are_one_json_object() -> None:
    good = write_root("DataSchema", {"fields": [], "extra": {"a/b": "12345678"}})
    for text in (b'{"a":NaN}       ', b"[1]              ", b'{"a":1,"a":2}    ', b'{"a/b":"\xff"}     '):
        bad = good.replace(b'{"a/b":"12345678"}', text.ljust(18))
        assert bad != good
        with pytest.raises(FormatError, match="it: "):
            read_root(bad, "DataSchema", "it")


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-04T05:06:07.089Z",
        "1969-12-31T23:59:59.999999999Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T00:00:00.000001Z",
    ],
)
def test_times_are_texts_and_parts(text: str) -> None:
    moment = times.from_text(text)
    assert times.to_text(moment) == text
    assert times.from_parts(*times.to_parts(moment)) == moment


@pytest.mark.parametrize(
    "parts", [(0, 1, 0, 0), (2023, 366, 0, 0), (2024, 0, 0, 0), (2024, 1, 86400, 0), (2024, 1, 0, 10**9)]
)
def test_parts_that_are_no_moment(parts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no"):
        times.from_parts(*parts)
