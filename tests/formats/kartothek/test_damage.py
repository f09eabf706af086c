"""Damaged real files: whatever the bytes, nothing but our own errors and warnings comes out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import golden
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.formats.kartothek.metadata import parse_document, read_schema
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store

QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
UUIDS = ["retail++seed", "grid3++by_i4", "types1++seed", "pd-multi", "tsdim++seed", "odd-Names_1++seed"]


def _read(folder: str, name: str) -> bytes:
    return golden.find(f"kartothek/{folder}/{name}").read_bytes()


edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "drop", "insert", "cut", "double"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(max_size=6),
    ),
    min_size=1,
    max_size=4,
)


def damage(data: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for kind, place, extra in edits:
        at = int(place * len(data))
        if kind == "set":
            data = data[:at] + extra + data[at + len(extra) :]
        elif kind == "drop":
            data = data[:at] + data[at + 1 + len(extra) :]
        elif kind == "insert":
            data = data[:at] + extra + data[at:]
        elif kind == "cut":
            data = data[:at]
        else:
            data = data[:at] + data[at // 2 :]
    return data


# Values that stand where something else belongs.
odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["..", "/", "u/../x", "\0", "\ud800", "p=1/p=2", "ktk_cube_is_seed", "%", "=", "a" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Return the path of every value inside of ``value``."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def replace(value: Any, path: tuple[Any, ...], new: object, *, rename: bool) -> None:
    for key in path[:-1]:
        value = value[key]
    if rename and isinstance(value, dict):
        value[str(new)] = value.pop(path[-1])
    else:
        value[path[-1]] = new


def problem(function: Callable[..., Any], *args: Any) -> KartosqlError | None:
    """Call ``function``; anything that is no error of ours comes out and fails the test."""
    try:
        function(*args)
    except KartosqlError as e:
        return e
    return None


def use_all_of(document, schema) -> None:
    """Look at everything that a dataset derives from its document and schema."""
    for table in Dataset(document, dict.fromkeys(document.tables or ("table",), schema)).tables.values():
        assert len(table.partitions.part_of_file) == len(table.files) == len(table.labels)
        table.partitions.arrow
        assert list(table.types)


@QUICK
@given(st.sampled_from(UUIDS), edits)
def test_damaged_json_documents(uuid, edits):
    key = f"{uuid}.by-dataset-metadata.json"
    error = problem(parse_document, damage(_read("ktk_store", key), edits), key, uuid)
    assert error is None or key in error.message


@QUICK
@given(edits)
def test_damaged_msgpack_documents(edits):
    key = "pl-ext.by-dataset-metadata.msgpack.zstd"
    data = _read("plateau_store", key)
    inside = zstandard.compress(damage(zstandard.decompress(data), edits))
    for damaged in (damage(data, edits), inside):
        error = problem(parse_document, damaged, key, "pl-ext")
        assert error is None or key in error.message


@QUICK
@given(st.sampled_from(UUIDS), st.data())
def test_documents_with_odd_values(uuid, data):
    key = f"{uuid}.by-dataset-metadata.json"
    document = json.loads(_read("ktk_store", key))
    table = next(iter(next(iter(document["partitions"].values()))["files"]))
    schema = read_schema(_read("ktk_store", f"{uuid}/{table}/_common_metadata"), "schema")
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(document) or [("dataset_uuid",)]))
        replace(document, path, data.draw(odd), rename=data.draw(st.booleans()))
    as_json = json.dumps(document).encode()
    forms = [(as_json, key)]
    try:
        packed = msgpack.packb(json.loads(as_json))
        forms.append((zstandard.compress(packed), f"{uuid}.by-dataset-metadata.msgpack.zstd"))
    except (OverflowError, UnicodeEncodeError):
        pass  # msgpack cannot say it
    for encoded, name in forms:
        error = problem(lambda encoded, name: use_all_of(parse_document(encoded, name, uuid), schema), encoded, name)
        assert len(str(error).encode()) < 2000


@QUICK
@given(st.sampled_from(UUIDS[:3]), edits)
def test_damaged_schema_files(uuid, edits):
    key = f"{uuid}/table/_common_metadata"
    error = problem(read_schema, damage(_read("ktk_store", key), edits), key)
    assert error is None or error.message.startswith(key)


@pytest.fixture
def root(copy_of) -> Path:
    return copy_of("retail++", "mpack++")


@settings(QUICK, max_examples=60)
@given(data=st.data())
def test_a_damaged_cube_gives_errors_and_warnings_of_ours(data, root):
    files = sorted(p for p in root.rglob("*") if "by-dataset-metadata" in p.name or p.name == "_common_metadata")
    originals = {path: path.read_bytes() for path in files}
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True))
    try:
        for path in chosen:
            _break(path, data)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _open_all(root)
        assert {w.category for w in caught} <= {KartosqlWarning}
    finally:
        for path, content in originals.items():
            path.write_bytes(content)


def _break(path: Path, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        path.write_bytes(damage(path.read_bytes(), data.draw(edits)))
    else:
        path.unlink()


CODES = {
    "invalid-metadata", "invalid-schema", "invalid-cube", "unsupported-version",
    "missing-metadata", "unsafe-key", "invalid-partition-value", "too-large",
}  # fmt: skip


def _open_all(root: Path) -> None:
    snapshot = Snapshot(Store(str(root)))
    for prefix in sorted(set(snapshot.members) | set(snapshot.cubes())):
        error = problem(_open, snapshot, prefix)
        assert error is None or error.code in CODES


def _open(snapshot: Snapshot, prefix: str) -> None:
    for member in snapshot.cube(prefix).members.values():
        member.table.partitions.arrow


def test_damage_does_damage():
    key = "retail++seed.by-dataset-metadata.json"
    data = _read("ktk_store", key)
    assert problem(parse_document, data, key, "retail++seed") is None
    assert problem(parse_document, damage(data, [("cut", 0.5, b"")]), key, "retail++seed")
