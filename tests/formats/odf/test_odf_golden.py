"""Everything in golden/odf that a codec can answer."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow.parquet as pq
import pytest

import golden
from kartosql.errors import FormatError
from kartosql.formats.odf import data_schema, hashes, times
from kartosql.formats.odf.blocks import Block, read_block, write_block
from kartosql.formats.odf.chain import check_data, read_chain
from kartosql.formats.odf.data_schema import compare_events
from kartosql.formats.odf.logical import logical_hash_of
from kartosql.formats.odf.manifest import _union_from_plain, parse_text, to_json, to_manifest, to_yaml
from odf_data import reader_of


def decoded(block: Block) -> dict[str, Any]:
    found = to_manifest(block)
    return {"version": found["version"], **found["content"]}


def cases(name: str, key: str) -> list[Any]:
    return golden.params("odf/manifest.json", key=name, named=key)


def plain(value: Any) -> Any:
    """Return a decoded value of the manifest with bytes as their base64."""
    if isinstance(value, dict):
        return value["base64"] if set(value) == {"base64"} else {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def read_file(name: str) -> bytes:
    return golden.find(f"odf/{name}").read_bytes()


def fields(schema: Any) -> list[dict[str, Any]]:
    return [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]


@pytest.mark.parametrize("case", cases("blocks", "file"))
def test_blocks_are_decoded_and_written_again_to_the_same_bytes(case: dict[str, Any]) -> None:
    data = read_file(case["file"])
    block = read_block(data)
    assert decoded(block) == plain(case["decoded"])
    assert hashes.to_text(hashes.hash_of(data)) == case["hash"]
    assert write_block(block) == data
    assert parse_text(to_yaml(block)) == parse_text(to_json(block)) == block


@pytest.mark.parametrize("case", cases("yaml", "file"))
def test_texts_of_all_generations_are_read(case: dict[str, Any]) -> None:
    text = read_file(case["file"]).decode()
    block = parse_text(text)
    assert isinstance(block, Block)
    assert decoded(block) == plain(case["decoded"])
    assert hashes.to_text(hashes.hash_of(write_block(block))) == case["block_hash"]
    assert (to_yaml(block) == text) == case["written_back_identically"]


@pytest.mark.parametrize("case", cases("arrow_schemas", "file"))
def test_arrow_schemas_are_read_written_and_translated(case: dict[str, Any]) -> None:
    data = read_file(case["file"])
    schema = data_schema.from_bytes(data)
    assert fields(schema) == case["schema"]["fields"]
    assert data_schema.from_bytes(data_schema.to_bytes(schema)).equals(schema, check_metadata=True)
    if case.get("odf") == "not expressible":
        with pytest.raises(FormatError, match="not expressible"):
            data_schema.from_arrow(schema)
    elif "odf" in case:
        assert data_schema.from_arrow(schema) == case["odf"]
        assert data_schema.to_arrow(case["odf"]).equals(schema)


@pytest.mark.parametrize("case", cases("datasets", "folder"))
def test_chains_are_walked(case: dict[str, Any]) -> None:
    read = reader_of(golden.find(f"odf/{case['folder']}"))
    chain = read_chain(read, case["folder"])
    vocab = {
        "offsetColumn": chain.vocab.offset_column,
        "operationTypeColumn": chain.vocab.operation_type_column,
        "systemTimeColumn": chain.vocab.system_time_column,
        "eventTimeColumn": chain.vocab.event_time_column,
    }
    links = [
        {
            "hash": link.hash,
            "version": link.block.version,
            "sequenceNumber": link.block.sequence_number,
            "systemTime": times.to_text(link.block.system_time),
            "kind": link.block.kind,
        }
        for link in chain.links
    ]
    history = [
        {"number": s.number, "block": s.link.hash, "form": s.form, "arrow": {"fields": fields(s.arrow)}}
        for s in chain.schemas
    ]
    slices = [
        {
            "file": s.key,
            "start": s.start,
            "end": s.end,
            "size": s.size,
            "logicalHash": s.logical_hash,
            "schema_number": s.schema_number,
        }
        for s in chain.slices
    ]
    for s in chain.slices:
        check_data(read(s.key), s)
        table = pq.read_table(golden.find(f"odf/{case['folder']}/{s.key}"))
        assert hashes.to_text(logical_hash_of(table.schema, table.to_batches())) == s.logical_hash
    assert {k: v for k, v in case["expect"].items() if k != "query"} == {
        "id": chain.id,
        "kind": chain.kind,
        "head": chain.head,
        "vocab": vocab,
        "primary_key": None if chain.primary_key is None else list(chain.primary_key),
        "watermark": None if chain.watermark is None else times.to_text(chain.watermark),
        "blocks": links,
        "schema_history": history,
        "slices": slices,
    }


@pytest.mark.parametrize("case", cases("broken", "folder"))
def test_broken_chains_are_refused_by_name_of_fault_and_block(case: dict[str, Any]) -> None:
    read = reader_of(golden.find(f"odf/{case['folder']}"))

    def check() -> None:
        for s in read_chain(read, case["folder"]).slices:
            check_data(read(s.key), s)

    with pytest.raises(FormatError, match=case["error"]) as caught:
        check()
    assert "f1620" in caught.value.message


@pytest.mark.parametrize("case", cases("logical_hashes", "logicalHash"))
def test_logical_hashes_do_not_depend_on_layout(case: dict[str, Any]) -> None:
    for name in case["files"]:
        table = pq.read_table(golden.find(f"odf/{name}"))
        assert hashes.to_text(logical_hash_of(table.schema, table.to_batches())) == case["logicalHash"]


@pytest.mark.parametrize("case", cases("evolution", "name"))
def test_evolution_is_judged(case: dict[str, Any]) -> None:
    old, new = (_union_from_plain("MetadataEvent", plain(case[k]), k, 0) for k in ("old", "new"))
    assert compare_events(old, new).verdict == case["verdict"]


def test_texts_of_hashes() -> None:
    texts = json.loads(read_file("hashes.json"))
    for content, forms in texts["sha3_of_ascii"].items():
        found = hashes.hash_of(content.encode())
        assert hashes.to_text(found) == forms["f"]
        assert found == hashes.from_text(forms["f"]) == hashes.from_text(forms["z"])
    for one, other in texts["same_value"]:
        assert hashes.from_text(one) == hashes.from_text(other)
    for one, other in texts["dataset_ids"]:
        assert hashes.did_from_text(one) == hashes.did_from_text(other)
        assert hashes.did_to_text(hashes.did_from_text(other)) == one
    logical = hashes.from_text(texts["logical_hash_text"])
    assert hashes.check(logical, code=int(texts["logical_hash_code"], 16)) == logical


def test_raw_schemas_in_yaml_are_standard_base64() -> None:
    data = read_file("arrow/kamu-two-columns.bin")
    event = _union_from_plain(
        "MetadataEvent", {"kind": "SetDataSchema", "rawArrowSchema": base64.b64encode(data).decode()}, "event", 0
    )
    assert event["rawArrowSchema"] == data
