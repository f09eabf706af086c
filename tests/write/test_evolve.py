from __future__ import annotations

import base64

import pyarrow as pa
import pytest

import builders
from kartosql.write.change import HeadMoved, heal
from kartosql.write.document import read_raw

KEY = "d/table/_common_metadata"
FIRST, SECOND = (builders.schema_bytes({"x": type_}) for type_ in (pa.int64(), pa.string()))


@pytest.fixture
def pending(store):
    """A dataset whose document asks for another schema file than the one that is there."""
    builders.write_dataset(store, "d", {"x": pa.int64()})
    document = builders.read_document(store, "d")
    document["metadata"]["kartosql_schema"] = {"table": base64.b64encode(SECOND).decode()}
    builders.write_document(store, document)
    return store


def test_the_file_that_the_document_asks_for_is_put_in_place(pending):
    heal(pending, read_raw(pending, "d"))
    assert pending.read(KEY) == SECOND


def test_a_missing_file_is_put_in_place(pending):
    pending.delete([KEY])
    heal(pending, read_raw(pending, "d"))
    assert pending.read(KEY) == SECOND


def test_who_is_late_does_not_replace_a_later_file(pending):
    late = read_raw(pending, "d")
    builders.write_dataset(pending, "d", {"x": pa.float64()})
    later = pending.read(KEY)
    with pytest.raises(HeadMoved):
        heal(pending, late)
    assert pending.read(KEY) == later
