"""What the operators of Spark took, according to the plan that a run left; over Spark Connect it is not told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from kartosql.plan.operators import Operator, TableFiles
from kartosql.text.report import counted

# What stands around operators without doing anything of its own.
_STAGES = ("ShuffleQueryStage", "BroadcastQueryStage", "TableCacheQueryStage", "ResultQueryStage")
_AROUND = {"AdaptiveSparkPlan": "executedPlan", **dict.fromkeys(_STAGES, "plan")}
_UNITS = {"timing": 1e3, "nsTiming": 1e9}
_WIDE = 300
# Numbers of columns and plans, and how rows are sent.
_NOISE = re.compile(r"#\d+L?|, \[plan_id=\d+\]|, ENSURE_REQUIREMENTS|HashedRelationBroadcastMode\(.*")


class SparkProfile:
    """What a run took; ``plan`` is that of the JVM, None without one."""

    def __init__(self) -> None:
        self.plan: Any = None

    def settle(self) -> dict[str, int | None]:
        """Return how much the run read, which Spark does not count."""
        return {"bytes_read": None, "files_opened": None, "row_groups_read": None}

    def operators(self, sources: Callable[[], Mapping[str, TableFiles]]) -> tuple[Operator, ...]:
        """Return the operators of the run; ``sources`` are the tables by the names of their files."""
        try:
            return () if self.plan is None else (_operator(self.plan, sources()),)
        except Exception:  # noqa: BLE001 - whatever comes out of the JVM; the answer is there without it
            return ()


def _operator(node: Any, sources: Mapping[str, TableFiles]) -> Operator:
    kind = str(node.nodeName()).strip()
    if kind in _AROUND:
        return _operator(getattr(node, _AROUND[kind])(), sources)
    children = tuple(_operator(child, sources) for child in _items(node.children()))
    if kind in ("InputAdapter", "AQEShuffleRead") and len(children) == 1:
        return children[0]
    metrics = {pair._1(): pair._2() for pair in _items(node.metrics())}
    took = [m.value() / _UNITS[m.metricType()] for m in metrics.values() if m.metricType() in _UNITS and m.value() >= 0]
    rows, size = (metrics[name].value() if name in metrics else None for name in ("numOutputRows", "dataSize"))
    files = metrics["numFiles"].value() if "numFiles" in metrics else None
    return Operator(_name(node, kind, files, sources), sum(took) if took else None, rows, size, children)


def _items(found: Any) -> Iterator[Any]:
    """Yield the items of a collection of Scala's."""
    items = found.iterator()
    while items.hasNext():
        yield items.next()


def _name(node: Any, kind: str, files: int | None, sources: Mapping[str, TableFiles]) -> str:
    if kind.startswith("Scan ") and files is not None:
        paths = node.relation().location().inputFiles()
        source = sources.get(unquote(urlsplit(paths[0]).path)) if len(paths) else None
        return (
            f"read {source.name}: {files:,} of {counted(source.files, 'file')}" if source else f"read {files:,} files"
        )
    if kind.startswith("WholeStageCodegen"):
        return "compiled together"
    told = _NOISE.sub("", str(node.simpleString(_WIDE))).removeprefix("* ").strip()
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
    return f"{words} {told.removeprefix(kind).strip()}".strip()
