"""Looks predicates up in inverted indices, as far as that takes less time than it can save."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.index_cost import SCAN_PAIR
from kartosql.engines.duckdb.planner_tables import IndexTables
from kartosql.engines.duckdb.predicates import is_comparison
from kartosql.engines.relations import RowRequest
from kartosql.errors import FormatError, reraise
from kartosql.indexes.index import Candidates, Files
from kartosql.plan.evaluate import MAX_PROBES
from kartosql.predicate.tree import Comparison, Predicate
from kartosql.tables.table import FileTable
from kartosql.text.sizes import counted

if TYPE_CHECKING:
    from kartosql.engines.duckdb.evaluator import DuckEvaluator, Planner
    from kartosql.engines.duckdb.planner_tables import PlannerTables

NEGLIGIBLE = 0.002  # seconds that nobody reckons with
# What it takes at least to scan a file, roughly: to open it, and its columns that conditions are about.
FILE_SECONDS, BYTE_SECONDS = 7e-5, 1e-10
REMOTE_FILE_SECONDS = 0.02
SPREAD_PAIR = 5e-8  # to join a pair of a held index with its partition values
FIRST = 64  # values that match are fetched from a held index before it is asked any further
FIRST_PAIRS = 100_000
# Pairs of value and file in a sample, for each file: of a held index, and of an index file, where they cost more.
PER_FILE, PER_FILE_READ = 10, 5
MAX_SAMPLE = 1_000_000


class Lookups:
    """Finds the files with matching values of an indexed column.

    What most values match is found in nearly all files: there the files in which some of these
    values stand are looked at first. If no file is left that reading on might leave out, or not
    enough of them, all files are kept.
    """

    def __init__(self, evaluator: DuckEvaluator, session: Planner, structures: PlannerTables) -> None:
        self._evaluator = evaluator
        self._select = evaluator.select
        self._session = session
        self._structures = structures
        self._file_seconds: weakref.WeakKeyDictionary[FileTable, float] = weakref.WeakKeyDictionary()

    def files(
        self,
        table: FileTable,
        column: str,
        predicate: str,
        says: Predicate,
        parameters: Mapping[str, Any],
        among: Files,
        parts: str,
    ) -> Candidates:
        """Return the files with a value of ``column`` for which a predicate, that ``says`` so much, may be TRUE.

        Given the relation of the partition values, ``parts``, these may stand in the predicate.
        """
        index = self._structures.index(table, column)
        if pa.types.is_binary(table.indices[column].type):
            return self._binary(table, index, parts, predicate, parameters)
        index.uses += 1
        found = _Lookup(self, self._structures, table, index, parts, predicate, says, parameters, among).run()
        index.saved = self.seconds(table, among - found.files) if index.held is None else 0.0
        return found

    def seconds(self, table: FileTable, files: Files) -> float:
        """Return about what it takes to scan files."""
        if not files:
            return 0.0
        if not self._session.store.is_local:
            return REMOTE_FILE_SECONDS * len(files)  # to ask for a size takes as long as to open a file
        if table not in self._file_seconds:
            mean = self._evaluator.cells.data_bytes(table, table.all_files) / len(table.files)
            self._file_seconds[table] = FILE_SECONDS + BYTE_SECONDS * mean
        return self._file_seconds[table] * len(files)

    # -- queries -----------------------------------------------------------------------------------

    def matching(
        self,
        table: FileTable,
        index: IndexTables,
        parts: str,
        predicate: str,
        parameters: Mapping[str, Any],
        *,
        value: str = "v",
    ) -> list[Any] | bool:
        """Return the files with an index value, or what ``value`` makes of it, that matches; True is all of them."""
        after = ""
        if parts:
            spread = f"(SELECT * REPLACE ({value} AS v) FROM {index.name}) JOIN {parts} USING (part)"
            before = f"SELECT DISTINCT file FROM {spread} WHERE "
        elif index.held is not None:
            before = f"SELECT DISTINCT unnest(files) FROM (SELECT {value} AS v, files FROM {index.held}) WHERE "
        else:
            # The values are filtered before their labels are spread.
            before = (
                "SELECT DISTINCT l.file FROM (SELECT DISTINCT unnest(labels) AS label "
                f"FROM (SELECT {value} AS v, labels FROM {index.values}) WHERE "
            )
            after = f") i JOIN {self._structures.files(table)} l USING (label)"
        return self.ask(index, before, predicate, parameters, after)

    def ask(
        self, index: IndexTables, before: str, predicate: str, parameters: Mapping[str, Any], after: str = ""
    ) -> list[Any] | bool:
        """Run a query over an index."""
        if index.held is not None:
            return self._select(before, predicate, parameters, after, index)
        with index.timed():
            return self._select(before, predicate, parameters, after, index)

    # -- binary values -----------------------------------------------------------------------------

    def _binary(
        self, table: FileTable, index: IndexTables, parts: str, predicate: str, parameters: Mapping[str, Any]
    ) -> Candidates:
        """Return the files of an index of binary values.

        The originals cut these at their first NUL byte. Compared with values that have none,
        all that were cut to v stand where v and one NUL byte stands; files that match only
        there are doubtful.
        """
        found = self.matching(table, index, parts, predicate, parameters)
        if isinstance(found, bool) or not self._compares(predicate, parameters):
            return Candidates(table.all_files)
        files = {row[0] for row in found}
        more = self.matching(table, index, parts, predicate, parameters, value="v || '\\x00'::BLOB")
        doubtful = set(table.all_files) if isinstance(more, bool) else {row[0] for row in more}
        really = self._really_matching(table, index.column, predicate, parameters, doubtful - files)
        return Candidates(frozenset(files | really))

    def _compares(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate does no more than compare its column with values without NUL bytes."""
        clean = not any(isinstance(v, bytes) and b"\0" in v for v in parameters.values())
        tree, lists = self._evaluator.parse(predicate)
        return clean and not lists and is_comparison(tree)

    def _really_matching(
        self,
        table: FileTable,
        column: str,
        predicate: str,
        parameters: Mapping[str, Any],
        doubtful: set[int],
    ) -> set[int]:
        """Return those of the ``doubtful`` files in which a value matches, found by looking into a few of them."""
        if len(doubtful) > MAX_PROBES:
            return doubtful
        names = {column: "v", **{key: f"k{i}" for i, key in enumerate(table.partition_keys)}}
        found = set()
        for file in sorted(doubtful):
            rows = self._session.relations.rows_of(table, [file], RowRequest(names))
            if self._select(f"SELECT 1 FROM ({rows}) WHERE ", predicate, parameters, " LIMIT 1"):
                found.add(file)
        return found

    # -- an index that does not read ----------------------------------------------------------------

    def check(self, index: IndexTables) -> None:
        """Raise ``invalid-index`` if an index file cannot be read."""
        try:
            self._session.rows(
                f"SELECT count(v), count(labels), sum(len(labels)), max(labels::VARCHAR) FROM {index.values}_all"
            )
        except duckdb.Error as e:
            reraise(e, f"Cannot read {index.index.key!r}")
            raise FormatError(
                f"{index.index.key}: {str(e).splitlines()[0]}", code="invalid-index", hint="Build the index again."
            ) from None


def compared(predicate: Predicate, type_: pa.DataType) -> tuple[str, Any]:
    """Return how a predicate like ``v < 5`` compares a column of integers or texts with such a constant, and that.

    Integers have up to 18 digits. The operator is empty for all other predicates.
    """
    if isinstance(predicate, Comparison) and len(predicate.path) == 1:
        value = predicate.value.value
        is_text = pa.types.is_string(type_) and predicate.value.kind in ("string", "text")
        is_integer = pa.types.is_integer(type_) and predicate.value.kind == "integer"
        if is_text or (is_integer and isinstance(value, int) and abs(value) < 10**18):
            return predicate.op, value
    return "", None


class _Lookup:
    """One predicate looked up in one index."""

    def __init__(
        self,
        lookups: Lookups,
        structures: PlannerTables,
        table: FileTable,
        index: IndexTables,
        parts: str,
        predicate: str,
        says: Predicate,
        parameters: Mapping[str, Any],
        among: Files,
    ) -> None:
        self._lookups = lookups
        self._structures = structures
        self._table = table
        self._index = index
        self._parts = parts
        self._predicate = predicate
        self._operator, self._value = compared(says, table.indices[index.column].type)
        self._parameters = parameters
        self._among = among
        self._everything = Candidates(table.all_files)
        self._sample_pairs = min(MAX_SAMPLE, PER_FILE * len(table.files))

    def run(self) -> Candidates:
        """Return the files."""
        index = self._index
        if index.ascending is not None and not self._parts and self._operator == "=":
            return Candidates(frozenset(index.ascending.files(self._value)))
        if self._exceeds(self._lowest_price(), self._among):
            return self._kept(self._among)
        if self._parts:
            large = SPREAD_PAIR * index.pairs > NEGLIGIBLE
            if large and index.held is None and index.may_be_held and index.hold_seconds < index.read_seconds:
                self._structures.hold(self._table, index)
            return self._sampled(frozenset()) if index.held is not None else self._whole()
        if index.read_seconds < NEGLIGIBLE:
            return self._whole()
        return self._in_held() if index.held is not None else self._in_file()

    def _lowest_price(self) -> float:
        index = self._index
        if not self._parts:
            return index.touch_seconds
        making = 0.0 if index.held is not None else min(index.hold_seconds, index.read_seconds)
        return making + SPREAD_PAIR * self._sample_pairs

    # -- where the index is held ---------------------------------------------------------------------

    def _in_held(self) -> Candidates:
        """Fetch what the first values have that match, which often are all of them."""
        index = self._index
        limit = max(1, min(FIRST, FIRST_PAIRS * index.rows // max(1, index.pairs)))
        found = self._ask(f"SELECT files FROM {index.held} WHERE ", f" LIMIT {limit}")
        if isinstance(found, bool):
            return self._everything
        files = frozenset(f for (listed,) in found for f in listed)
        if len(found) < limit:
            return Candidates(files)
        return self._by_extremes() or self._sampled(files)

    def _by_extremes(self) -> Candidates | None:
        """Look at the smallest or largest value of each file, for predicates that it answers."""
        index = self._index
        if SCAN_PAIR * index.pairs < NEGLIGIBLE:
            return None
        end = {"<": "low", "<=": "low", ">": "high", ">=": "high"}.get(self._operator)
        name = self._structures.extremes(index) if end is not None else None
        if name is None:
            return None
        found = self._ask(f"SELECT file FROM (SELECT file, {end} AS v FROM {name}) WHERE ")
        return self._everything if isinstance(found, bool) else Candidates(frozenset(file for (file,) in found))

    def _sampled(self, found: Files) -> Candidates:
        """Look at a sample of the values before looking at all of them."""
        index = self._index
        per_pair = SPREAD_PAIR if self._parts else SCAN_PAIR
        pairs = self._sample_pairs
        if per_pair * index.pairs < NEGLIGIBLE or 2 * pairs > index.pairs:
            return self._whole()
        name, share = self._structures.sample(index, pairs)
        if self._parts:
            files = self._structures.files(self._table)
            spread = f"(SELECT v, unnest(files) AS file FROM {name}) JOIN {files} USING (file)"
            before = f"WITH m AS MATERIALIZED (SELECT file FROM {spread} JOIN {self._parts} USING (part) WHERE "
            after = ") SELECT count(*), list(DISTINCT file) FROM m"
        else:
            before = f"WITH m AS MATERIALIZED (SELECT unnest(files) AS file FROM {name} WHERE "
            after = ") SELECT count(*), list(DISTINCT file) FROM m"
        sample = self._ask(before, after)
        if isinstance(sample, bool):
            return self._everything
        ((matching, listed),) = sample
        rest = self._among.difference(found, listed or ())
        price = per_pair * (index.pairs if self._parts else matching / share)
        return self._kept(rest) if self._exceeds(price, rest) else self._whole()

    # -- where it is a file --------------------------------------------------------------------------

    def _in_file(self) -> Candidates:
        """Find out how many values match, and read files of some of them, before all are read."""
        index = self._index
        limit = max(FIRST, min(MAX_SAMPLE, PER_FILE_READ * len(self._table.files)) * index.rows // max(1, index.pairs))
        matching = self._count() if index.count_seconds < index.group_seconds else None
        if matching == 0:
            return Candidates(frozenset())
        rest = self._among
        if matching is None or matching > limit:
            if matching is not None and self._exceeds_gain(matching):
                return self._kept(rest)
            found = self._first(limit)
            if found is None:
                return self._everything
            if found[0] < limit:
                return Candidates(found[1])
            rest = rest - found[1]
            if not rest:
                return self._everything
            matching = self._count() if matching is None else matching
        if self._exceeds_gain(matching, rest):
            return self._kept(rest)
        if index.may_be_held and index.hold_seconds < self._price(matching):
            self._structures.hold(self._table, index)
        return self._whole()

    def _first(self, limit: int) -> tuple[int, Files] | None:
        """Return the number of values that match, up to a limit, and their files; None stands for everything."""
        files = self._structures.files(self._table)
        found = self._ask(
            f"WITH m AS MATERIALIZED (SELECT labels FROM {self._index.values} WHERE ",
            f" LIMIT {limit}) SELECT (SELECT count(*) FROM m), (SELECT list(file) FROM "
            f"(SELECT DISTINCT unnest(labels) AS label FROM m) JOIN {files} USING (label))",
        )
        return None if isinstance(found, bool) else (found[0][0], frozenset(found[0][1] or ()))

    def _count(self) -> int:
        """Return how many values match."""
        found = self._ask(f"SELECT count(*) FROM {self._index.values} WHERE ")
        return self._index.rows if isinstance(found, bool) else int(found[0][0])

    def _price(self, matching: int) -> float:
        """Return what it takes to read the files of so many values."""
        return self._index.touch_seconds + self._share(matching) * self._index.read_seconds

    def _share(self, matching: int) -> float:
        return min(1.0, matching / max(1, self._index.rows))

    def _exceeds_gain(self, matching: int, rest: Files | None = None) -> bool:
        """Return whether to read the files of so many values takes longer than all that this could save."""
        price = self._price(matching)
        if self._index.may_be_held:
            price = min(price, self._index.hold_seconds)
        # What some values do not match cannot leave out more files than these values have.
        gain = (1 - self._share(matching)) * self._lookups.seconds(self._table, self._table.all_files)
        if rest is not None:
            gain = min(gain, self._lookups.seconds(self._table, rest))
        return price > max(NEGLIGIBLE, gain)

    # -- plumbing --------------------------------------------------------------------------------------

    def _whole(self) -> Candidates:
        """Look the predicate up among all values."""
        found = self._lookups.matching(self._table, self._index, self._parts, self._predicate, self._parameters)
        return self._everything if isinstance(found, bool) else Candidates(frozenset(row[0] for row in found))

    def _ask(self, before: str, after: str = "") -> list[Any] | bool:
        return self._lookups.ask(self._index, before, self._predicate, self._parameters, after)

    def _exceeds(self, price: float, files: Files) -> bool:
        """Return whether a price is higher than all that could be saved."""
        return price > NEGLIGIBLE and price > self._lookups.seconds(self._table, files)

    def _kept(self, rest: Files) -> Candidates:
        """Keep all files, as it would not pay to look for the ``rest``."""
        if not rest:
            return self._everything
        note = f"not looked up, at most {counted(len(rest), 'file')} could be left out"
        return Candidates(self._table.all_files, note)
