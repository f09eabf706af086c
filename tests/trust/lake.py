"""A Delta table as other programs write it: data files, and a commit that only the first one gets to put."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import CommitUnknown, StoreError
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed
from trust.files import SimFiles

FOLDER = "s/lake"
ATTEMPTS = 20
_FIELDS = [("q", "string"), ("s", "string"), ("n", "long")]
_METADATA = {
    "id": "lake",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in _FIELDS]}
    ),
    "partitionColumns": ["q"],
    "configuration": {},
}
Row = tuple[str, str, int]


class Lake:
    """One program that writes; ``number`` gives its files names of their own."""

    def __init__(self, number: object, count: int) -> None:
        self._fs, self._name = SimFiles(), f"{number}-{count}"
        self._root = f"sim://{number}/{FOLDER}"
        self._files = 0

    def begin(self, rows: Sequence[Row]) -> None:
        """Make the table."""
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        self._put(0, [{"protocol": protocol}, {"metaData": _METADATA}, *self._added(rows)])

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        added = self._guarded(lambda: self._added(rows))
        self._commit(lambda live: added)

    def remove(self, part: str) -> None:
        """Remove a partition."""
        self._commit(lambda live: [_removed(path) for path in live if f"q={part}/" in path])

    def compact(self) -> None:
        """Write all rows into one file of each partition."""

        def merged(live: dict[str, list[Row]]) -> list[dict[str, Any]]:
            return [*map(_removed, live), *self._added([row for rows in live.values() for row in rows])]

        self._commit(merged)

    # -- files ---------------------------------------------------------------------------------

    def _added(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        actions = []
        for part in sorted({row[0] for row in rows}):
            mine = [row for row in rows if row[0] == part]
            self._files += 1
            path = f"q={part}/{self._name}-{self._files}.parquet"
            columns = {"s": [s for _, s, _ in mine], "n": pa.array([n for *_, n in mine], pa.int64())}
            out = io.BytesIO()
            pq.write_table(pa.table(columns), out)
            self._fs.pipe_file(f"{self._root}/{path}", out.getvalue())
            low, high = ({name: pick(values) for name, values in _listed(columns)} for pick in (min, max))
            stats = {"numRecords": len(mine), "minValues": low, "maxValues": high, "nullCount": {"s": 0, "n": 0}}
            add = {"path": path, "partitionValues": {"q": part}, "size": len(out.getvalue()), "modificationTime": 0}
            actions.append({"add": {**add, "dataChange": True, "stats": json.dumps(stats)}})
        return actions

    def _live(self) -> tuple[int, dict[str, list[Row]]]:
        """Return the newest version, and the rows of its files."""
        names = sorted(re.findall(r"(\d{20})\.json", " ".join(self._fs.find(f"{self._root}/_delta_log"))))
        live: dict[str, list[Row]] = {}
        for name in names:
            for line in self._fs.cat_file(f"{self._root}/_delta_log/{name}.json").splitlines():
                action = json.loads(line)
                if "add" in action:
                    live[action["add"]["path"]] = []
                elif "remove" in action:
                    del live[action["remove"]["path"]]
        for path in live:
            table = pq.read_table(io.BytesIO(self._fs.cat_file(f"{self._root}/{path}")))
            columns = (table[name].to_pylist() for name in ("s", "n"))
            live[path] = [(path[2], s, n) for s, n in zip(*columns, strict=True)]
        return int(names[-1]), live

    def _commit(self, made: Callable[[dict[str, list[Row]]], list[dict[str, Any]]]) -> None:
        is_refused = False  # by others, or by a first try of the same request: then nothing is known
        try:
            for _ in range(ATTEMPTS):
                version, actions = self._guarded(lambda: self._planned(made))
                if not actions:
                    return None
                try:
                    return self._put(version + 1, actions)
                except PreconditionFailed:
                    is_refused = True
                except OutcomeUnknown as e:
                    raise CommitUnknown(f"version {version + 1} of the lake") from e
                except OSError as e:
                    raise StoreError(f"{e}", code="disk-full") from e
            raise StoreError("others commit all the time", code="commit-failed")
        except StoreError as e:
            raise (CommitUnknown(f"{e}") if is_refused else e) from e.__cause__

    def _planned(self, made: Callable[..., list[dict[str, Any]]]) -> tuple[int, list[dict[str, Any]]]:
        version, live = self._live()
        return version, made(live)

    @staticmethod
    def _guarded(step: Callable[[], Any]) -> Any:
        """Do what changes nothing that anybody sees."""
        try:
            return step()
        except OSError as e:
            raise StoreError(f"{e}", code="store-failed") from e

    def _put(self, version: int, actions: Sequence[dict[str, Any]]) -> None:
        path, data = f"{self._root}/_delta_log/{version:020}.json", b"\n".join(json.dumps(a).encode() for a in actions)
        place = self._fs.place
        self._fs.call("put_if", path, lambda: place.put_if(self._fs.key(path), data, None), conditional=True)


def _listed(columns: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    return [(name, v.to_pylist() if isinstance(v, pa.Array) else v) for name, v in columns.items()]


def _removed(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 0, "dataChange": True}}
