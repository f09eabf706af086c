"""Files of Avro that are damaged: errors, and never a byte beside them."""

from __future__ import annotations

import base64
import struct

import pyarrow as pa
import pytest
from pyiceberg.manifest import DEFAULT_READ_VERSION, MANIFEST_LIST_FILE_SCHEMAS, ManifestFile

import kartosql
from kartosql.errors import FormatError
from kartosql.formats.iceberg.avro import records
from kartosql.formats.iceberg.metadata import entries_of, manifests_of
from kartosql.formats.roaring import numbers_of


class Named:
    manifest_list = manifest_path = "m.avro"
    partition_spec_id = content = 0
    sequence_number = 1


# What let pyiceberg's fast decoder read outside of the file; found by fuzzing.
WILD = base64.b64decode("b5aW15aWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWZ5aWlpaWAAAAAAAAAACWlpaWlpaWlpaWlpYBAHkgbw==")


@pytest.mark.parametrize("read", [manifests_of, entries_of])
@pytest.mark.parametrize("data", [WILD, b"", b"Obj\x01", b"Obj\x01\x02" + b"\xff" * 9, b"Obj\x01\x02" + b"\xff" * 40])
def test_lengths_that_lead_out_of_a_file_are_errors(read, data):
    with pytest.raises(FormatError) as caught:
        read(Named(), lambda path: data)
    assert caught.value.code == "iceberg-invalid-metadata"


@pytest.fixture
def listed(tmp_path):
    with kartosql.connect(str(tmp_path), cache="off") as con:
        con.create_dataset("t", pa.table({"a": [1, 2, 3]}))
        con.publish("t", str(tmp_path / "t"), "iceberg")
    (path,) = (tmp_path / "t" / "metadata").glob("snap-*.avro")
    return path.read_bytes()


def test_a_file_that_ends_anywhere_but_behind_a_block_is_torn(listed):
    schema = MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
    assert len(list(records(listed, schema, {-1: ManifestFile}, {}))) == 1
    for size in (len(listed) - 1, len(listed) - 16, len(listed) - 17, len(listed) - 40):
        with pytest.raises((EOFError, ValueError)):
            list(records(listed[:size], schema, {-1: ManifestFile}, {}))


def test_numbers_of_a_bitmap_that_no_64_bits_hold():
    container = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 5)
    with pytest.raises(ValueError, match="too large"):
        numbers_of(struct.pack("<QI", 1, 0xFFFF_FFF7) + container)
