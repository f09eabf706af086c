from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import FormatError, KartosqlWarning
from kartosql.formats.kartothek import history
from kartosql.formats.kartothek.metadata import HISTORY, DatasetDocument
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.odf import hashes
from kartosql.store import Store
from written import write_dataset

TIME = 1_700_000_000_000_000_000
ONE = pa.schema([("a", pa.int64()), ("b", pa.null())])
TWO = pa.schema([("a", pa.int64()), ("b", pa.string())])
DOCUMENT = DatasetDocument("d", "d.by-dataset-metadata.json", ("x", "y"), {"table": ("f", "g")}, (), {}, {})


def written(text: Any, document: DatasetDocument = DOCUMENT) -> DatasetDocument:
    return replace(document, metadata={HISTORY: text})


def text_of(*schemas: pa.Schema, document: DatasetDocument = DOCUMENT) -> str:
    text = None
    for number, schema in enumerate(schemas):
        text = history.recorded(text, {"table": schema}, document, TIME + number)
    assert text is not None
    return text


def chain_of(text: str) -> Any:
    found = history.history_of(written(text))
    assert found is not None
    return found.tables["table"].chain


def test_each_new_schema_is_a_block_and_the_same_one_is_none() -> None:
    once = text_of(ONE)
    assert text_of(ONE, ONE, ONE).count("f1620") == 1
    chain = chain_of(text_of(ONE, ONE, TWO))
    assert [link.block.kind for link in chain.links] == ["Seed", "SetDataSchema", "SetDataSchema"]
    assert [s.arrow for s in chain.schemas] == [ONE, TWO]
    assert [s.form for s in chain.schemas] == ["rawArrowSchema"] * 2
    assert [link.block.version for link in chain.links] == [3] * 3
    assert len(chain_of(once).links) == 2


def test_what_libraries_note_for_themselves_is_not_recorded() -> None:
    noted = ONE.with_metadata({"pandas": "{}"})
    assert text_of(noted).replace(" ", "") != ""
    assert chain_of(text_of(noted)).schemas[0].arrow.metadata is None
    assert len(chain_of(text_of(ONE, noted)).schemas) == 1


def test_times_never_fall() -> None:
    late = history.recorded(None, {"table": ONE}, DOCUMENT, TIME)
    chain = chain_of(history.recorded(late, {"table": TWO}, DOCUMENT, TIME - 5))
    assert [link.block.system_time for link in chain.links] == [TIME] * 3


def test_a_sealed_history_tells_the_schemas() -> None:
    document = written(text_of(ONE, TWO))
    assert document.sealed_schemas == {"table": TWO}
    assert document.sealed_schemas is document.sealed_schemas


@pytest.mark.parametrize(
    "change",
    [
        {"labels": ("x",), "files": {"table": ("f",)}},
        {"labels": ("x", "y", "z"), "files": {"table": ("f", "g", "h")}},
        {"labels": ("x", "z"), "files": {"table": ("f", "g")}},
        {"labels": None, "files": {}},
        {"files": {"table": ("f", "g"), "other": ("h", "i")}},
    ],
    ids=str,
)
def test_other_partitions_break_the_seal(change: dict[str, Any]) -> None:
    assert replace(written(text_of(ONE)), **change).sealed_schemas is None


def test_other_metadata_do_not_break_the_seal() -> None:
    document = written(text_of(ONE))
    document = replace(document, metadata={**document.metadata, "owner": "me"}, indices={"a": {}})
    assert document.sealed_schemas == {"table": ONE}


def test_a_dataset_without_partitions_has_all_its_tables() -> None:
    document = replace(DOCUMENT, labels=(), files={})
    text = history.recorded(None, {"table": ONE, "other": TWO}, document, TIME)
    assert written(text, document).sealed_schemas == {"table": ONE, "other": TWO}


def damaged() -> list[Any]:
    text = text_of(ONE, TWO)
    found = json.loads(text)
    table = found["tables"]["table"]
    blocks = history._unpack(table["chunks"][0], "it")
    flipped = [*blocks[:-1], blocks[-1][:-1] + bytes((blocks[-1][-1] ^ 1,))]

    def with_table(**changes: Any) -> str:
        return json.dumps({**found, "tables": {"table": {**table, **changes}}})

    return [
        "",
        "{",
        "[]",
        5,
        {"format": 1},
        json.dumps({**found, "format": 2}),
        json.dumps({**found, "tables": {}}),
        json.dumps({**found, "tables": [1]}),
        json.dumps({**found, "seal": 5}),
        with_table(chunks=[]),
        with_table(chunks="x"),
        with_table(chunks=["x"]),
        with_table(chunks=["~~~~~"]),
        with_table(chunks=[table["chunks"][0][:-9]]),
        with_table(head="f1620" + "00" * 32),
        with_table(head=5),
        with_table(chunks=[history._pack(flipped)]),
        with_table(chunks=[history._pack(blocks[:1])], head=hashes.to_text(hashes.hash_of(blocks[0]))),
    ]


@pytest.mark.parametrize("number", range(18))
def test_what_is_damaged_is_said_to_be_broken(number: int) -> None:
    assert len(damaged()) == 18
    with pytest.raises(FormatError) as caught:
        _ = written(damaged()[number]).sealed_schemas
    assert caught.value.code in ("broken-schema-history", "odf-invalid-block")
    assert "'d': its schema history" in caught.value.message


def test_blocks_that_are_missing_in_the_middle_break_the_chain() -> None:
    text = text_of(ONE, TWO, ONE)
    found = json.loads(text)
    blocks = history._unpack(found["tables"]["table"]["chunks"][0], "it")
    found["tables"]["table"]["chunks"] = [history._pack([blocks[0], *blocks[2:]])]
    document = written(json.dumps(found))
    assert document.sealed_schemas == {"table": ONE}
    with pytest.raises(FormatError, match="a block is missing"):
        chain_of(json.dumps(found))


def test_damage_anywhere_gives_a_schema_or_an_error_of_ours() -> None:
    pick = random.Random(4)
    text = text_of(ONE, TWO)
    for _ in range(300):
        at = pick.randrange(len(text))
        broken = text[:at] + chr(pick.randrange(32, 127)) + text[at + 1 :]
        try:
            schemas = written(broken).sealed_schemas
        except FormatError:
            continue
        assert schemas is None or list(schemas.values()) == [TWO]


def test_long_histories_are_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "CHUNK_BYTES", 2_000)
    schemas = [pa.schema([(f"c{i}", pa.int64()) for i in range(n)]) for n in range(1, 40)]
    text = text_of(*schemas)
    found = history.history_of(written(text))
    assert found is not None
    assert len(found.tables["table"].chunks) > 3
    assert [s.arrow for s in found.tables["table"].chain.schemas] == schemas
    assert written(text).sealed_schemas == {"table": schemas[-1]}


def test_histories_that_unpack_to_too_much_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(ONE, TWO)
    monkeypatch.setattr(history, "MAX_BYTES", 100)
    with pytest.raises(FormatError, match="more than 100 bytes"):
        chain_of(text)
    monkeypatch.setattr(history, "MAX_CHUNK_BYTES", 100)
    with pytest.raises(FormatError, match="cut off"):
        _ = written(text).sealed_schemas


def test_ten_versions_of_five_hundred_columns_take_little() -> None:
    types = [pa.int64(), pa.float64(), pa.string(), pa.timestamp("us"), pa.bool_(), pa.date32(), pa.null()]
    pick = random.Random(1)
    words = [
        "".join(pick.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(pick.randrange(3, 9))) for _ in range(200)
    ]
    columns: dict[str, pa.DataType] = {}
    while len(columns) < 500:
        columns["_".join(pick.sample(words, 3))] = pick.choice(types)
    text = None
    for number in range(10):
        for name in pick.sample(sorted(columns), 20) if number else ():
            columns[name] = pick.choice(types)
        text = history.recorded(text, {"table": pa.schema(sorted(columns.items()))}, DOCUMENT, TIME + number)
    assert text is not None
    assert len(chain_of(text).schemas) == 10
    assert len(text) <= 32 << 10


# -- readers -----------------------------------------------------------------------------------------


@pytest.fixture
def stored(local: Store) -> Store:
    write_dataset(local, "d", pa.table({"a": [1, 2], "p": [1, 2]}), partition_on=["p"])
    return local


def damage(store: Store, text: Any) -> None:
    document = builders.read_document(store, "d")
    document["metadata"][HISTORY] = text
    builders.write_document(store, document)


def test_the_schema_of_a_history_is_that_of_the_file(stored: Store) -> None:
    sealed = Snapshot(stored).dataset("d")
    builders.forget_history(stored, "d")
    read = Snapshot(stored).dataset("d")
    assert sealed.schemas["table"].equals(read.schemas["table"])
    assert read.schemas["table"].metadata
    assert sealed.tables["table"].types == read.tables["table"].types


def test_a_schema_file_is_not_read_while_the_seal_fits(stored: Store) -> None:
    stored.put("d/table/_common_metadata", b"torn")
    assert Snapshot(stored).dataset("d").schemas["table"].names == ["p", "a"]
    builders.append(stored, "d", pa.table({"a": [3], "p": [1]}))
    with pytest.raises(FormatError) as caught:
        Snapshot(stored).dataset("d")
    assert caught.value.code == "invalid-schema"


@pytest.mark.parametrize("text", [" ", "{}", 5, {"a": 1}, "x" * 99])
def test_a_broken_history_warns_and_blocks_nothing(stored: Store, text: Any) -> None:
    damage(stored, text)
    con = kartosql.connect(stored.url)
    with pytest.warns(KartosqlWarning, match="its schema history is broken"):
        assert con.sql("SELECT sum(a) FROM d").rows() == [(3,)]
    before = stored.read("d.by-dataset-metadata.json")
    with pytest.warns(KartosqlWarning, match="broken"):
        con.append_to_dataset("d", pa.table({"a": [5], "p": [1]}))
    assert before != stored.read("d.by-dataset-metadata.json")
    # What is left of it is not lost.
    assert builders.read_document(stored, "d")["metadata"][HISTORY] == text


def everything(store: Store) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path(store.root).rglob("*") if p.is_file()}


def test_reading_writes_nothing(stored: Store) -> None:
    builders.forget_history(stored, "d")
    before = everything(stored)
    con = kartosql.connect(stored.url)
    con.sql("SELECT * FROM d").rows()
    con.sql("SHOW SCHEMA HISTORY FROM d").rows()
    con.sql("DESCRIBE d").rows()
    assert everything(stored) == before
