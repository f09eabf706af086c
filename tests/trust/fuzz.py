"""Bytes that lead a decoder to places where it has not been: typed errors alone, whatever a file or a text holds.

``python -m tests.trust fuzz`` lets atheris (libFuzzer), which is no dependency, look for such bytes where it is
installed, in a process for each decoder; else bytes are changed blindly. ``--corpus FOLDER`` keeps what was found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

Decode = Callable[[bytes], object]
MOST_BYTES = 16_384
LIMITS = ("-rss_limit_mb=1024", "-timeout=60", f"-max_len={MOST_BYTES}", "-print_final_stats=1")
TEXTS = """\
SELECT a, count(*) FROM t WHERE a IN (1, 2) AND b = 'x' GROUP BY ALL
FROM t SELECT * EXCLUDE (a)
DELETE FROM d WHERE n = $1
UPDATE d SET s = ? WHERE q BETWEEN 1 AND 2
MERGE INTO d USING (SELECT 1 AS a) AS u ON (a) WHEN MATCHED THEN UPDATE SET s = u.s WHEN NOT MATCHED THEN DELETE
CREATE CUBE c (DIMENSIONS (x), PARTITION BY (p)) AS SELECT 1
ATTACH '/tmp/x' AS y (TYPE delta)
SELECT * FROM d AT (VERSION => 2)
SHOW HISTORY FROM d
INSERT INTO d VALUES (1, $$a$$) /* c */ -- e
CREATE SKIPPING INDEX ON d MINMAX (a)
EXPLAIN ANALYZE SELECT 1
COPY d TO 'x'
SET timeout = 5
""".splitlines()


class Untyped(AssertionError):
    """An error that no decoder may raise."""


# -- decoders --------------------------------------------------------------------------------------


def _decoders() -> dict[str, Decode]:
    """Return what decodes, by name; imports it only now, so that atheris can watch it."""
    import pyarrow as pa
    import zstandard

    from kartosql import parquet
    from kartosql.formats import roaring
    from kartosql.formats.delta import log, schema, statistics, vectors
    from kartosql.formats.iceberg import metadata as iceberg
    from kartosql.formats.kartothek import metadata, naming, versions
    from kartosql.formats.odf import blocks, data_schema, manifest
    from kartosql.formats.xskipper import bloom, java, segment
    from kartosql.sql import parse
    from kartosql.store import Store
    from kartosql.write.footer_statistics import FooterStatistics

    store = Store("memory://fuzz")

    def packed(data: bytes) -> bytes:
        return zstandard.ZstdCompressor(1).compress(data)

    def footer(data: bytes) -> None:
        with contextlib.suppress(*parquet.DAMAGE):
            parquet.notes_of(data, b"geo")
        with contextlib.suppress(*parquet.DAMAGE):
            head = parquet.schema_bytes(data)
            layout = parquet.FooterLayout(head) if head is not None else None
            for name in layout.paths[:9] if layout is not None else ():
                for type_ in (pa.int64(), pa.string(), pa.timestamp("us")):
                    layout.bounds(data, name, type_)  # type: ignore[union-attr]
        parquet.column_sizes(data)
        rows = pa.table({"s": ["s1", None], "n": [3, 4]})
        list(FooterStatistics(data).misstatements(0, rows))

    def delta(data: bytes) -> None:
        store.fs.pipe_file(store.path(f"{log.LOG}/{0:020}.json"), data)
        found = log.Log(store).at(None)
        columns, keys, _ = schema.columns_of(found.metadata, "t")
        told = statistics.FileStatistics(found.files, columns)
        for name in ["", *(c.name for c in columns[:5])]:
            told.of(name)
        for key in keys:
            log.partition_texts(found.files, key)

    def checkpoint(data: bytes) -> None:
        with contextlib.suppress(*log._BAD):
            log._files_of(data, log._Changes("t"))

    def vector(data: bytes) -> None:
        content = roaring.MAGIC + data
        file = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        found = {"storageType": "p", "pathOrInlineDv": "v", "sizeInBytes": len(content), "offset": 1, "cardinality": 3}
        vectors.positions_of(found, lambda *_: file, "f")

    def bitmap(data: bytes) -> None:
        with contextlib.suppress(ValueError, struct.error):
            roaring.numbers_of(data)

    def manifests(data: bytes) -> None:
        snapshot: Any = type("Snapshot", (), {"manifest_list": "m"})()
        iceberg.manifests_of(snapshot, lambda *_: data)

    def entries(data: bytes) -> None:
        found: Any = type("Manifest", (), {"manifest_path": "m", "partition_spec_id": 0, "sequence_number": 1})()
        found.content = 0
        iceberg.entries_of(found, lambda *_: data)

    def filters(data: bytes) -> None:
        with contextlib.suppress(java.JavaStreamError):
            bloom.words_of(data)

    def objects(data: bytes) -> None:
        for read in (java.old_bounds, java.old_values):
            with contextlib.suppress(java.JavaStreamError, java.OddCells):
                read([data])

    def text(read: Callable[[str], object]) -> Decode:
        return lambda data: read(data.decode("utf-8", "replace"))

    return {
        "document": lambda data: metadata.parse_document(data, f"d{naming.METADATA_JSON}", "d"),
        "packed document": lambda data: metadata.parse_document(packed(data), f"d{naming.METADATA_MSGPACK}", "d"),
        "schema": lambda data: metadata.read_schema(data, "d/table/_common_metadata"),
        "history": lambda data: versions._unpacked(packed(data), "d"),
        "footer": footer, "delta log": delta, "delta checkpoint": checkpoint, "delta vector": vector, "bitmap": bitmap,
        "iceberg metadata": lambda data: iceberg.parse(data, "m"), "iceberg manifests": manifests,
        "iceberg entries": entries, "odf block": blocks.read_block, "odf schema": data_schema.from_bytes,
        "odf manifest": text(manifest.parse_text),
        "xskipper footer": lambda data: segment.read_schema({segment.ROW_METADATA.encode(): data}, "s"),
        "xskipper filter": filters, "xskipper objects": objects, "sql": text(parse),
    }  # fmt: skip


NAMES = (
    "document", "packed document", "schema", "history", "footer", "delta log", "delta checkpoint", "delta vector",
    "bitmap", "iceberg metadata", "iceberg manifests", "iceberg entries", "odf block", "odf schema", "odf manifest",
    "xskipper footer", "xskipper filter", "xskipper objects", "sql",
)  # fmt: skip


def decode(name: str, data: bytes, decoders: dict[str, Decode]) -> bool:
    """Decode bytes; returns whether they were taken, raises Untyped."""
    from kartosql.errors import KartosqlError

    try:
        decoders[name](data)
    except KartosqlError as e:
        json.dumps(e.to_dict())
        return False
    except Exception as e:
        raise Untyped(f"{name}: {type(e).__name__}: {e}") from e
    return True


# -- what to begin with ----------------------------------------------------------------------------


def seeds() -> dict[str, list[bytes]]:
    """Return files of each kind as the product writes them."""
    import msgpack
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    from kartosql import parquet
    from kartosql.formats import roaring
    from kartosql.formats.odf import blocks, data_schema, manifest
    from kartosql.formats.xskipper.segment import ROW_METADATA
    from trust import hostile

    with tempfile.TemporaryDirectory() as folder:
        hostile.build(folder)
        root = Path(folder)
        files = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
        notes = [
            pq.ParquetFile(root / key).metadata.metadata or {}
            for key in files
            if "/skipping/" in key and ".parq" in key
        ]

    def named(pattern: str) -> list[bytes]:
        return [data for key, data in files.items() if re.search(pattern, key) and len(data) <= MOST_BYTES]

    documents = named(r"^d\.by-dataset-metadata\.json$")
    plain = [zstandard.ZstdDecompressor().decompress(data) for data in named(r"json\.zst$")]
    made = [blocks.read_block(data) for data in named(r"^odf/blocks/")]
    return {
        "document": documents, "packed document": [msgpack.packb(json.loads(data)) for data in documents],
        "schema": named("_common_metadata$"), "history": plain,
        "footer": [footer for data in named(r"\.parquet$") if (footer := parquet.footer_of(data)) is not None],
        "delta log": named(r"_delta_log/.*json$"), "delta checkpoint": named(r"\.parquet$")[:3],
        "delta vector": [roaring.encoded([1, 2, 70_000])], "bitmap": [roaring.encoded([1, 2, 70_000])],
        "iceberg metadata": named(r"metadata\.json$"), "iceberg manifests": named(r"snap.*avro$"),
        "iceberg entries": named(r"metadata/.*avro$"), "odf block": named(r"^odf/blocks/"),
        "odf schema": [data_schema.to_bytes(pa.schema({"a": pa.int64(), "b": pa.list_(pa.string())}))],
        "odf manifest": [f(one).encode() for one in made for f in (manifest.to_json, manifest.to_yaml)],
        "xskipper footer": [note[ROW_METADATA.encode()] for note in notes if ROW_METADATA.encode() in note],
        "xskipper filter": [b"\xac\xed\x00\x05sr"], "xskipper objects": [b"\xac\xed\x00\x05t\x00\x01a"],
        "sql": [text.encode() for text in TEXTS],
    }  # fmt: skip


def blindly(name: str, begin: list[bytes], runs: int, seed: int) -> Iterator[bytes]:
    """Yield bytes that are damaged by chance."""
    from trust.hostile import DAMAGES

    for number in range(runs):
        random = Random(f"fuzz {name} {seed + number}")
        data = random.choice(begin)
        with contextlib.suppress(RecursionError):  # of values that are put into themselves
            for _ in range(random.choice([1, 1, 2, 5])):
                data = random.choice(DAMAGES)(data or b"\0", random, begin)
        yield data[:MOST_BYTES]


# -- runs ------------------------------------------------------------------------------------------


def fuzz(names: list[str], runs: int | None, seconds: float, seed: int, corpus: str | None) -> tuple[int, int]:
    """Look for bytes that a decoder does not bear, and print what they are; returns cases and failures."""
    begin, cases, failures = seeds(), 0, 0
    with contextlib.ExitStack() as stack:
        root = Path(corpus or stack.enter_context(tempfile.TemporaryDirectory()))
        for name in names:
            folder = root / name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            for data in begin[name]:
                (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
            given = {
                "name": name,
                "runs": runs,
                "seconds": int(seconds / len(names)),
                "seed": seed,
                "folder": str(folder),
            }
            command = [sys.executable, "-m", "tests.trust", "fuzz", "--one-process", "--corpus", json.dumps(given)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            told = f"{done.stdout}\n{done.stderr}"
            count = re.findall(r"(?:number_of_executed_units:|blind cases:)\s*(\d+)", told)
            found = re.findall(r"^untyped: .*$", told, re.MULTILINE)
            ended = done.returncode != 0
            cases += int(count[-1]) if count else 0
            failures += len(found) + ended
            print(f"{int(count[-1]) if count else 0:>11,}  {name}: {len(found)} untyped", flush=True)
            print("".join(f"{line}\n" for line in dict.fromkeys(found)), end="")
            if ended:
                print(f"ended with {done.returncode}: {told[-3000:]}")
    return cases, failures


def fuzz_here(name: str, runs: int | None, seconds: int, seed: int, folder: str) -> None:
    """Fuzz one decoder in this process, which atheris ends."""
    try:
        import atheris
    except ImportError:
        atheris = None
    with atheris.instrument_imports(include=["kartosql"]) if atheris is not None else contextlib.nullcontext():
        decoders = _decoders()
    seen: set[str] = set()

    def one(data: bytes) -> None:
        try:
            decode(name, data, decoders)
        except Untyped as e:
            frame = traceback.extract_tb(e.__cause__.__traceback__ if e.__cause__ is not None else None)[-1]
            place = f"{type(e.__cause__).__name__} {frame.filename}:{frame.lineno}"
            if place not in seen:
                seen.add(place)
                kept = Path(f"{folder}.failures", hashlib.sha1(data).hexdigest())
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(data)
                print(f"untyped: {e!s:.200} at {frame.filename}:{frame.lineno} by {data[:120]!r}", flush=True)

    if atheris is None:
        begin = [p.read_bytes() for p in sorted(Path(folder).iterdir())]
        list(map(one, blindly(name, begin, runs or 1000, seed)))
        print(f"blind cases: {runs or 1000}")
        return
    more = [f"-runs={runs}"] if runs is not None else [f"-max_total_time={max(1, seconds)}"]
    atheris.Setup([sys.argv[0], *LIMITS, *more, f"-seed={seed or 1}", f"-artifact_prefix={folder}-", folder], one)
    atheris.Fuzz()
