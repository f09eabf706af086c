"""What runs in a DuckDB instance: our own SQL of a session with its files, and one statement over its views."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql import stopping
from kartosql.engines.base import JoinOrder, corrupt_file
from kartosql.engines.duckdb import optimizers
from kartosql.engines.duckdb.errors import readable_errors, translate
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.lockdown import PIVOTED
from kartosql.engines.duckdb.profile import DuckProfile
from kartosql.engines.duckdb.relations import Relations
from kartosql.engines.duckdb.types import exact_type, sql_type
from kartosql.errors import ExecutionError, FormatError, KartosqlError, SqlError, missing_file, reraise
from kartosql.formats.arrays import array_of
from kartosql.parquet import footer_of
from kartosql.plan.bind import BoundQuery
from kartosql.plan.scan import Scan
from kartosql.sql.statement_policy import READS_CLOCK, check_parsed
from kartosql.sql.tree import Edit
from kartosql.store import Fetched, Files
from kartosql.store.store import MARK
from kartosql.text.constants import quote

if TYPE_CHECKING:
    from kartosql.engines.duckdb.alignment import Alignments
    from kartosql.engines.duckdb.remote import Ends, StoreFiles
    from kartosql.engines.duckdb.runtime import Instance
    from kartosql.store.keys import Stamp
    from kartosql.tables.table import FileTable


SMALL_LIST = 100  # up to here a list of Python objects is quicker than an Arrow table
of_process: weakref.WeakSet[Any] = weakref.WeakSet()  # instances, and what holds connections to them
PROTOCOL = "kartosql"


class FileAccess:
    """The files of one statement: their sizes, and the names under which DuckDB opens them."""

    def __init__(self, store: Files) -> None:
        self.store = store
        self.sizes: dict[str, int | None] = {}
        self.stamps: dict[str, Stamp] = {}  # of local files, from when their sizes were asked for
        self._ends: Ends | None = None  # of remote files
        self.parts: dict[str, Fetched] = {}  # of large remote files, which stand for them
        self._prefix = self._beginning("")
        self._mounted: dict[str, str] = {}  # beginnings of other stores' names, by those of their keys

    def stat(self, keys: Sequence[str]) -> None:
        """Note the sizes of files; raises ``missing-file`` for those that do not exist."""
        wanted = [k for k in dict.fromkeys(keys) if k not in self.sizes]
        with self._present():
            if self.store.is_local:
                found = self.store.stamps(wanted)
                self.stamps.update(found)
                self.sizes.update((key, stamp.size) for key, stamp in found.items())
            else:
                self.sizes.update(self.store.sizes(wanted))

    def begin_reading(self, keys: Sequence[str], whole: int | None = None, version: str = "") -> dict[str, Fetched]:
        """Read the ends of remote files, of those up to the size ``whole`` all, and note sizes.

        Those that a ``version`` of a document names may be kept beside the user. Raises ``missing-file``.
        """
        from kartosql.engines.duckdb import remote

        keys = [k for k in keys if not self.store.is_on_disk(k)]
        with self._present():
            self._ends = self._ends or remote.Ends(self.store)
            self._ends.start(keys, remote.WHOLE_FILE if whole is None else whole, version)
            found = {key: self._ends.get(key) for key in keys}
        self.sizes.update((key, end.size) for key, end in found.items())
        return found

    def recall(self, tables: Iterable[FileTable]) -> None:
        """Take the ends of large remote files of tables that former statements read."""
        from kartosql.engines.duckdb import remote

        self._ends = self._ends or remote.Ends(self.store)
        for table in tables:
            for key, end in list(remote.large_ends.get(table, {}).items()):
                self._ends.take(key, end)

    def footer_lengths(self, keys: Sequence[str]) -> list[int]:
        """Return the lengths of the footers of remote files whose ends were read; none if one has no footer."""
        if self._ends is None or any(map(self.store.is_on_disk, keys)):
            return []
        footers = [footer_of((self.parts.get(key) or self._ends.get(key)).data) for key in keys]
        return [] if None in footers else [len(f or b"") for f in footers]

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        try:
            yield
        except KeyError as e:
            hint = "It was deleted after the metadata were read, or the dataset is damaged. Run the statement again."
            raise missing_file(self.store.display_name(e.args[0]), hint) from None

    def names(self, keys: Sequence[str]) -> list[str]:
        """Return the names under which DuckDB opens ``keys``, whether they exist or not."""
        return [self._name(k) if k.startswith(MARK) else self._prefix + k for k in keys]

    def _beginning(self, key: str) -> str:
        return self.store.local_path(key) if self.store.is_on_disk(key) else f"{PROTOCOL}://{key}"

    def _name(self, key: str) -> str:
        prefix, _, rest = key.partition("/")
        known = self._mounted.get(prefix)
        if known is None:
            known = self._mounted[prefix] = self._beginning(f"{prefix}/")
        return known + rest

    def paths(
        self, keys: Sequence[str], filesystem: StoreFiles | None, whole: int | None = None, version: str = ""
    ) -> list[str]:
        """Return the names under which DuckDB opens ``keys``; remote ones are read concurrently.

        Raises ``missing-file``, ``unsafe-key`` for links, and what attached stores object to.
        """
        self.store.admit(keys)
        if filesystem is not None:
            for key, end in self.begin_reading(keys, whole, version).items():
                filesystem.allow(key, end, self.parts.get(key))
        self.stat(keys)
        return self.names(keys)

    def is_in_page_cache(self, keys: Sequence[str]) -> bool:
        """Return whether the system has local files in memory, by the middles of a few of them; never waits."""
        if not hasattr(os, "RWF_NOWAIT"):  # nobody but Linux tells
            return False
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        for at in range(0, len(keys), -(-len(keys) // SAMPLED_FILES) or 1):
            try:
                half = (self.store.size(keys[at]) or 0) // 2
                descriptor = os.open(self.store.local_path(keys[at]), flags)
                try:
                    os.preadv(descriptor, [bytearray(1)], half, os.RWF_NOWAIT)
                finally:
                    os.close(descriptor)
            except (OSError, KeyError):  # it would have to wait; or what reads the file tells what is wrong
                return False
        return True

    def key_in(self, message: str) -> str | None:
        """Return the key of the file that an engine's message names, if it names one."""
        match = re.search(r"[\"']((?:/|[A-Za-z]:|kartosql://)[^\"']+)[\"']", message)
        if match is None:
            return None
        for prefix, beginning in [*self._mounted.items(), ("", self._prefix)]:
            if match[1].startswith(beginning):
                return self.store.display_name(f"{prefix}/"[not prefix :] + match[1][len(beginning) :])
        return None

    def with_display_names(self, message: str) -> str:
        """Return a message with display names in place of keys."""
        for prefix in self._mounted:
            message = message.replace(f"{prefix}/", self.store.display_name(f"{prefix}/"))
        return message


def _leave_to_parent() -> None:
    """Keep all that DuckDB holds in a fork: to free it would wait for threads that are not there."""
    for found in list(of_process):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


SAMPLED_FILES = 8  # whose middles are looked for in memory
MAX_BLAMED = 1_000  # files that are read again to find the one that made a statement fail
_determined: dict[str, frozenset[str]] = {}  # by what they were asked for, once they were
# What hangs on arguments and the session's time zone alone. DuckDB 2.0.0 calls it consistent, 2.0.1 so within a query.
_OF_ZONE = (
    "stability = 'CONSISTENT_WITHIN_QUERY' AND (function_name IN ('make_timestamptz', 'timezone') OR "
    "list_has_any(parameter_types, ['TIMESTAMP WITH TIME ZONE', 'TIMESTAMPTZ_NS', 'TIME WITH TIME ZONE']))"
)


class EngineSession:
    """A connection of its own to an instance, with the files of one statement.

    It takes the connection over from ``former``, with the views and variables that are there.
    """

    alignments: Alignments | None = None  # by which the datasets of a cube may join by position

    def __init__(
        self, instance: Instance, files: FileAccess, footers: Footers, former: EngineSession | None = None
    ) -> None:
        self.instance = instance
        self.files = files
        self.footers = footers
        self.store = files.store
        self.data_keys: list[str] = []
        self._connection: Any = instance.cursor() if former is None else former._connection
        of_process.add(self)
        self.listed: dict[str, list[str]] = {} if former is None else former.listed  # variables, where files have slots
        self.relations: Relations = Relations(self, None if former is None else former.relations)

    def close(self) -> None:
        """Free the connection and all that was made for it; whatever runs is stopped."""
        if not self.instance.is_of_this_process:
            return
        self.interrupt()
        self._connection.close()

    def interrupt(self) -> None:
        """Stop what runs, from any thread; does nothing in a process that was forked."""
        if not self.instance.is_of_this_process:
            return
        with contextlib.suppress(duckdb.Error):
            self._connection.interrupt()

    # -- plumbing ------------------------------------------------------------------------------

    def run(self, sql: str) -> None:
        """Execute our own statement."""
        with stopping.running(self.interrupt), readable_errors():
            self._connection.execute(sql)

    def rows(self, sql: str, parameters: Any = None) -> list[Any]:
        """Execute our own query and return its rows."""
        with stopping.running(self.interrupt), readable_errors():
            try:
                return list(self._connection.execute(sql, parameters or None).fetchall())
            except BaseException:
                with contextlib.suppress(duckdb.Error):
                    self._connection.abort()  # what is left of the result refuses other work
                raise

    def table(self, sql: str) -> pa.Table:
        """Execute our own query and return its rows as a table of Arrow, in their order."""
        with stopping.running(self.interrupt):
            return self._connection.sql(sql).to_arrow_table()

    def clock(self, function: str) -> str:
        """Return the literal that a function of the clock stands for in this statement."""
        ((type_, text),) = self.rows(f"SELECT typeof({function}), CAST({function} AS VARCHAR)")
        return f"CAST('{text}' AS {type_})"

    def determined(self, among: str = "true") -> frozenset[str]:
        """Return the functions whose value follows from their arguments, of those that satisfy a condition."""
        if among not in _determined:
            rows = self.rows(
                f"SELECT function_name FROM duckdb_functions() WHERE {among} "
                f"GROUP BY 1 HAVING bool_and(internal AND (stability = 'CONSISTENT' OR {_OF_ZONE}))"
            )
            _determined[among] = frozenset(name for (name,) in rows) - READS_CLOCK
        return _determined[among]

    def register(self, name: str, table: Any) -> None:
        """Make an Arrow table known under ``name``."""
        self._connection.register(name, table)

    def unregister(self, name: str) -> None:
        """Forget an Arrow table."""
        self._connection.unregister(name)

    def set_list(self, variable: str, values: Sequence[Any], type_: pa.DataType) -> None:
        """Set a variable to a list of values of a type, given as for ``array_of``."""
        t = pa.types
        if len(values) < SMALL_LIST and (t.is_signed_integer(type_) or t.is_string(type_) or t.is_boolean(type_)):
            self._connection.execute(f"SET VARIABLE {variable} = CAST(? AS {sql_type(type_)}[])", [list(values)])
            return
        self._set_rows(variable, "v", {"v": array_of(values, type_)})

    def _set_rows(self, variable: str, item: str, columns: dict[str, pa.Array]) -> None:
        """Set a variable to the list of what an expression is in each row of some columns."""
        positions = array_of(range(len(next(iter(columns.values())))), pa.int64())
        self.register(variable, pa.table({"i": positions, **columns}))
        self.run(f"SET VARIABLE {variable} = (SELECT list({item} ORDER BY i) FROM {variable})")
        self.unregister(variable)

    def set_files(self, variable: str, keys: Sequence[str]) -> list[str]:
        """Set a variable to a list of files and return their paths; raises ``missing-file`` and ``unsafe-key``.

        Files that come with a size are neither taken for patterns nor looked for when a query is bound.
        """
        paths = self.files.paths(keys, self.instance.filesystem)
        if self.instance.slots is not None:
            names = self.instance.slots.names_of(paths)
            if self.listed.get(variable) != names:  # as it stays from statement to statement
                self._connection.execute(f"SET VARIABLE {variable} = ?", [names])
                self.listed[variable] = names
            return names
        parts = self.files.parts
        sizes = [parts[k].size if k in parts else self.files.sizes[k] for k in keys]
        if None in sizes:
            self._connection.execute(f"SET VARIABLE {variable} = ?", [paths])
        elif len(paths) < SMALL_LIST:
            listed = [{"filename": path, "file_size": size} for path, size in zip(paths, sizes, strict=True)]
            footers = self.files.footer_lengths(keys) if self.instance.filesystem is not None else []
            for file, length in zip(listed, footers, strict=False):
                file["footer_size"] = length  # else more than that is read of large files
            self._connection.execute(f"SET VARIABLE {variable} = ?", [listed])
        else:
            columns = {"filename": array_of(paths, pa.string()), "file_size": array_of(sizes, pa.int64())}
            self._set_rows(variable, "{'filename': filename, 'file_size': file_size}", columns)
        return paths

    @contextlib.contextmanager
    def errors(self, sql: str, edits: Sequence[Edit] = ()) -> Iterator[None]:
        """Turn DuckDB's errors into ours; ``edits`` made what is run of the user's ``sql``."""
        try:
            with readable_errors():
                yield
        except KartosqlError as e:
            e.message = self.files.with_display_names(e.message)
            raise
        except duckdb.Error as e:
            raise self._translate(e, sql, edits) from None

    def _translate(self, error: Exception, sql: str, edits: Sequence[Edit] = ()) -> KartosqlError:
        """Return our error; where DuckDB does not say which file it cannot read, find it."""
        filesystem = self.instance.filesystem
        if filesystem is not None and filesystem.failure is not None and "Traceback" in str(error):
            return filesystem.failure
        if self.instance.slots is not None:
            error = type(error)(self.instance.slots.with_paths(str(error)))
        found = translate(error, sql, self.files.key_in, edits)
        if type(found) is ExecutionError and (found.code == "query-failed" or "Invalid unicode" in found.message):
            return self._damaged() or found
        return found

    def _damaged(self) -> FormatError | None:
        """Return the error about the first data file of the statement that cannot be read, if there is one."""
        import pyarrow.parquet as pq

        for key in self.data_keys[:MAX_BLAMED]:
            stopping.check()
            try:
                # The names of its columns are read last, which may be no text.
                _ = pq.read_table(pa.BufferReader(self.store.read(key)), partitioning=None).column_names
            except (pa.ArrowException, OSError, ValueError, KeyError) as e:
                reraise(e, f"Cannot read {self.store.display_name(key)!r}")
                reason = str(e).splitlines()[0] if str(e) else type(e).__name__
                return corrupt_file(f"{self.store.display_name(key)}: {reason}")
        return None


BATCH_ROWS = 100_000
# A scan of many files gives a batch for each with a match. Those that come SOON, in seconds, are passed on as one.
FEW_ROWS, SOON = 8_192, 0.02
# A repeated scan of so few files finds them in the page cache.
DIRECT_FILES, DIRECT_BYTES = 64, 8 << 20
LAZY = "QUERY_RELATION"  # the type of a relation that runs its query each time; others hold rows
MAX_CHECKED = 256
MAX_CHECKED_TEXT = 20_000


@dataclass
class Passed:
    """What is known of a shape of statements: that it passed the check, as that follows from the text alone."""

    functions: frozenset[str] | None  # that it calls; None where more than these may change from run to run
    types: list[str] = field(default_factory=list)  # of the columns of a run, if they need not be asked for first


checked: dict[str, Passed] = {}
_CALLED = re.compile(r'"function_name":"([^"]*)"')  # in a parsed statement, in the texts of which quotes are escaped
_QUERIES = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)


class DuckStatement(EngineSession):
    """A session for one statement, in one transaction that is rolled back at the end.

    ``lock`` locks a fresh instance before the user's text runs; ``give_back`` takes the instance
    and whether another statement may use it. ``former`` is a statement that rests, whose
    transaction goes on.
    """

    def __init__(
        self,
        instance: Instance,
        files: FileAccess,
        footers: Footers,
        former: DuckStatement | None = None,
        *,
        lock: Callable[[Sequence[str]], None],
        give_back: Callable[[Any, bool], None],
        timeout: int,
        alignments: Alignments,
        watched: bool = False,
    ) -> None:
        super().__init__(instance, files, footers, former)
        self.alignments = alignments
        self._lock = lock
        self._give_back = give_back
        self._reader: pa.RecordBatchReader | None = None
        self._unharmed = True
        self._closed = False
        self._measured: weakref.ref[DuckProfile] | None = None
        self._prepared: tuple[Any, ...] | None = None  # the scan whose views are there
        self._ran: tuple[str, list[str]] | None = None  # a text that is one query, and the types of its columns
        if self.instance.filesystem is not None:
            self.instance.filesystem.forget()
        if self.instance.slots is not None:
            self.instance.slots.forget()
        self.instance.change("max_execution_time", timeout)
        if former is not None:
            former.hand_over()
            return
        self.run("PRAGMA enable_profiling = 'no_output'")
        if watched:
            self.run("SET enable_progress_bar = true")
            self.run("SET enable_progress_bar_print = false")
        # now() is one instant in it, and no view of the statement outlives it.
        self.run("BEGIN")

    # -- repeated statements -----------------------------------------------------------------------

    def rest(self, kept: bool) -> None:
        """End the statement, but leave its views for others; ``kept`` says that its scan may be asked for again."""
        if not self.instance.is_of_this_process:
            return
        # Without occurrences there is nothing that tells one scan from another.
        useful = self._prepared and (kept or self.may_hand_over) and self.instance.filesystem is None
        if self._closed or not self._unharmed or not useful:
            self.close()
            return
        self._reader = None
        self.instance.resting = self
        # They hold on to the connection.
        give_back, self._give_back, self._lock = self._give_back, lambda *_: None, lambda *_: None
        give_back(self.instance, True)

    def resumes(self, scan: Scan, files: FileAccess) -> bool:
        """Return whether the views left are those of a scan, and its files are as they were."""
        if scan.occurrences is not self._prepared or any(files.sizes.get(k) != n for k, n in self._read_sizes.items()):
            return False
        return stamps_of(files.store, self.relations.stamps) == self.relations.stamps

    @property
    def _read_sizes(self) -> dict[str, int | None]:
        return {k: self.files.sizes[k] for k in self.data_keys}

    def resume(self, timeout: int, give_back: Callable[[Any, bool], None]) -> None:
        """Start again on the same scan."""
        self._give_back = give_back
        self._settle()
        sizes = self._read_sizes
        few = len(sizes) <= DIRECT_FILES and sum(n or 0 for n in sizes.values()) <= DIRECT_BYTES
        self.instance.read_directly(few or self.files.is_in_page_cache(list(sizes)))
        self.instance.change("max_execution_time", timeout)

    @property
    def may_hand_over(self) -> bool:
        """Whether another statement may go on with the connection, once this one rests."""
        return self._ran is not None and self.relations.is_reusable

    def hand_over(self) -> None:
        """Let go of the connection, which another statement has."""
        self._closed = True
        self._ran = None
        self._settle()

    def forget(self) -> None:
        """Drop the views that were left."""
        self.hand_over()
        with contextlib.suppress(duckdb.Error):
            super().close()

    def close(self) -> None:
        """End the statement; whatever runs is stopped, and the instance is free for others."""
        if self._closed or not self.instance.is_of_this_process:
            return
        self.hand_over()
        try:
            if self._reader is not None:
                self._reader.close()
            super().close()
        except (duckdb.Error, pa.ArrowException, OSError):
            self._unharmed = False
        self._give_back(self.instance, self._unharmed)

    @contextlib.contextmanager
    def errors(self, sql: str, edits: Sequence[Edit] = ()) -> Iterator[None]:
        """Turn DuckDB's errors into ours; an instance that saw one is not used again."""
        try:
            with super().errors(sql, edits):
                yield
        except BaseException as e:
            self._unharmed = False
            self.instance.ran_short |= isinstance(e, KartosqlError) and e.code == "out-of-memory"
            raise

    # -- before the run --------------------------------------------------------------------------

    def describe(self, query: BoundQuery) -> pa.Schema:
        """Return the Arrow schema of the output, bound over tables without a row."""
        with self.errors(query.select.text, query.edits):
            for occurrence in query.occurrences:
                self.relations.create_empty(occurrence)
            return self.described(query)

    def described(self, query: BoundQuery) -> pa.Schema:
        """Return the Arrow schema of a query's output over the relations that are there; nothing is computed."""
        self._lock(())
        # It computes constants, such as those of range(10**9), before it sees that no row is asked for.
        self._switch_off([optimizers.FOLDING])
        self._admit(query)
        relation = _exact(self._query(query))
        with stopping.running(self.interrupt):
            schema = relation.limit(0).to_arrow_table().schema
        fields = [f.with_name(query.restore(n)) for f, n in zip(schema, relation.columns, strict=True)]
        return pa.schema(fields)

    def values(self, expressions: Sequence[str]) -> pa.Table:
        """Return the values of expressions without columns, as the columns of one row."""
        items = ", ".join(f"{e} AS c{i}" for i, e in enumerate(expressions))
        return self._connection.sql(f"SELECT {items}").to_arrow_table()

    def prepare(self, query: BoundQuery, scan: Scan) -> None:
        """Lock the instance up and create the views of the statement, unless they are there."""
        if scan.occurrences is self._prepared:
            return
        with self.errors(query.select.text, query.edits):
            keys = [key for o in scan.occurrences for p in o.parts for key in p.opened]
            self._lock(keys)
            self.instance.read_directly(self.instance.filesystem is None and self.files.is_in_page_cache(keys))
            for occurrence in query.occurrences:
                if occurrence.source.data is not None:
                    self.relations.create_registered(occurrence)
            if self.instance.filesystem is not None:
                self.relations.alone = frozenset(key for key, times in Counter(keys).items() if times == 1)
            for occurrence_scan in scan.occurrences:
                self.relations.create(occurrence_scan)
            self.relations.drop_former()
            self._prepared = scan.occurrences

    def _choose_optimizers(self, query: BoundQuery, joins: JoinOrder) -> None:
        """Switch off those optimizers that would make this statement's answer wrong or late, or that lost a column."""
        names = optimizers.unwanted(query.text, self.relations, joins)
        if joins is JoinOrder.COMPARED and optimizers.may_cross(query.text, self._prepared or (), self.files):
            without = names | {optimizers.PULLUP}
            if (crosses := self._cross_products(query, names)) and self._cross_products(query, without) < crosses:
                names = without
        self._switch_off(names)
        self.instance.change("pivot_filter_threshold", PIVOTED)  # plans for Spark raise

    def _switch_off(self, names: Iterable[str]) -> None:
        self.instance.change("disabled_optimizers", f"'{','.join(sorted(names))}'")

    def _cross_products(self, query: BoundQuery, names: Iterable[str]) -> int:
        """Return how many cross products the plan of an admitted query has without some optimizers."""
        self._switch_off(names)
        explain = "EXPLAIN (FORMAT json) "
        with self.errors(query.select.text, [*query.edits, ((0, 0), explain)]):
            return optimizers.cross_products(self.rows(f"{explain}{query.text}", query.parameters)[0][1])

    # -- the run ---------------------------------------------------------------------------------

    def stream(
        self, query: BoundQuery, *, joins: JoinOrder = JoinOrder.COMPARED
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch], list[str]]:
        """Run the prepared statement; returns schema, batches and DuckDB types of the output."""
        with self.errors(query.select.text, query.edits):
            self._admit(query)
            self._choose_optimizers(query, joins)
            self._reader, types = self._submitted(query) or self._bound_first(query)
            schema = pa.schema([f.with_name(query.restore(f.name)) for f in self._reader.schema])
            return schema, self._batches(self._reader, schema, query), types

    def _submitted(self, query: BoundQuery) -> tuple[pa.RecordBatchReader, list[str]] | None:
        """Run a statement that ran before, maybe with other constants, binding it once; None if it is another now."""
        # A relation binds its text to find its columns, and once more to run it.
        text = query.text
        passed = checked.get(query.shape or text)
        types = self._ran[1] if self._ran is not None and self._ran[0] == text else passed and passed.types
        submit = getattr(self._connection, "_submit", None)  # by which relations run, too
        if not types or submit is None:
            return None
        with stopping.running(self.interrupt):
            result = submit(text, query.parameters or None, "stream", BATCH_ROWS)
            if [str(column[1]) for column in result.description] != types:
                result.close()
                return None
            self._ran = text, types
            return result.arrow_reader(), types

    def _bound_first(self, query: BoundQuery) -> tuple[pa.RecordBatchReader, list[str]]:
        """Run a statement, with the types by which its values become Arrow's."""
        relation = self._query(query)
        exact, types = _exact(relation), [str(t) for t in relation.types]
        with stopping.running(self.interrupt):
            reader = exact.to_arrow_reader(BATCH_ROWS)
        self._ran = None
        if relation.type == LAZY:
            plain = types if exact is relation else []
            self._ran = query.text, plain
            if (passed := checked.get(query.shape or query.text)) is not None:
                passed.types = plain
        return reader, types

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema, query: BoundQuery) -> Iterator[pa.RecordBatch]:
        renamed = not schema.equals(reader.schema)
        self._unharmed = False
        sql = query.select.text
        with self.errors(sql, query.edits):
            failure: Exception | None = None
            while failure is None:
                found: list[pa.RecordBatch] = []
                rows, until = 0, time.monotonic() + SOON
                try:
                    with stopping.running(self.interrupt):
                        while not found or (rows < FEW_ROWS and time.monotonic() < until):
                            found.append(reader.read_next_batch())
                            rows += found[-1].num_rows
                except (StopIteration, OSError, pa.ArrowException, RuntimeError) as e:
                    failure = e
                for batch in _merged(found, rows):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema) if renamed else batch
            if not isinstance(failure, StopIteration):
                text = str(failure)
                known = next((cls(text) for label, cls in _LABELS.items() if label in text), failure)
                raise self._translate(known, sql, query.edits)
            # Only what was read to its end has certainly stopped.
            self._unharmed = True

    def _admit(self, query: BoundQuery) -> None:
        """Check a query, unless one of the same shape passed."""
        shape = query.shape or query.text
        if shape not in checked:
            passed = Passed(self._check(query))
            if len(query.text) <= MAX_CHECKED_TEXT:
                checked[shape] = passed
                while len(checked) > MAX_CHECKED:
                    checked.pop(next(iter(checked)), None)

    def _query(self, query: BoundQuery) -> Any:
        """Return the relation of an admitted query."""
        text, parameters = query.text, query.parameters
        try:
            with stopping.running(self.interrupt):
                return self._connection.sql(text, params=parameters) if parameters else self._connection.sql(text)
        except (duckdb.BinderException, duckdb.CatalogException) as e:
            raise self._with_place(e, query) from None

    def _with_place(self, error: Exception, query: BoundQuery) -> KartosqlError:
        """Return our error about a query that cannot be bound; DuckDB gives the place only if it is to run it."""
        edits = [*query.edits, ((0, 0), "EXPLAIN ")]
        try:
            self.rows(f"EXPLAIN {query.text}", query.parameters)
        except duckdb.TransactionException:
            pass  # a PIVOT in several steps ended the transaction: the first error is the one that says why
        except duckdb.Error as e:
            error = e
        return self._translate(error, query.select.text, edits)

    def is_determined(self, query: BoundQuery) -> bool:
        """Return whether a statement that ran before may answer the same as long as its files are the same."""
        passed = checked.get(query.shape or query.text)
        return passed is not None and passed.functions is not None and passed.functions <= self.determined()

    def _check(self, query: BoundQuery) -> frozenset[str] | None:
        """Refuse all but one query over the views of its occurrences; return its functions, None if others may vary."""
        text = query.text
        kinds = [s.type for s in self._connection.extract_statements(text)]
        if len(kinds) != 1 or kinds[0] not in _QUERIES:
            raise SqlError("Only queries can be run.", code="not-allowed", sql=query.select.text)
        if kinds[0] == duckdb.StatementType.SELECT:
            document = self.rows("SELECT json_serialize_sql(?)", [text])[0][0]
            tables = check_parsed(document, query.select.text)
            foreign = sorted(tables - {o.view for o in query.occurrences})
            if query.select.tree is not None and foreign:
                raise SqlError(
                    f"There is no table {'.'.join(foreign[0])!r}.", code="unknown-table", sql=query.select.text
                )
            return None if '"sample":{' in document else frozenset(map(str.lower, _CALLED.findall(document)))
        if query.select.tree is None:
            raise SqlError("This form of statement is not supported.", code="not-supported", sql=text)
        return None

    def fraction(self) -> float | None:
        """Return how much of the run is done, from any thread; None where DuckDB does not tell."""
        try:
            percent = float(self._connection.query_progress())
        except duckdb.Error:
            return None
        return percent / 100 if 0 <= percent <= 100 else None

    def measured(self) -> DuckProfile:
        """Return what tells how much the run read."""
        slots = self.instance.slots
        found = DuckProfile(self._connection, str if slots is None else slots.with_paths)
        self._measured = weakref.ref(found)
        return found

    def _settle(self) -> None:
        """Ask what the last run read, if anybody still wants to know, before that is forgotten."""
        if not self.instance.is_of_this_process:
            return
        if self._measured is not None and (found := self._measured()) is not None:
            found.settle()
        self._measured = None


def _merged(batches: Sequence[pa.RecordBatch], rows: int) -> Sequence[pa.RecordBatch]:
    """Return few rows of many batches as one batch: to pass a batch on takes longer than to copy it."""
    if len(batches) > 1 and rows <= FEW_ROWS:
        with contextlib.suppress(pa.ArrowException):  # not all types can be put together
            return [pa.concat_batches(batches)]
    return batches


def _exact(relation: Any) -> Any:
    """Return a relation with values as text that Arrow cannot hold; every result becomes Arrow here."""
    types = [str(t) for t in relation.types]
    exact = [exact_type(t) for t in types]
    if exact == types:
        return relation
    casts = zip(relation.columns, types, exact, strict=True)
    items = [
        f"{f'#{at}' if type_ == wanted else f'CAST(#{at} AS {wanted})'} AS {quote(name)}"
        for at, (name, type_, wanted) in enumerate(casts, 1)
    ]
    return relation.project(", ".join(items))


def stamps_of(store: Files, keys: Iterable[str]) -> dict[str, Stamp]:
    """Return the stamps of those files that are there and have one, of local disks."""
    found = {}
    for key in keys:
        with contextlib.suppress(KeyError):
            if (stamp := store.stamp(key)) is not None:
                found[key] = stamp
    return found


def table_names(text: str) -> list[tuple[str, ...]]:
    """Return the tables that DuckDB finds in a query; raises ``syntax-error`` and ``not-allowed``."""
    try:
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET enable_external_access = false")
            connection.execute("SET python_enable_replacements = false")
            kinds = [s.type for s in connection.extract_statements(text)]
            if len(kinds) != 1:
                raise SqlError("One statement at a time, please.", code="several-statements", sql=text)
            if kinds[0] != duckdb.StatementType.SELECT:
                raise SqlError(
                    "This form of statement is not supported.",
                    code="not-supported",
                    hint="Write SELECT * FROM ..., for instance SELECT * FROM t PIVOT (...).",
                    sql=text,
                )
            rows = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
            return sorted(check_parsed(rows[0][0], text))
    except duckdb.Error as e:
        raise translate(e, text, lambda message: None) from None


# What the texts of errors say that come through Arrow's stream interface.
_LABELS = {
    "INTERRUPT": duckdb.InterruptException,
    "Out of Memory": duckdb.OutOfMemoryException,
    "Conversion": duckdb.ConversionException,
    "OutOfRange": duckdb.OutOfRangeException,
    "Binder": duckdb.BinderException,
    "Permission": duckdb.PermissionException,
    "IO Error": duckdb.IOException,
}
