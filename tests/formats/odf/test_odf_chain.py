from __future__ import annotations

from typing import Any

import pytest

from kartosql.errors import FormatError, LimitError
from kartosql.formats.odf import hashes
from kartosql.formats.odf.blocks import Block
from kartosql.formats.odf.chain import Vocab, read_chain
from odf_data import SCHEMA, SEED, TIME, slice_of, store_of


def chain_of(*events: dict[str, Any]) -> Any:
    return read_chain(store_of(events).__getitem__)


def refused(*events: dict[str, Any], change: Any = None) -> str:
    with pytest.raises(FormatError) as caught:
        read_chain(store_of(events, change=change).__getitem__, "here")
    assert caught.value.code == "odf-invalid-chain"
    assert "here: block " in caught.value.message
    return caught.value.message


def test_slices_follow_each_other_and_know_their_schema() -> None:
    chain = chain_of(SEED, SCHEMA, slice_of(0, 4), SCHEMA, slice_of(5, 5), slice_of(6, 9))
    assert [(s.start, s.end, s.rows, s.schema_number) for s in chain.slices] == [
        (0, 4, 5, 1),
        (5, 5, 1, 2),
        (6, 9, 4, 2),
    ]
    assert chain.schema.number == 2
    assert chain.slices[0].key == "data/" + hashes.to_text(hashes.hash_of(b"0"))


def test_a_chain_until_a_moment_is_the_chain_of_then() -> None:
    chain = chain_of(SEED, SCHEMA, slice_of(0, 4), slice_of(5, 9))
    assert chain.until(TIME - 1) is None
    assert chain.until(TIME + 2) == chain_of(SEED, SCHEMA, slice_of(0, 4))
    assert chain.until(TIME + 99) == chain


def test_vocabulary_names_what_it_sets_and_leaves_the_rest() -> None:
    chain = chain_of(SEED, {"kind": "SetVocab", "eventTimeColumn": "when"})
    assert chain.vocab == Vocab(event_time_column="when")


def test_the_newest_source_gives_the_key() -> None:
    def push(merge: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "AddPushSource", "sourceName": "s", "read": {"kind": "NdJson"}, "merge": merge}

    keyed = push({"kind": "Ledger", "primaryKey": ["a", "b"]})
    assert chain_of(SEED, keyed).primary_key == ("a", "b")
    assert chain_of(SEED, keyed, push({"kind": "Append"})).primary_key is None


def test_an_event_may_move_the_watermark_only() -> None:
    moved = {"kind": "AddData", "prevOffset": 4, "newWatermark": 7}
    assert chain_of(SEED, SCHEMA, slice_of(0, 4), moved).watermark == 7


def test_only_the_first_block_is_a_seed() -> None:
    assert "has to be a Seed" in refused(SCHEMA)
    assert "has to be a Seed" in refused(SEED, SEED)


def test_data_needs_a_schema() -> None:
    assert "before a SetDataSchema" in refused(SEED, slice_of(0, 1))


@pytest.mark.parametrize("prev", [None, 3, 5])
def test_offsets_continue(prev: int | None) -> None:
    broken = {**slice_of(5, 6), "prevOffset": prev}
    assert "prevOffset does not continue the chain" in refused(SEED, SCHEMA, slice_of(0, 4), broken)
    assert "prevOffset" in refused(
        SEED, SCHEMA, slice_of(0, 4), {"kind": "AddData", "prevOffset": prev, "newWatermark": 1}
    )


@pytest.mark.parametrize(("start", "end"), [(6, 7), (4, 7), (5, 4)])
def test_slices_begin_behind_the_last_one(start: int, end: int) -> None:
    broken = {**slice_of(start, end), "prevOffset": 4}
    assert "has to begin at 5" in refused(SEED, SCHEMA, slice_of(0, 4), broken)


def test_the_first_slice_begins_at_zero() -> None:
    assert "has to begin at 0" in refused(SEED, SCHEMA, {**slice_of(1, 4), "prevOffset": None})


@pytest.mark.parametrize("then", [{}, {"newWatermark": 8}])
def test_watermarks_do_not_fall(then: dict[str, Any]) -> None:
    assert "watermark" in refused(SEED, SCHEMA, slice_of(0, 4, newWatermark=9), slice_of(5, 6, **then))


def test_checkpoints_continue() -> None:
    one, other = ({"physicalHash": hashes.hash_of(b), "size": 1} for b in (b"1", b"2"))
    good = slice_of(5, 6, prevCheckpoint=one["physicalHash"], newCheckpoint=other)
    assert len(chain_of(SEED, SCHEMA, slice_of(0, 4, newCheckpoint=one), good).slices) == 2
    assert "prevCheckpoint" in refused(SEED, SCHEMA, slice_of(0, 4, newCheckpoint=one), slice_of(5, 6))
    assert "prevCheckpoint" in refused(SEED, SCHEMA, slice_of(0, 4, prevCheckpoint=one["physicalHash"]))


def test_an_event_changes_something() -> None:
    assert "changes nothing" in refused(SEED, {"kind": "AddData"})
    same = {"kind": "AddData", "prevOffset": 4, "newWatermark": 9}
    assert "changes nothing" in refused(SEED, SCHEMA, slice_of(0, 4, newWatermark=9), same)
    query = {"kind": "ExecuteTransform", "queryInputs": [{"datasetId": SEED["datasetId"]}]}
    assert "changes nothing" in refused(SEED, query)


def test_an_input_that_moved_is_a_change() -> None:
    moved = {"datasetId": SEED["datasetId"], "newBlockHash": hashes.hash_of(b"")}
    assert chain_of(SEED, {"kind": "ExecuteTransform", "queryInputs": [moved]}).slices == ()


def test_times_do_not_fall() -> None:
    def earlier(number: int, block: Block) -> Block:
        return block._replace(system_time=TIME - number)

    assert "lies before" in refused(SEED, SCHEMA, change=earlier)


def test_numbers_rise_by_one() -> None:
    def skip(number: int, block: Block) -> Block:
        return block._replace(sequence_number=number * 2)

    assert "one more than 0" in refused(SEED, SCHEMA, change=skip)


def test_the_first_block_has_number_zero_and_nothing_before_it() -> None:
    def late(number: int, block: Block) -> Block:
        return block._replace(sequence_number=number + 1)

    def linked(number: int, block: Block) -> Block:
        return block if number else block._replace(prev_block_hash=hashes.hash_of(b""))

    assert "names no block before it" in refused(SEED, change=late)
    assert "the first block names a block before it" in refused(SEED, change=linked)


def test_a_chain_that_says_to_be_endless_is_not_walked() -> None:
    def far(number: int, block: Block) -> Block:
        return block._replace(sequence_number=1 << 63, prev_block_hash=hashes.hash_of(b""))

    with pytest.raises(LimitError) as caught:
        read_chain(store_of([SEED], change=far).__getitem__)
    assert caught.value.code == "odf-chain-too-long"


def test_a_cycle_is_refused_by_the_hashes() -> None:
    files = store_of([SEED, SCHEMA])
    first, second = (k for k in files if k.startswith("blocks/"))
    files[first] = files[second]
    with pytest.raises(FormatError, match="does not match its hash"):
        read_chain(files.__getitem__)


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"zW1a3CNT52HXiJNniLkWMeev3CPRy9QiNRMWGyTrVNg4hY8", "odf-too-old"),
        (b"", "odf-invalid-hash"),
        (b"f1620", "odf-invalid-hash"),
        (b"\xff\xfe", "odf-invalid-hash"),
        (b"f" + b"00" * 90, "odf-invalid-hash"),
        (b"f12209cbc07c3f991725836a3aa2a581ca2029198aa420b9d99bc0e131d9f3e2cbe47", "odf-invalid-hash"),
        (b"f1620" + b"00" * 32, "odf-missing-block"),
    ],
)
def test_heads_that_lead_nowhere(head: bytes, code: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_chain({"refs/head": head}.__getitem__)
    assert caught.value.code == code


def test_a_folder_without_head_is_no_dataset() -> None:
    with pytest.raises(FormatError) as caught:
        read_chain({}.__getitem__)
    assert caught.value.code == "odf-no-dataset"


def test_a_file_hash_by_another_function_is_refused() -> None:
    broken = slice_of(0, 1)
    broken["newData"]["physicalHash"] = hashes.logical_hash(bytes(32))
    assert "physical hash" in refused(SEED, SCHEMA, broken)
