"""Delta tables made by hand, after the protocol: what other writers may leave, and the rows that count."""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
ARROW = {"long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "double": pa.float64(), "float": pa.float32()}
ARROW |= {"string": pa.string(), "date": pa.date32(), "boolean": pa.bool_(), "binary": pa.binary()}
ARROW |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}


def z85(data: bytes) -> str:
    return base64.b85encode(data + bytes(-len(data) % 4)).decode().translate(str.maketrans(_B85, _Z85))


def roaring(numbers: Iterable[int], runs: bool = False) -> bytes:
    """Return the numbers as a bitmap of 64-bit numbers in the portable format, in runs perhaps."""
    by_high: dict[int, dict[int, list[int]]] = {}
    for number in sorted(numbers):
        by_high.setdefault(number >> 32, {}).setdefault((number >> 16) & 0xFFFF, []).append(number & 0xFFFF)
    found = struct.pack("<Q", len(by_high))
    for high, containers in by_high.items():
        count = len(containers)
        head = struct.pack("<I", 12347 | (count - 1) << 16) if runs else struct.pack("<II", 12346, count)
        head += bytes([0xFF] * ((count + 7) // 8)) if runs else b""
        head += b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in containers.items())
        bodies = [_runs(low) if runs else _container(low) for low in containers.values()]
        if not runs or count >= 4:
            at = len(head) + 4 * count
            for body in bodies:
                head += struct.pack("<I", at)
                at += len(body)
        found += struct.pack("<I", high) + head + b"".join(bodies)
    return found


def _container(low: Sequence[int]) -> bytes:
    if len(low) <= 4096:
        return struct.pack(f"<{len(low)}H", *low)
    bits = bytearray(8192)
    for number in low:
        bits[number // 8] |= 1 << number % 8
    return bytes(bits)


def _runs(low: Sequence[int]) -> bytes:
    runs: list[list[int]] = []
    for number in low:
        if runs and number == runs[-1][0] + runs[-1][1] + 1:
            runs[-1][1] += 1
        else:
            runs.append([number, 0])
    return struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs)


def arrow(type_: Any, called: bool = False) -> pa.DataType:
    """Return the Arrow type of one of a schema; ``called`` as files call the members."""
    if isinstance(type_, str):
        if type_.startswith("decimal"):
            return pa.decimal128(*map(int, type_[8:-1].split(",")))
        return ARROW[type_]
    if type_["type"] == "struct":
        return pa.struct([_arrow_field(f, called) for f in type_["fields"]])
    if type_["type"] == "array":
        return pa.list_(pa.field("element", arrow(type_["elementType"], called)))
    return pa.map_(arrow(type_["keyType"], called), arrow(type_["valueType"], called))


def _arrow_field(field: Mapping[str, Any], called: bool) -> pa.Field:
    notes = field["metadata"]
    name = notes.get("delta.columnMapping.physicalName", field["name"]) if called else field["name"]
    number = notes.get("delta.columnMapping.id")
    marked = {b"PARQUET:field_id": str(number).encode()} if called and number is not None else None
    return pa.field(name, arrow(field["type"], called), metadata=marked)


def column(name: str, type_: Any, called: str | None = None, number: int | None = None, **notes: Any) -> dict[str, Any]:
    """Return a field of a schema, for tables that map columns with what files call it, and its number."""
    if called is not None:
        notes |= {"delta.columnMapping.physicalName": called, "delta.columnMapping.id": number}
    return {"name": name, "type": type_, "nullable": True, "metadata": notes}


class DeltaTable:
    """A table on disk with the rows of each live file as they count."""

    def __init__(self, root: Path, fields: Sequence[Mapping[str, Any]], keys: Sequence[str] = (), **more: Any) -> None:
        self.root, self.log = root, root / "_delta_log"
        self.log.mkdir(parents=True)
        self.fields, self.keys, self.version = list(fields), list(keys), -1
        self.configuration = dict(more.get("configuration", {}))
        self.protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        if more.get("features"):
            features = sorted(more["features"])
            self.protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
            self.protocol["writerFeatures"] = features
        self.adds: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.commit({"protocol": self.protocol}, self.metadata())

    def metadata(self) -> dict[str, Any]:
        schema = json.dumps({"type": "struct", "fields": self.fields})
        told = {"id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
        return {"metaData": {**told, "partitionColumns": self.keys, "configuration": self.configuration}}

    def evolve(self, fields: Sequence[Mapping[str, Any]], **configuration: str) -> None:
        self.fields = list(fields)
        self.configuration |= configuration
        self.commit(self.metadata())

    def commit(self, *actions: Mapping[str, Any]) -> None:
        self.version += 1
        path = self.log / f"{self.version:020}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in actions), "utf-8")

    def called(self, name: str) -> str:
        field = next(f for f in self.fields if f["name"] == name)
        return str(field["metadata"].get("delta.columnMapping.physicalName", name))

    def add(
        self, rows: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType] | None = None, **more: Any
    ) -> str:
        """Write a file of rows, which have the same values of the keys, and commit it."""
        types, folder = types or {}, more.pop("folder", "")
        stored = [f for f in self.fields if f["name"] not in self.keys and f["name"] not in more.get("lacking", ())]
        fields = [_arrow_field(f, called=True) for f in stored]
        fields = [f.with_type(types.get(s["name"], f.type)) for f, s in zip(fields, stored, strict=True)]
        plain = [pa.array([r.get(f["name"]) for r in rows], types.get(f["name"], arrow(f["type"]))) for f in stored]
        arrays = [_renamed(a, f.type) for a, f in zip(plain, fields, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        if "names" in more:
            table = table.rename_columns(more["names"])
        name = f"{folder}{len(self.rows):03}-{uuid.uuid4().hex[:8]}.parquet"
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            table, path, row_group_size=more.get("group", 3), use_deprecated_int96_timestamps="int96" in more
        )
        values = {self.called(k): more.get("texts", {}).get(k, as_text(rows[0][k])) for k in self.keys}
        stats = more.get("stats", self.stats(rows, types))
        action = {"path": quote(name), "size": path.stat().st_size, "modificationTime": 1, "dataChange": True}
        action |= {"partitionValues": values, **({} if stats is None else {"stats": stats})}
        self.adds[name], self.rows[name] = action, [dict(r) for r in rows]
        self.commit({"add": action})
        return name

    def stats(self, rows: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType] | None = None) -> str:
        found: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
        for field in self.fields:
            name, called = field["name"], self.called(field["name"])
            if name in self.keys or not isinstance(field["type"], str):
                continue
            values = [v for r in rows if (v := r.get(name)) is not None]
            found["nullCount"][called] = len(rows) - len(values)
            if values and field["type"] not in ("boolean", "binary") and all(v == v for v in values):
                bounds = min(values), max(values)
                found["minValues"][called], found["maxValues"][called] = (as_json(v, field["type"]) for v in bounds)
        return json.dumps(found, default=float)

    def remove(self, name: str) -> None:
        self.commit(self._removal(name))
        del self.adds[name], self.rows[name]

    def _removal(self, name: str) -> dict[str, Any]:
        old = self.adds[name]
        more = {"deletionVector": old["deletionVector"]} if "deletionVector" in old else {}
        return {"remove": {"path": old["path"], "deletionTimestamp": 1, "dataChange": True, **more}}

    def delete(self, name: str, positions: Sequence[int], kind: str = "u", runs: bool = False, **odd: Any) -> None:
        """Delete rows of a file by a deletion vector, which replaces the one that it has."""
        data = struct.pack("<I", 1_681_511_377) + roaring(positions, runs)
        vector = {"storageType": kind, "sizeInBytes": len(data), "cardinality": len(positions)}
        if kind == "i":
            vector["pathOrInlineDv"] = z85(data)
        else:
            number, folder = uuid.uuid4(), odd.pop("folder", "")
            path = self.root / folder / f"deletion_vector_{number}.bin"
            path.parent.mkdir(exist_ok=True)
            block = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
            path.write_bytes(b"\1" + b"other" + block)
            vector["offset"] = 6
            vector["pathOrInlineDv"] = folder + z85(number.bytes) if kind == "u" else f"file://{path}"
        removal = self._removal(name)
        stats = json.loads(self.adds[name].get("stats", "{}"))
        self.adds[name] = {**self.adds[name], "deletionVector": vector | odd}
        if stats:
            self.adds[name]["stats"] = json.dumps({**stats, "tightBounds": False})
        self.commit(removal, {"add": self.adds[name]})
        gone = {*positions}
        self.rows[name] = [None if n in gone else r for n, r in enumerate(self.rows[name])]  # type: ignore[misc]

    def live(self) -> list[dict[str, Any]]:
        """Return the rows that count."""
        names = [f["name"] for f in self.fields]
        return [{n: r.get(n) for n in names} for rows in self.rows.values() for r in rows if r is not None]

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self, kind: str = "classic", parts: int = 1, structs: bool = False) -> None:
        """Write a checkpoint: classic, in parts, or of version 2 as JSON or Parquet, with files in sidecars."""
        begin = f"{self.version:020}.checkpoint"
        head = [{"protocol": self.protocol}, self.metadata()]
        adds = [{"add": a} for a in self.adds.values()]
        gone = [{"remove": {"path": "gone.parquet", "deletionTimestamp": 1, "dataChange": True}}]
        if kind == "classic":
            self._write(self.log / f"{begin}.parquet", [*head, *adds, *gone], structs)
            return
        shares = [[*(head if n == 0 else gone), *adds[n::parts]] for n in range(parts)]
        if kind == "parts":
            for n, share in enumerate(shares, 1):
                self._write(self.log / f"{begin}.{n:010}.{parts:010}.parquet", share, structs)
            return
        (self.log / "_sidecars").mkdir(exist_ok=True)
        head.append({"checkpointMetadata": {"version": self.version}})
        for n in range(parts):
            name = f"{uuid.uuid4()}.parquet"
            self._write(self.log / "_sidecars" / name, [*gone, *adds[n::parts]], structs)
            size = (self.log / "_sidecars" / name).stat().st_size
            head.append({"sidecar": {"path": name, "sizeInBytes": size, "modificationTime": 1}})
        path = self.log / f"{begin}.{uuid.uuid4()}.{kind}"
        if kind == "json":
            path.write_text("".join(json.dumps(a) + "\n" for a in head), "utf-8")
        else:
            self._write(path, head, structs)

    def _write(self, path: Path, actions: Sequence[Mapping[str, Any]], structs: bool) -> None:
        texts = pa.map_(pa.string(), pa.string())
        vector = [("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32())]
        vector += [("sizeInBytes", pa.int32()), ("cardinality", pa.int64())]
        add = [
            ("path", pa.string()),
            ("partitionValues", texts),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
        ]
        add += [("dataChange", pa.bool_()), ("deletionVector", pa.struct(vector))]
        shown = [f for f in self.fields if f["name"] not in self.keys and isinstance(f["type"], str)]
        bounds = pa.struct([(self.called(f["name"]), arrow(f["type"])) for f in shown])
        counts = pa.struct([(self.called(f["name"]), pa.int64()) for f in shown])
        told = [("numRecords", pa.int64()), ("minValues", bounds), ("maxValues", bounds), ("nullCount", counts)]
        add.append(
            ("stats_parsed", pa.struct([*told, ("tightBounds", pa.bool_())])) if structs else ("stats", pa.string())
        )
        types = {
            "add": pa.struct(add),
            "remove": pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
            "protocol": pa.struct(
                [
                    *((f"min{of}Version", pa.int32()) for of in ("Reader", "Writer")),
                    *((f"{of}Features", pa.list_(pa.string())) for of in ("reader", "writer")),
                ]
            ),
            "metaData": pa.struct(
                [
                    ("id", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", texts)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", texts),
                ]
            ),
            "sidecar": pa.struct(
                [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]
            ),
        }
        rows = [{k: self._as_stored(k, v, structs) for k, v in a.items() if k in types} for a in actions]
        pq.write_table(pa.table({k: pa.array([r.get(k) for r in rows], t) for k, t in types.items()}), path)

    def _as_stored(self, kind: str, action: Mapping[str, Any], structs: bool) -> dict[str, Any]:
        found = {**action, "configuration": list(action.get("configuration", {}).items())}
        if kind == "metaData":
            found["format"] = {"provider": "parquet", "options": []}
        if kind == "add":
            found["partitionValues"] = list(action["partitionValues"].items())
            if structs and "stats" in action:
                name = next(n for n, a in self.adds.items() if a is action)
                rows = [r for r in self.rows[name] if r is not None]
                told = json.loads(action["stats"])
                for part, least in (("minValues", min), ("maxValues", max)):
                    told[part] = {
                        self.called(c): least(r[c] for r in rows if r.get(c) is not None)
                        for c in (f["name"] for f in self.fields)
                        if self.called(c) in told[part] and any(r.get(c) is not None for r in rows)
                    }
                found["stats_parsed"] = told
        return found


def as_text(value: Any) -> str | None:
    """Return a partition value as the log has it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("+00:00", "")


def as_json(value: Any, type_: str) -> Any:
    """Return a bound as the log has it, moments in milliseconds, and long texts cut."""
    if type_.startswith("timestamp") and hasattr(value, "microsecond"):
        cut = value.replace(microsecond=value.microsecond // 1000 * 1000, tzinfo=None).isoformat(
            timespec="milliseconds"
        )
        return cut + "Z" if type_ == "timestamp" else cut
    return str(value) if type_ in ("date", "timestamp_ntz") else value


def _renamed(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return values as those of a type whose members have other names."""
    if pa.types.is_struct(type_):
        inner = [_renamed(values.field(n), f.type) for n, f in enumerate(type_)]
        return pa.StructArray.from_arrays(inner, fields=list(type_), mask=values.is_null())
    if pa.types.is_list(type_):
        lists = pa.ListArray.from_arrays(
            values.offsets, _renamed(values.values, type_.value_type), mask=values.is_null()
        )
        return lists.cast(type_)
    if pa.types.is_map(type_):
        items = _renamed(values.items, type_.item_type)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, mask=values.is_null()).cast(type_)
    return values
