"""What a run read and what its operators took, according to DuckDB's profile of it."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb

from kartosql.plan.operators import Operator, TableFiles
from kartosql.sql.statement_policy import UNKNOWN_FORM
from kartosql.text.report import counted


class DuckProfile:
    """What the last run of a connection took; asked for when it is wanted, or before the next run comes.

    To ask takes a tenth of the time of a small query. ``with_paths`` puts paths in place of names of files.
    """

    def __init__(self, connection: Any, with_paths: Callable[[str], str] = str) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._text: str | None = None
        self._with_paths = with_paths

    def settle(self) -> dict[str, int | None]:
        """Return bytes_read, files_opened and row_groups_read as far as DuckDB knows, and release the connection."""
        found = self._profile()
        with contextlib.suppress(*UNKNOWN_FORM):
            every = [s for top in found.get("operator", ()) for s in _all(top)]
            return {
                "bytes_read": _total([found.get("io", {}).get("total_bytes_read")]),
                "files_opened": _total([_info(s)["Total Files Read"] for s in every if "Total Files Read" in _info(s)]),
                "row_groups_read": _total([s.get("row_groups_scanned") for s in every if _is_of_parquet(s)]),
            }
        return dict.fromkeys(("bytes_read", "files_opened", "row_groups_read"))

    def operators(self, sources: Callable[[], Mapping[str, TableFiles]]) -> tuple[Operator, ...]:
        """Return the operators of the run; ``sources`` are the tables by the names of their files."""
        with contextlib.suppress(*UNKNOWN_FORM):  # none is better than no answer
            found = self._profile().get("operator", ())
            kept = {i.get("Table Index"): str(i.get("CTE Name")) for top in found for i in map(_info, _all(top))}
            words = _Words(sources(), kept, self._with_paths)
            return tuple(words.operator(top) for top in found)
        return ()

    def _profile(self) -> dict[str, Any]:
        with self._lock:
            if self._text is None:
                try:
                    self._text = self._connection.get_profiling_information()
                except duckdb.Error:
                    self._text = ""
                self._connection = None
        try:
            found: dict[str, Any] = json.loads(self._text)
        except ValueError:
            return {}
        return found


def _all(operator: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield operator
    for child in operator.get("children", ()):
        yield from _all(child)


def _info(operator: dict[str, Any]) -> dict[str, Any]:
    return operator.get("extra_info") or {}


def _is_of_parquet(operator: dict[str, Any]) -> bool:
    return "READ_PARQUET" in str(_info(operator).get("Function", ""))


def _total(values: Sequence[Any]) -> int | None:
    try:
        return sum(map(int, values))
    except (TypeError, ValueError):
        return None


# -- operators in words --------------------------------------------------------------------------

# What several operators take in turn, and whose own rows DuckDB does not count.
_UNCOUNTED = ("RESULT_COLLECTOR", "UNION", "CTE")
_NAMES = {
    "RESULT_COLLECTOR": "result",
    "PERFECT_HASH_GROUP_BY": "hash group by",
    "PARTITIONED_AGGREGATE": "group by partitions",
    "UNGROUPED_AGGREGATE": "aggregate",
    "STREAMING_LIMIT": "limit",
    "STREAMING_WINDOW": "window",
    "STREAMING_SAMPLE": "sample",
    "RESERVOIR_SAMPLE": "sample",
    "TOP_N": "first",
    "ORDER_BY": "order by",
    "DUMMY_SCAN": "one row",
    "EMPTY_RESULT": "no row",
    "COLUMN_DATA_SCAN": "read rows kept",
    "BLOCKWISE_NL_JOIN": "nested loop join",
    "RECURSIVE_CTE": "repeat for",
    "PROJECTION": "compute",
}
_FIRST = ("Groups", "Projections", "Expression", "Order By", "Limit", "Sample Size")  # what stands behind a name
_VALUE_OF_PARTITION = re.compile(r"array_extract\(\[[^][]*\], \(CAST\(file_index AS BIGINT\) \+ 1\)\)")
_FILTERED = re.compile(r"FILTER \(WHERE .*\) Filter: #\d+$")  # whose numbers are not those of the columns below
_PLACE = re.compile(r"#(\d+|\[[\d.]+\])")


class _Words:
    """Names operators as a person does."""

    def __init__(
        self, sources: Mapping[str, TableFiles], kept: Mapping[str | None, str], with_paths: Callable[[str], str]
    ) -> None:
        self._sources, self._kept, self._with_paths = sources, kept, with_paths

    def operator(self, found: dict[str, Any]) -> Operator:
        """Return an operator with all below it."""
        children = tuple(map(self.operator, found.get("children", ())))
        rows, size = (found.get(f"intermediate_{n}") for n in ("rows", "size_bytes"))
        name, seconds = self._name(found), found.get("timing")
        if found["type"] in _UNCOUNTED:
            return Operator(name, seconds, children=children)
        return Operator(name, seconds, rows, size, children)

    def _name(self, found: dict[str, Any]) -> str:
        kind, info = str(found["type"]), _info(found)
        name = _NAMES.get(kind, kind.replace("_", " ").lower())
        inputs = [
            _info(child).get("Projections") for child in found.get("children", ()) if child["type"] == "PROJECTION"
        ]
        columns = _listed(inputs[0]) if len(inputs) == 1 else []
        told = {key: ", ".join(_readable(text, columns) for text in _listed(value)) for key, value in info.items()}
        match kind:
            case "TABLE_SCAN":
                return self._scan(found, told)
            case "CTE" | "CTE_SCAN" | "RECURSIVE_CTE_SCAN" | "RECURSIVE_CTE":
                of = info.get("CTE Name") or self._kept.get(info.get("CTE Index"), "__")
                does = {"CTE": "keep rows", "RECURSIVE_CTE": "repeat"}.get(kind, "read rows kept")
                return does if of.startswith("__") else f"{does} of {of}"
            case "TOP_N":
                return f"first {told.get('Top')} by {told.get('Order By')}"
        if kind.endswith("JOIN"):
            name = f"{told.get('Join Type', '').lower()} {name}".strip()
            return f"{name} on {told['Conditions']}" if told.get("Conditions") else name
        first = next((told[key] for key in _FIRST if told.get(key)), "")
        aggregates = told.get("Aggregates")
        return f"{name} {first}".strip() + (f"{':' if first else ''} {aggregates}" if aggregates else "")

    def _scan(self, found: dict[str, Any], told: dict[str, str]) -> str:
        function = told.get("Function", "").lower()
        if not function.startswith("read_"):
            name = "read data in memory" if "arrow" in function else f"{function}()"
        else:
            file = self._with_paths(str(_info(found).get("Filename(s)", "")).split(", ")[0])
            source, count = self._sources.get(file), told.get("Total Files Read", "")
            name = (
                f"read {source.name}: {count} of {counted(source.files, 'file')}" if source else f"read {count} files"
            )
        parts = [counted(found["row_groups_scanned"], "row group")] if _is_of_parquet(found) else []
        parts += [f"columns {told['Projections']}"] if told.get("Projections") else []
        filters = [
            _readable(text, ()) for text in _listed(_info(found).get("Filters")) if not text.startswith("optional:")
        ]
        parts += [f"where {', '.join(filters)}"] if filters else []
        return "; ".join([name, *parts])


def _listed(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list) else [str(value)] if value not in ("", None) else []


def _readable(text: str, columns: Sequence[str]) -> str:
    """Return a text of DuckDB's with names in place of the numbers of columns, as far as they are known."""

    def name(match: re.Match[str]) -> str:
        at = int(match[1]) if match[1].isdigit() else len(columns)
        return (
            _readable(columns[at], ())
            if at < len(columns)
            else f"column {at + 1}"
            if match[1].isdigit()
            else "a column"
        )

    text = _FILTERED.sub("where a condition holds", text.replace("count_star()", "count(*)"))
    return _PLACE.sub(name, _VALUE_OF_PARTITION.sub("value of its partition", text)).replace("__kartosql_", "")
