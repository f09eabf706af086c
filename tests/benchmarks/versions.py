"""What versions cost: the size of a history, planning at any version, and SHOW HISTORY.

    python -m tests.benchmarks.versions [versions] [files]

A dataset of many empty files, to which as many commits append one file each, and take another one away every second
time. Entries are written and packed as commits do it; the document is written once, at the end, as that takes longer.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import kartosql
from kartosql.formats.kartothek import versions
from kartosql.formats.kartothek.history import recorded
from kartosql.formats.kartothek.metadata import HISTORY
from kartosql.store import Store
from kartosql.write.change import Change
from kartosql.write.commit import commit, utc_now
from kartosql.write.document import Head, digest, encode, new_id, succeed, with_marks
from kartosql.write.history import PACKED, repack
from kartosql.write.recovery import read_head

SCHEMA = pa.schema([("p", pa.int64()), ("i", pa.string())])


def change(store: Store, count: int, operation: str, **more: Any) -> Change:
    """Return a change that adds empty files, with an index."""
    labels = [f"p={n % 100}/{uuid.uuid4().hex}" for n in range(count)]
    pairs = pa.table({"value": [f"v{n % 10}" for n in range(count)], "label": labels})
    added = {label: {"table": f"d/table/{label}.parquet"} for label in labels}
    for files in added.values():
        path = Path(store.local_path(files["table"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Change("d", operation, added, pairs={"i": pairs}, schemas={"table": SCHEMA}, partition_keys=("p",), **more)


def least(call: Callable[[], object], times: int = 7) -> float:
    """Return the milliseconds that the fastest of some calls takes."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found) * 1000


def main(count: int, files: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        commit(store, change(store, files - count // 2, "create", create=True))
        head = read_head(store, "d")
        assert head is not None
        _history(store, head, count - 1)
        listed = versions.listed(store, "d")
        size = sum(store.size(key) or 0 for *_, key in listed)
        print(f"{count:,} versions of {files:,} files: {size / 1e6:.2f} MB of history in {len(listed)} files")
        with kartosql.connect(folder) as con:
            now = least(lambda: con.explain("SELECT * FROM d WHERE p = 7"))
            print(f"planning, warm: the present {now:.1f} ms")
            for version in (1, count // 2, count - 1):
                text = f"SELECT * FROM d AT (VERSION => {version}) WHERE p = 7"
                begin = time.perf_counter()
                con.explain(text)
                first = (time.perf_counter() - begin) * 1000
                warm = least(lambda sql=text: con.explain(sql))
                print(f"planning, warm: version {version:,} {warm:.1f} ms, the first time {first:.0f} ms")
            print(f"SHOW HISTORY of all: {least(lambda: con.history('d').arrow()):.1f} ms")


def _history(store: Store, head: Head, count: int) -> None:
    """Write the entries of some commits, and the document after the last of them."""
    document, identity = head.document, head.identity
    assert identity is not None
    rows = versions.files_of(document)
    for n in range(count):
        made = change(store, 1, "append")
        before, label = identity, next(iter(made.added))
        keys = [f"d/indices/i/{before.time}-{uuid.uuid4().hex}.by-dataset-index.parquet" for _ in range(2)]
        gone = [(len(rows) - 1, rows[-1])] if n % 2 else []
        rows = [*rows[: len(rows) - len(gone)], (label, made.added[label])]
        identity = succeed(
            before, commit_id=new_id(), digest="", operation="append", time=utc_now(), schemas=before.schemas or {}
        )
        entry = versions.Entry(
            **{name: getattr(identity, name) for name in ("id", "parent", "sequence", "operation", "time", "origin")},
            added=made.added,
            removed=dict(row for _, row in gone),
            rows=1,
            gaps=[at for at, _ in gone],
            changed={"indices": [{"i": key} for key in keys]},
            before=versions.Link(before.sequence, before.id, before.operation, before.time),
            older=before.recent[-4:-1],
        )
        with store.output(entry.key("d"), sync_folders=False, sync_content=False) as file:
            file.write(versions.pack([entry]))
        if identity.sequence % PACKED == 0:
            repack(store, "d")
    document = replace(
        document, labels=tuple(label for label, _ in rows), files={"table": tuple(f["table"] for _, f in rows)}
    )
    history = recorded(document.metadata[HISTORY], dict(document.sealed_schemas or {"table": SCHEMA}), document, 0)
    document = with_marks(document, schema_history=history)
    identity = replace(identity, digest=digest(document))
    store.put(document.key, encode(with_marks(document, commit=identity.to_dict())))


if __name__ == "__main__":
    main(*(int(a) for a in (*sys.argv[1:], "10000", "10000")[:2]))
