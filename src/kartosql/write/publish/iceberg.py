"""Iceberg tables over the files of a dataset: the next metadata file, with a snapshot that kartosql makes."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import struct
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import UsageError
from kartosql.formats.iceberg import metadata as documents
from kartosql.formats.iceberg.deletes import PATH_ID, POSITION_ID
from kartosql.store import Store
from kartosql.write.publish import avro
from kartosql.write.publish.live import MAX_BOUND, MAX_TOLD, PER_SECOND, LiveFiles, refused, root_of

_DATASET, _DELETES = "kartosql.dataset", "kartosql.deletes"
_MAPPING = "schema.name-mapping.default"
_FOLDER = "metadata"
FILES_PER_MANIFEST = 20_000
MAX_SNAPSHOTS = 100  # that are remembered
MAX_KNOWN = 200_000  # files in manifests that are not read again
_TYPES = {
    **{pa.bool_(): "boolean", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long"},
    **{pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.large_string(): "string"},
    **{pa.binary(): "binary", pa.large_binary(): "binary", pa.date32(): "date", pa.time64("us"): "time"},
}
_AVRO = {"date": {"type": "int", "logicalType": "date"}}
_EPOCH = dt.date(1970, 1, 1)


class _Listed(NamedTuple):
    """What a manifest says of a file that is listed again."""

    sequence_number: int | None
    snapshot_id: int | None


# The files that data manifests list, by numbers that they inherit, and digests of what they say.
_known: dict[tuple[int, bytes], Mapping[str, _Listed]] = {}


def _note(number: int, data: bytes, files: Mapping[str, _Listed]) -> Mapping[str, _Listed]:
    _known[number, hashlib.sha256(data).digest()] = files
    listed = list(_known.items())
    while len(listed) > 1 and sum(len(files) for _, files in listed) > MAX_KNOWN:
        _known.pop(listed.pop(0)[0], None)
    return files


class IcebergTarget:
    """A folder that is, or becomes, a published Iceberg table."""

    type = "iceberg"
    folder = _FOLDER

    def __init__(self, store: Store) -> None:
        self.store, self._root = store, root_of(store)
        self._before: dict[str, Any] = {}
        self._manifests: list[Any] = []
        self._listed: dict[str, Mapping[str, _Listed]] = {}  # the files in data manifests, by the paths of these
        self._version = 0

    def read(self, name: str) -> None:
        """Read what stands there; raises ``target-taken`` and what is wrong with it."""
        names = {e.name for e in self.store.list_root(_FOLDER) if not e.is_dir}
        self._before, self._manifests, self._version = {}, [], 0
        if not any(n.endswith((".metadata.json", ".metadata.json.gz")) for n in names):
            return
        newest = documents.newest(names, None, self.store.url)  # a hint may be older, or newer than the names
        with documents.decoding(newest):
            self._before = json.loads(self._read(newest)) if newest.startswith("v") else {}
        if _DATASET not in self._before.get("properties", ()):
            raise UsageError(
                f"{self.store.url} is an Iceberg table that something else writes.",
                code="target-taken",
                hint=f"Choose another folder for {name!r}.",
            )
        self._version = int(newest.removeprefix("v").partition(".")[0])
        snapshot = documents.parse(self._read(newest), newest).current_snapshot()
        self._manifests = [] if snapshot is None else documents.manifests_of(snapshot, self._read)
        self._listed = {m.manifest_path: self._files_of(m) for m in self._manifests if not m.content}

    def _files_of(self, manifest: Any) -> Mapping[str, _Listed]:
        number = manifest.sequence_number
        with documents.decoding(manifest.manifest_path):
            data = self._read(manifest.manifest_path)
        if (known := _known.get((number, hashlib.sha256(data).digest()))) is not None:
            return known
        files = documents.entries_of(manifest, lambda _: data).files
        told = [files[n].to_pylist() for n in ("path", "sequence", "snapshot")]
        found = {path: _Listed(*numbers) for path, *numbers in zip(*told, strict=True)}
        return _note(number, data, found)

    def _read(self, path: str) -> bytes:
        return self.store.read_metadata(f"{_FOLDER}/{path.rpartition('/')[2]}")

    def paths(self, source: Store, keys: Sequence[str]) -> Sequence[str]:
        """Return how manifests name files: by their URLs, which are not encoded."""
        root = root_of(source)
        return [f"{root}/{key}" for key in keys]

    def kept(self, paths: Sequence[str]) -> Collection[str]:
        """Return those of some files of which nothing has to be known: their manifests stay."""
        live = {*paths}
        found: set[str] = set()
        for path, files in self._listed.items():
            if files.keys() <= live:
                found.update(files)
            else:
                self._manifests = [m for m in self._manifests if m.manifest_path != path]
        return found

    def write(self, live: LiveFiles, paths: Sequence[str], known: Collection[str]) -> dict[str, Any]:
        """Write the next version unless nothing changed; raises what ``Store.put_if`` raises."""
        before, schema = self._before, _Schema(live, self._before)
        old = {path: listed for files in self._listed.values() for path, listed in files.items()}
        digest = hashlib.sha256(repr(sorted((paths[f], rows) for f, rows in live.deleted.items())).encode()).hexdigest()
        last = next((s for s in before.get("snapshots", ()) if s["snapshot-id"] == before["current-snapshot-id"]), None)
        told = {"added": len({*paths}.difference(old)), "removed": len({*old}.difference(paths))}
        same_deletes = last is not None and last["summary"].get(_DELETES) == digest and not (schema.has_new_spec)
        if last is not None and same_deletes and not any(told.values()) and not schema.is_new:
            return {"version": self._version, **told}
        number, snapshot = before.get("last-sequence-number", 0) + 1, uuid.uuid4().int >> 66
        manifests = [_listed(m) for m in self._manifests if not m.content or same_deletes]
        new = [f for f, path in enumerate(paths) if path not in known]
        encode = _Entries(live, schema, paths, old, snapshot)
        for at in range(0, len(new), FILES_PER_MANIFEST):
            manifests.append(self._manifest(schema, encode, new[at : at + FILES_PER_MANIFEST], number))
        if live.deleted and not same_deletes:
            manifests.append(self._deletes(schema, encode, number))
        name = f"snap-{snapshot}-1-{uuid.uuid4()}.avro"
        heads = {"format-version": "2", "snapshot-id": str(snapshot), "sequence-number": str(number)}
        self.store.put(f"{_FOLDER}/{name}", avro.file(_LIST, heads, map(_manifest_file, manifests)))
        operation = "append" if not told["removed"] and not live.deleted else "overwrite"
        rows = sum(m["added_rows_count"] + m["existing_rows_count"] for m in manifests if not m["content"])
        summary = {"operation": operation, _DELETES: digest, "total-data-files": str(len(paths))}
        summary |= {"total-records": str(rows), "added-data-files": str(told["added"])}
        document = schema.document(self._root, number)
        now = max(int(time.time() * 1000), before.get("last-updated-ms", 0) + 1)
        made = {"snapshot-id": snapshot, "sequence-number": number, "timestamp-ms": now, "summary": summary}
        made |= {"manifest-list": f"{self._root}/{_FOLDER}/{name}", "schema-id": document["current-schema-id"]}
        if last is not None:
            made["parent-snapshot-id"] = last["snapshot-id"]
        document |= {"last-updated-ms": now, "current-snapshot-id": snapshot}
        document["snapshots"] = [*before.get("snapshots", ()), made][-MAX_SNAPSHOTS:]
        log = [*before.get("snapshot-log", ()), {"snapshot-id": snapshot, "timestamp-ms": now}]
        document["snapshot-log"] = log[-MAX_SNAPSHOTS:]
        document["refs"] = {"main": {"snapshot-id": snapshot, "type": "branch"}}
        version = self._version + 1
        self.store.put_if(f"{_FOLDER}/v{version}.metadata.json", json.dumps(document).encode(), None)
        self.store.put(f"{_FOLDER}/{documents.HINT}", str(version).encode())
        return {"version": version, **told}

    def _manifest(self, schema: _Schema, encode: _Entries, files: Sequence[int], number: int) -> dict[str, Any]:
        live = encode.live.only(files)
        encoded = encode.data(live)
        old = [encode.old.get(encode.paths[f]) for f in files]
        kept = [rows for rows, entry in zip(live.rows, old, strict=True) if entry is not None]
        counts = {"added_files_count": len(files) - len(kept), "existing_files_count": len(kept)}
        counts |= {"added_rows_count": sum(live.rows) - sum(kept), "existing_rows_count": sum(kept)}
        oldest = min((entry.sequence_number or 0 for entry in old if entry is not None), default=number)
        made, data = self._put(schema, encoded, 0, number, encode.snapshot, min(oldest, number), counts)
        new = _Listed(number, encode.snapshot)
        paths = (encode.paths[f] for f in files)
        _note(number, data, {path: entry or new for path, entry in zip(paths, old, strict=True)})
        return made

    def _put(
        self,
        schema: _Schema,
        entries: Sequence[bytes],
        content: int,
        number: int,
        snapshot: int,
        oldest: int,
        counts: Mapping[str, int],
    ) -> tuple[dict[str, Any], bytes]:
        name = f"{uuid.uuid4()}-m0.avro"
        heads = {"schema": json.dumps(schema.current), "partition-spec": json.dumps(schema.spec["fields"])}
        heads |= {"partition-spec-id": str(schema.spec["spec-id"]), "format-version": "2"}
        heads["content"] = "deletes" if content else "data"
        data = avro.file(schema.entries, heads, entries)
        self.store.put(f"{_FOLDER}/{name}", data)
        zero = dict.fromkeys((n for n, _, t in _COUNTS if n not in counts), 0)
        where = {"manifest_path": f"{self._root}/{_FOLDER}/{name}", "manifest_length": len(data)}
        where |= {"partition_spec_id": schema.spec["spec-id"], "content": content, "sequence_number": number}
        return {**where, "min_sequence_number": oldest, "added_snapshot_id": snapshot, **zero, **counts}, data

    def _deletes(self, schema: _Schema, encode: _Entries, number: int) -> dict[str, Any]:
        """Write the positions of hidden rows, a file for each partition with some, and the manifest of these."""
        live, by_part = encode.live, dict[int, list[int]]()
        for file in sorted(live.deleted, key=encode.paths.__getitem__):
            by_part.setdefault(live.partitions.part_of_file[file], []).append(file)
        fields = [("file_path", pa.string(), PATH_ID), ("pos", pa.int64(), POSITION_ID)]
        shape = pa.schema([pa.field(n, t, False, {"PARQUET:field_id": str(i)}) for n, t, i in fields])
        encoded, total = [], 0
        for files in by_part.values():
            paths = [encode.paths[f] for f in files for _ in live.deleted[f]]
            rows = pa.table([paths, [row for f in files for row in live.deleted[f]]], schema=shape)
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink)
            name, data = f"{uuid.uuid4()}-deletes.parquet", sink.getvalue().to_pybytes()
            self.store.put(f"{_FOLDER}/{name}", data)
            place = f"{self._root}/{_FOLDER}/{name}"
            encoded.append(encode.deletes(place, files[0], len(paths), len(data), (paths[0], paths[-1])))
            total += len(paths)
        counts = {"added_files_count": len(encoded), "added_rows_count": total}
        return self._put(schema, encoded, 1, number, encode.snapshot, number, counts)[0]


class _Schema:
    """Columns and partitions as Iceberg has them, with the ids that they had; raises ``unsupported-type``."""

    def __init__(self, live: LiveFiles, before: Mapping[str, Any]) -> None:
        self._live, self._before = live, before
        self._next = count(before.get("last-column-id", 0) + 1)
        known = {f["name"]: f for s in before.get("schemas", ()) for f in s["fields"]}
        fields = [self._field(f, known.get(f.name)) for f in live.schema]
        self.ids = {f["name"]: f["id"] for f in fields}
        self.types = {f["name"]: f["type"] for f in fields}
        for key in live.partitions.keys:
            if not isinstance(self.types[key], str) or self.types[key] in ("binary", "time"):
                raise refused(live.name, key, self.types[key], "As a partition column Iceberg")
        self.current, is_new = _numbered(before.get("schemas", ()), {"type": "struct", "fields": fields}, "schema-id")
        places, last = [], before.get("last-partition-id", 999)
        known_places = [f for s in before.get("partition-specs", ()) for f in s["fields"]]
        old = {(f["source-id"], f["name"]): f["field-id"] for f in known_places}
        for key in live.partitions.keys:
            if (found := old.get((self.ids[key], key))) is None:
                found = last = last + 1
            place = {"name": key, "transform": "identity", "source-id": self.ids[key], "field-id": found}
            places.append(place)
        self._last_partition = last
        self.spec, is_other = _numbered(before.get("partition-specs", ()), {"fields": places}, "spec-id")
        self.has_new_spec = bool(before) and self.spec["spec-id"] != before["default-spec-id"]
        is_current = bool(before) and self.current["schema-id"] == before["current-schema-id"]
        self.is_new = is_new or is_other or not is_current or self.has_new_spec
        self.entries = _entry_schema(places, self.types)

    def _field(self, field: pa.Field, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a column; one with a name and a type that were there has its ids."""
        type_ = self._type(field.type, field.name, iter(int, 1))  # without ids
        if known is not None and (_bare(known["type"]) == type_ or _is_wider(known["type"], type_)):
            same = known["type"] if _bare(known["type"]) == type_ else type_
            return {"id": known["id"], "name": field.name, "required": False, "type": same}
        found = {"id": next(self._next), "name": field.name, "required": False}
        return {**found, "type": self._type(field.type, field.name, self._next)}

    def _type(self, type_: pa.DataType, column: str, ids: Iterator[int]) -> Any:
        t = pa.types
        if t.is_dictionary(type_):
            return self._type(type_.value_type, column, ids)
        if type_ in _TYPES:
            return _TYPES[type_]
        if t.is_timestamp(type_):
            return "timestamp" if type_.tz is None else "timestamptz"
        if t.is_decimal128(type_):
            return f"decimal({type_.precision}, {type_.scale})"
        if t.is_struct(type_):
            members = [{"id": next(ids), "name": f.name, "required": False} for f in type_]
            types = (self._type(f.type, column, ids) for f in type_)
            return {"type": "struct", "fields": [{**m, "type": t} for m, t in zip(members, types, strict=True)]}
        if t.is_list(type_) or t.is_large_list(type_):
            found = {"type": "list", "element-id": next(ids), "element-required": False}
            return {**found, "element": self._type(type_.value_type, column, ids)}
        if t.is_map(type_):
            found = {"type": "map", "key-id": next(ids), "value-id": next(ids), "value-required": False}
            key, value = (self._type(inner, column, ids) for inner in (type_.key_type, type_.item_type))
            return {**found, "key": key, "value": value}
        raise refused(self._live.name, column, type_, "Iceberg")

    def document(self, location: str, number: int) -> dict[str, Any]:
        """Return the metadata of the table but for its snapshots."""
        before, name = self._before, self._live.name
        mapping = json.dumps([_mapped(f["id"], [f["name"]], f["type"]) for f in self.current["fields"]])
        return {
            "format-version": 2,
            "table-uuid": before.get("table-uuid") or str(uuid.uuid4()),
            "location": location,
            "last-sequence-number": number,
            "last-column-id": next(self._next) - 1,
            "schemas": _with(before.get("schemas", ()), self.current, "schema-id"),
            "current-schema-id": self.current["schema-id"],
            "partition-specs": _with(before.get("partition-specs", ()), self.spec, "spec-id"),
            "default-spec-id": self.spec["spec-id"],
            "last-partition-id": self._last_partition,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            # Files of the store that are none of the table would be its garbage.
            "properties": {_DATASET: name, _MAPPING: mapping, "gc.enabled": "false"},
        }


def _numbered(known: Sequence[Any], wanted: Mapping[str, Any], key: str) -> tuple[dict[str, Any], bool]:
    """Return what is wanted with the number that it has among those known, or a new one, and whether that is new."""
    for one in known:
        if all(one.get(name) == value for name, value in wanted.items()):
            return one, False
    return {key: max((one[key] for one in known), default=-1) + 1, **wanted}, True


def _with(known: Sequence[Any], one: Mapping[str, Any], key: str) -> list[Any]:
    return [*(k for k in known if k[key] != one[key]), one]


def _bare(type_: Any) -> Any:
    """Return a type with 0 for all ids."""
    if isinstance(type_, str):
        return type_
    if "fields" in type_:
        return {**type_, "fields": [{**f, "id": 0, "type": _bare(f["type"])} for f in type_["fields"]]}
    inner = {name: _bare(type_[name]) for name in ("element", "key", "value") if name in type_}
    return {**type_, **inner, **{name: 0 for name in type_ if name.endswith("-id")}}


def _is_wider(old: Any, new: Any) -> bool:
    """Return whether the format lets a column become of another type."""
    if (old, new) in (("int", "long"), ("float", "double")):
        return True
    if not all(isinstance(t, str) and t.startswith("decimal") for t in (old, new)):
        return False
    (p, s), (q, r) = ([*map(int, t[8:-1].split(","))] for t in (old, new))
    return p <= q and s == r


def _mapped(id_: int, names: Sequence[str], type_: Any) -> dict[str, Any]:
    """Return which columns of files, that have no ids, a column is."""
    found: dict[str, Any] = {"field-id": id_, "names": list(names)}
    if isinstance(type_, dict):
        if "fields" in type_:
            found["fields"] = [_mapped(f["id"], [f["name"]], f["type"]) for f in type_["fields"]]
        else:
            parts = [n for n in ("element", "key", "value") if n in type_]
            found["fields"] = [_mapped(type_[f"{n}-id"], [n], type_[n]) for n in parts]
    return found


# -- manifests -----------------------------------------------------------------------------------

_COUNTS = (
    *(("added_files_count", 504, "int"), ("existing_files_count", 505, "int"), ("deleted_files_count", 506, "int")),
    *(("added_rows_count", 512, "long"), ("existing_rows_count", 513, "long"), ("deleted_rows_count", 514, "long")),
)
_LISTED = (
    *(("manifest_path", 500, "string"), ("manifest_length", 501, "long"), ("partition_spec_id", 502, "int")),
    *(("content", 517, "int"), ("sequence_number", 515, "long"), ("min_sequence_number", 516, "long")),
    *(("added_snapshot_id", 503, "long"), *_COUNTS),
)


def _record(name: str, fields: Sequence[tuple[str, int, Any]]) -> dict[str, Any]:
    listed = [{"name": n, "type": t, "field-id": i} for n, i, t in fields]
    return {"type": "record", "name": name, "fields": listed}


_LIST = _record("manifest_file", _LISTED)


def _manifest_file(manifest: Mapping[str, Any]) -> bytes:
    values = (manifest[name] for name, _, _ in _LISTED)
    return b"".join(avro.text(v) if isinstance(v, str) else avro.number(v) for v in values)


def _listed(manifest: Any) -> dict[str, Any]:
    """Return a manifest of an earlier snapshot."""
    return {name: int(v) if not isinstance(v := getattr(manifest, name), str) else v for name, _, _ in _LISTED}


def _entry_schema(places: Sequence[Mapping[str, Any]], types: Mapping[str, Any]) -> dict[str, Any]:
    def optional(type_: Any) -> list[Any]:
        return ["null", type_]

    def mapped(key: int, value: int, type_: str) -> list[Any]:
        item = _record(f"k{key}_v{value}", [("key", key, "int"), ("value", value, type_)])
        return optional({"type": "array", "items": item, "logicalType": "map"})

    parts: list[Any] = [(f"p{p['field-id']}", p["field-id"], optional(_avro(types[p["name"]]))) for p in places]
    files: list[Any] = [("content", 134, "int"), ("file_path", 100, "string"), ("file_format", 101, "string")]
    files += [("partition", 102, _record("r102", parts))]
    files += [("record_count", 103, "long"), ("file_size_in_bytes", 104, "long")]
    files += [("value_counts", 109, mapped(119, 120, "long")), ("null_value_counts", 110, mapped(121, 122, "long"))]
    files += [("lower_bounds", 125, mapped(126, 127, "bytes")), ("upper_bounds", 128, mapped(129, 130, "bytes"))]
    fields: list[Any] = [("status", 0, "int"), ("snapshot_id", 1, optional("long"))]
    fields += [("sequence_number", 3, optional("long"))]
    fields += [("file_sequence_number", 4, optional("long")), ("data_file", 2, _record("r2", files))]
    return _record("manifest_entry", fields)


def _avro(type_: str) -> Any:
    if type_.startswith("timestamp"):
        return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": type_ == "timestamptz"}
    return _AVRO.get(type_, type_)


class _Entries:
    """What manifests say of the files of a table."""

    def __init__(
        self, live: LiveFiles, schema: _Schema, paths: Sequence[str], old: Mapping[str, Any], snapshot: int
    ) -> None:
        self.live, self.paths, self.old, self.snapshot = live, paths, old, snapshot
        partitions = live.partitions
        self._parts: dict[int, bytes] = {}
        self._writers = [_partition_value(type_) for type_ in partitions.types]
        self._ids = schema.ids
        self._added = b"\x02" + avro.VALUE + avro.number(snapshot) + avro.NULL + avro.NULL

    def data(self, live: LiveFiles) -> list[bytes]:
        """Return the entries of data files, put together column by column."""
        rows = [*map(avro.number, live.rows)]
        values, nulls, lows, highs = (list[list[bytes | None]]() for _ in range(4))
        for column, known in [*live.bounds.items()][:MAX_TOLD]:
            id_, encode = avro.number(self._ids[column]), _bound(live.schema.field(column).type)
            counted = [None if n is None else avro.number(n) for n in known.nulls]
            values.append([None if n is None else id_ + r for n, r in zip(counted, rows, strict=True)])
            nulls.append([None if n is None else id_ + n for n in counted])
            if encode is not None:
                for ends, found in zip((lows, highs), known.bounds(encode, encode), strict=True):
                    ends.append([None if v is None else id_ + avro.octets(v) for v in found])
        paths, sizes = [self.paths[file] for file in live.files], (size for size, _ in live.sizes)
        told = [column for columns in (values, nulls, lows, highs) for column in _maps(columns)]
        heads = map(self._head, map(self.old.get, paths))
        files = map(self._file, repeat(0), paths, live.files, rows, sizes)
        return [b"".join(pieces) for pieces in zip(heads, files, *told, strict=False)]  # some repeat

    def deletes(self, path: str, file: int, rows: int, size: int, bounds: Sequence[str]) -> bytes:
        """Return the entry of a file that lists positions in data files of the partition of ``file``."""
        id_ = avro.number(PATH_ID)
        told = b"".join(avro.pairs([id_ + avro.text(bound)]) for bound in bounds)
        return self._added + self._file(1, path, file, avro.number(rows), size) + avro.NULL + avro.NULL + told

    def _head(self, old: Any) -> bytes:
        if old is None:
            return self._added
        number = avro.VALUE + avro.number(old.sequence_number)
        return b"\x00" + avro.VALUE + avro.number(old.snapshot_id or self.snapshot) + number + number

    def _file(self, content: int, path: str, file: int, rows: bytes, size: int) -> bytes:
        part = self.live.partitions.part_of_file[file]
        if part not in self._parts:
            values = [column[part] for column in self.live.partitions.columns]
            pairs = zip(self._writers, values, strict=True)
            self._parts[part] = b"".join(avro.NULL if v is None else avro.VALUE + w(v) for w, v in pairs)
        head = avro.number(content) + avro.text(path) + b"\x0ePARQUET" + self._parts[part]
        return head + rows + avro.number(size)


def _maps(columns: Sequence[Sequence[Any]]) -> Sequence[Iterable[bytes]]:
    """Return the pieces of maps of which each column has one item, or None, for each file."""
    if not columns:
        return [repeat(avro.NULL)]
    if any(None in column for column in columns):
        return [[avro.pairs(filter(None, row)) for row in zip(*columns, strict=True)]]
    return [repeat(avro.VALUE + avro.number(len(columns))), *columns, repeat(b"\x00")]


def _partition_value(type_: pa.DataType) -> Callable[[Any], bytes]:
    """Return what writes values of a partition column."""
    t = pa.types
    if t.is_timestamp(type_):
        return lambda v: avro.number(v * 10**6 // PER_SECOND[type_.unit])
    if t.is_boolean(type_):
        return lambda v: b"\x01" if v else b"\x00"
    if t.is_floating(type_):
        form = "<f" if type_ == pa.float32() else "<d"
        return lambda v: struct.pack(form, v)
    if t.is_date32(type_):
        return lambda v: avro.number((v - _EPOCH).days)
    return avro.number if t.is_integer(type_) else avro.text


def _bound(type_: pa.DataType) -> Callable[[Any], bytes | None] | None:
    """Return what writes a bound, None for types of which none is told; of FLOAT and DOUBLE they leave out NaN."""
    t = pa.types
    if t.is_date32(type_) or (t.is_integer(type_) and type_.bit_width <= 32):
        return lambda v: struct.pack("<i", v)
    if t.is_integer(type_) or type_ == pa.time64("us"):
        return lambda v: struct.pack("<q", v)
    if t.is_timestamp(type_):
        per = PER_SECOND[type_.unit]
        # What does not fit, and is cut, keeps files that need not be read.
        return lambda v: struct.pack("<q", v * 10**6 // per) if v * 10**6 % per == 0 else None
    if t.is_string(type_) or t.is_large_string(type_):
        return lambda v: v.encode() if len(v) <= MAX_BOUND else None
    if t.is_decimal128(type_):
        return lambda v: v.to_bytes((v.bit_length() + 8) // 8, "big", signed=True)
    return None
