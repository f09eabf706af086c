"""Jobs on the executors of a session: what tasks answer, what becomes of failures, and what is left to clear away."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from kartosql import stopping
from kartosql.errors import ExecutionError, KartosqlError, UsageError, python_error
from kartosql.formats.kartothek import naming
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER
from kartosql.store.urls import protocols_of
from kartosql.write.files import WriteOptions, opened_parquet
from kartosql.write.indexing import Postings
from kartosql.write.layout import run_starts
from kartosql.write.spark import task
from kartosql.write.spark.ship import shipped
from kartosql.write.spark.task import Address, Work

_SCHEMA = "task long, answer string"
_NOISE = re.compile(r"at |\.\.\. |File |Traceback|JVM stacktrace|\^+$")
_MARKED = re.compile(re.escape(task.MARK) + r"(\{.*?\})(?:\n|$)")


class Job:
    """The work that one call has for the executors of a session, below one dataset of ``store``.

    Files that tasks write for the driver alone are removed at the end; so is, after an error,
    whatever is still running. Raises ``store-unreachable`` for stores that only this process has.
    """

    def __init__(self, session: Any, store: Store, uuid_: str) -> None:
        self.session, self.store = session, store
        self.id = uuid.uuid4().hex
        self.token = f"{uuid_}/{SIDE_FOLDER}/kartosql-spark-{self.id}"
        self.address = address_of(store)
        self._tag = f"kartosql-{self.id}"
        if type(session).__module__.startswith("pyspark.sql.connect"):
            self._add, self._remove, self._cancel = session.addTag, session.removeTag, session.interruptTag
        else:
            # Those of a classic session can only be stopped by the thread of the JVM that runs them.
            context = session.sparkContext
            self._add, self._remove = context.addJobTag, context.removeJobTag
            self._cancel = context.cancelJobsWithTag

    def __enter__(self) -> Self:
        self._add(self._tag)
        try:
            self.store.put(self.token, b"")
        except BaseException:
            self._remove(self._tag)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(Exception):
                self._cancel(self._tag)
        with contextlib.suppress(Exception):
            self._remove(self._tag)
        with contextlib.suppress(Exception):
            # An error may have kept us from hearing what tasks have written.
            folder = self.token.rpartition("/")[0]
            self.store.delete([k for k in self.store.list_below(folder) if k.startswith(self.token)])

    def run(self, frame: Any, work: Work) -> list[Mapping[str, Any]]:
        """Do ``work`` on the rows of a DataFrame, and return what tasks answer, in their order.

        Raises what tasks met, ``store-unreachable`` and ``spark-job-failed``.
        """
        with spark_errors():
            found = self.mapped(frame, partial(task.answer, self.address, self.token, work), _SCHEMA).collect()
        answers = [json.loads(row["answer"]) for row in sorted(found, key=lambda row: row["task"])]
        if any(answer.get("skipped") for answer in answers):
            raise task.as_error(json.loads(self.store.read(self.token)))
        return answers

    def run_items(self, items: Sequence[Any], work: Work) -> list[Mapping[str, Any]]:
        """Do ``work`` on items, as ``run``."""
        return self.run(self.spread(items), work) if items else []

    def mapped(self, frame: Any, work: Callable[[task.Batches], Iterator[pa.RecordBatch]], schema: Any) -> Any:
        """Return the DataFrame of what ``work`` makes of the rows of a DataFrame."""
        with warnings.catch_warnings():
            # It asks for pandas, and warns of versions that it has not seen, also where Arrow alone is used.
            warnings.simplefilter("ignore", FutureWarning)
            return frame.mapInArrow(shipped(work), schema)

    def spread(self, items: Sequence[Any]) -> Any:
        """Return a DataFrame of items, which JSON can hold, over as many tasks as the session has for a shuffle."""
        texts = pa.table({"item": pa.array([json.dumps(item) for item in items], pa.string())})
        tasks = min(len(items), int(self.session.conf.get("spark.sql.shuffle.partitions", "200")))
        return self.session.createDataFrame(texts).repartition(max(1, tasks))


def address_of(store: Store) -> Address:
    """Return how executors reach a store; raises ``store-unreachable`` for one that only this process has."""
    if "memory" in protocols_of(store.fs):
        raise task.unreachable(store.url)
    return Address(*store.address)


def discard(store: Store, prefixes: Sequence[str], is_ours: Callable[[str], bool]) -> None:
    """Delete the files whose write has a certain id, also those that no task could report."""
    for prefix in prefixes:
        with contextlib.suppress(Exception):
            ids = {key: naming.write_id(key) for key in store.list_below(prefix)}
            store.delete([key for key, id_ in ids.items() if id_ is not None and is_ours(id_)])


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Report what Spark raises as an error of ours."""
    try:
        with stopping.interrupts():
            yield
    except KartosqlError:
        raise
    except ImportError as e:
        # Of pandas, without which PySpark hands out no Arrow data.
        raise UsageError(
            f"Spark lacks a package: {_gist(str(e))}", code="missing-extra", hint="pip install 'kartosql[spark]'"
        ) from None
    except Exception as e:  # of Spark, py4j or gRPC; none of them is imported here
        text = str(e)
        marked = _MARKED.search(text)
        if marked is not None:
            with contextlib.suppress(ValueError):
                raise task.as_error(json.loads(marked[1])) from None
        raise python_error(text, "spark-job-failed") or ExecutionError(
            f"Spark could not do the work: {_gist(text)}",
            code="spark-job-failed",
            hint="Nothing of this call is visible. The log of Spark tells more.",
        ) from e


def _gist(text: str) -> str:
    """Return the part of a message of Spark that says what happened."""
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not _NOISE.match(line))[:700] or "it says nothing about why"


# -- what tasks have put into the store --------------------------------------------------------------


def pieces(store: Store, key: str, size: int) -> Iterator[pa.Table]:
    """Yield the table that a task has put into the store, in pieces of about ``size`` bytes."""
    with opened_parquet(store, key) as file:
        about = file.metadata
        whole = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        for batch in file.iter_batches(max(1, size * about.num_rows // max(1, whole))):
            yield pa.Table.from_batches([batch])


def collected(
    store: Store,
    answers: Sequence[Mapping[str, Any]],
    types: Mapping[str, pa.DataType],
    labels: Sequence[str],
    options: WriteOptions,
) -> dict[str, pa.Table]:
    """Return the pairs of each index that tasks have put into the store; they take no more than its ``memory`` here.

    ``types`` are those of the index columns; ``labels`` are all in ``answers``, in any order.
    """
    limit = options.memory // 8 // max(1, len(types))
    place_of = {label: place for place, label in enumerate(labels)}
    found = {}
    for name, type_ in types.items():
        pairs = Postings(type_, options.sorter, limit)
        try:
            here = [answer for answer in answers if name in answer["pairs"]]
            store.map(partial(_add, store, name, pairs, place_of), here)
            found[name] = pairs.finish(labels)
        finally:
            pairs.close()
    return found


def _add(store: Store, name: str, pairs: Postings, place_of: Mapping[str, int], answer: Mapping[str, Any]) -> None:
    key, places = answer["pairs"][name], [place_of[label] for label in answer["labels"]]
    with opened_parquet(store, key) as file:
        for batch in file.iter_batches(task.PAIRS_PER_ROW_GROUP):
            for place, values in _by_file(batch):
                pairs.add(places[place], values)


def _by_file(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Array]]:
    rows = batch.take(pc.array_sort_indices(batch.column(1)))
    starts = run_starts(pa.Table.from_batches([rows]), batch.schema.names[1:])
    for start, end in pairwise([*starts, rows.num_rows]):
        yield rows.column(1)[start].as_py(), rows.column(0).slice(start, end - start)
