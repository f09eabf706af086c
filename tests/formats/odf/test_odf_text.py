from __future__ import annotations

import copy
import functools
import json
import random
from typing import Any

import pytest

from kartosql.errors import FormatError
from kartosql.formats import odf
from kartosql.formats.odf import hashes
from kartosql.formats.odf.blocks import Block, read_block, write_block
from kartosql.formats.odf.manifest import DatasetSnapshot, from_manifest, parse_text, to_json, to_yaml
from odf_data import SCHEMA, SEED, TIME

HEAD = "kind: MetadataBlock\nversion: 3\ncontent:\n  systemTime: 2026-01-02T03:04:05Z\n  sequenceNumber: 0\n  event:\n"


def event_of(yaml: str) -> dict[str, Any]:
    block = parse_text(HEAD + "".join(f"    {line}\n" for line in yaml.strip().splitlines()))
    assert isinstance(block, Block)
    return block.event


@pytest.mark.parametrize("kind", ["SetVocab", "setVocab", "setvocab"])
def test_kinds_are_written_in_three_ways(kind: str) -> None:
    assert event_of(f"kind: {kind}\noffsetColumn: o") == {"kind": "SetVocab", "offsetColumn": "o"}


@pytest.mark.parametrize("kind", ["SETVOCAB", "Setvocab", "set_vocab", "sEtVocab", "1", "null"])
def test_other_mixes_are_refused(kind: str) -> None:
    with pytest.raises(FormatError, match="is no kind of MetadataEvent"):
        event_of(f"kind: {kind}")


def test_the_oldest_form_of_a_schema_is_read() -> None:
    text = """kind: MetadataBlock
version: 2
content:
  systemTime: 2023-12-20T12:00:00Z
  prevBlockHash: zW1a3CNT52HXiJNniLkWMeev3CPRy9QiNRMWGyTrVNg4hY8
  sequenceNumber: 5
  event:
    kind: setDataSchema
    schema: AAECAw==
"""
    block = parse_text(text)
    assert isinstance(block, Block)
    assert block.event == {"kind": "SetDataSchema", "rawArrowSchema": b"\0\1\2\3"}
    assert block.prev_block_hash == hashes.hash_of(b"multihash")


@pytest.mark.parametrize(
    "event",
    [
        "kind: SetDataSchema",
        "kind: SetDataSchema\nschema: '???'",
        "kind: SetDataSchema\nschema: AAEC\nrawArrowSchema: AAEC",
        "kind: SetDataSchema\nrawArrowSchema: AAEC\nschema:\n  fields: []",
        "kind: SetDataSchema\nschema:\n  fields:\n  - name: a",
        "kind: SetDataSchema\nschema:\n  fields:\n  - name: a\n    type: Decimal",
        "kind: SetDataSchema\nschema:\n  fields:\n  - name: a\n    type: Text",
        "kind: SetDataSchema\nschema:\n  fields: {}",
        "kind: SetInfo\ncolour: red",
        "kind: SetInfo\ndescription: 5",
        "kind: SetInfo\ndescription: [a]",
        "kind: AddData\nprevOffset: -1",
        "kind: AddData\nprevOffset: 18446744073709551616",
        "kind: AddData\nprevOffset: true",
        "kind: AddData\nprevOffset: 1.0",
        "kind: AddData\nprevCheckpoint: abc",
        "kind: AddData\nnewWatermark: yesterday",
        "kind: AddData\nnewWatermark: 2026-02-30T00:00:00Z",
        "kind: AddData\nnewWatermark: 2026-01-01T00:00:00",
        "kind: AddData\nextra: text",
        "kind: Seed\ndatasetId: fed01\ndatasetKind: Root",
        "kind: Seed\ndatasetId: did:odf:fed01\ndatasetKind: Root",
        "description: x",
        "- a",
        "text",
    ],
)
def test_what_no_event_says_is_refused(event: str) -> None:
    with pytest.raises(FormatError) as caught:
        event_of(event)
    assert caught.value.code == "odf-invalid-manifest"
    assert "content.event" in caught.value.message or caught.value.message.startswith("content")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "[]",
        "{",
        '{"kind": "MetadataBlock", "kind": "MetadataBlock"}',
        "kind: MetadataBlock",
        "kind: Other\nversion: 1\ncontent: {}",
        "kind: MetadataBlock\nversion: 9\ncontent: {}",
        HEAD.replace("version: 3", "version: 1") + "    kind: SetInfo",
        HEAD.replace("version: 3", "version: x") + "    kind: SetInfo",
        HEAD + "    kind: SetInfo\n    kind: SetInfo",
        "kind: &a MetadataBlock\nversion: 3\ncontent: *a",
        "kind: !!python/object:os.system x\nversion: 3\ncontent: {}",
        "kind: DatasetSnapshot\nversion: 2\ncontent: {}",
        "\t",
        "[" * 5000,
        "a: " + "x" * (5 << 20),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_text(text)
    assert caught.value.code == "odf-invalid-manifest"


TEXTS = [
    *(
        "",
        " ",
        "a",
        "yes",
        "No",
        "null",
        "~",
        "1",
        "1.5",
        "1e5",
        "0x1",
        "-",
        "- a",
        "a: b",
        "a #b",
        "#",
        "a:",
        "'",
        '"',
    ),
    *("2026-01-02T03:04:05Z", "2026-01-02", "x\ny", "\n", "\t", "\x00", "\x7f", "\x85", "\u2028", "\ufeff", "ü", "😀"),
    *(
        "[a]",
        "{a}",
        "a, b",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "?",
        "? a",
        "|",
        ">",
        "a\\b",
        "=",
        "<<",
        ".inf",
        "...",
        "---",
    ),
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_both_forms(text: str) -> None:
    event = {"kind": "SetInfo", "description": text, "keywords": [text, "x"]}
    block = Block(3, TIME, None, 0, event)
    assert parse_text(to_yaml(block)) == block
    assert parse_text(to_json(block)) == block


def test_snapshots_are_read_and_written() -> None:
    snapshot = DatasetSnapshot("a.b", "Root", ({"kind": "SetInfo", "description": "d"}, SCHEMA))
    assert parse_text(to_yaml(snapshot)) == snapshot
    assert parse_text(to_json(snapshot)) == snapshot
    assert from_manifest(json.loads(to_json(snapshot))) == snapshot
    assert to_yaml(snapshot).startswith(
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: a.b\n  kind: Root\n  metadata:\n  - kind: SetInfo\n"
    )


def test_nothing_nested_too_deeply_is_read() -> None:
    type_: Any = "String"
    for _ in range(100):
        type_ = {"kind": "Option", "inner": type_}
    event = {"kind": "SetDataSchema", "schema": {"fields": [{"name": "a", "type": type_}]}}
    content = {"systemTime": "2026-01-02T03:04:05Z", "sequenceNumber": 0, "event": event}
    with pytest.raises(FormatError, match="levels deep"):
        from_manifest({"kind": "MetadataBlock", "version": 3, "content": content})


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))]


STRANGE: list[Any] = [
    *(None, 0, -1, 1 << 70, 1.5, float("nan"), "", "x", "f1620", "\ud800", [], {}, [[]], [None], {"kind": "x"}, True),
    *(b"x", {1: 2}, {"kind": None}, "AAAA", "2020-01-01T00:00:00Z", {"kind": "String"}),
]


def test_strange_manifests_give_a_block_or_an_error_of_ours() -> None:
    field = {"name": "a", "type": {"kind": "Option", "inner": "Int8"}, "extra": {"a/b": [1]}}
    schema = {"kind": "SetDataSchema", "schema": {"fields": [field]}}
    hash_ = "f1620" + "00" * 32
    slice_ = {"logicalHash": hash_, "physicalHash": hash_, "offsetInterval": {"start": 0, "end": 1}, "size": 5}
    data = {"kind": "AddData", "newData": slice_, "newWatermark": "2026-01-01T00:00:00Z"}
    merge = {"kind": "Ledger", "primaryKey": ["a"]}
    source = {"kind": "AddPushSource", "sourceName": "s", "read": {"kind": "Csv", "header": True}, "merge": merge}
    pick = random.Random(5)
    read = 0
    for _ in range(5_000):
        content = {"systemTime": "2026-01-02T03:04:05Z", "sequenceNumber": 1, "prevBlockHash": hash_}
        event = copy.deepcopy(pick.choice([schema, data, source]))
        manifest: Any = {"kind": "MetadataBlock", "version": 3, "content": {**content, "event": event}}
        *parents, last = pick.choice(paths(manifest)[1:])
        place = functools.reduce(lambda found, key: found[key], parents, manifest)
        place[last] = copy.deepcopy(pick.choice(STRANGE))
        try:
            block = from_manifest(manifest)
        except FormatError as e:
            assert e.code == "odf-invalid-manifest"  # noqa: PT017
            continue
        assert isinstance(block, Block)
        assert read_block(write_block(block)) == block
        assert parse_text(to_json(block)) == block
        read += 1
    assert read > 100


def test_names_of_the_package_are_there() -> None:
    assert all(callable(getattr(odf, name)) for name in odf.__all__)
    with pytest.raises(AttributeError):
        _ = odf.nothing


def test_seeds_have_ids() -> None:
    block = Block(3, TIME, None, 0, SEED)
    assert "datasetId: did:odf:fed01" in to_yaml(block)
    assert parse_text(to_yaml(block)) == block
