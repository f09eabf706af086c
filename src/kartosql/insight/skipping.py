"""Skipping indexes that would help a query, each measured in the files that it reads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from kartosql.errors import KartosqlError
from kartosql.formats.xskipper import Index
from kartosql.formats.xskipper.bloom import shape_for
from kartosql.formats.xskipper.domain import as_tests
from kartosql.formats.xskipper.schema import BLOOM, MINMAX, VALUE_LIST
from kartosql.formats.xskipper.writer import value_type
from kartosql.insight.advices import (
    LEAST_SHARE,
    Advice,
    compares,
    counted_files,
    looked,
    sizes,
    target_of,
    unhelped,
)
from kartosql.insight.footers import sample
from kartosql.insight.inspect import Session
from kartosql.insight.measure import Measure
from kartosql.plan.conditions import Atom, Condition
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.plan.skips import column_types, in_metadata_terms
from kartosql.predicate.tree import Comparison, In, Leaf, Prefix
from kartosql.tables.names import quote_if_needed
from kartosql.text.sizes import human_bytes

MAX_LIST = 1_000  # values of a file that a list may hold; of more a filter is made
FPP = 0.01
FILTER_SHARE = 0.1  # of the bytes of a file that its filter may have
# Of plain constants only, so that the AND is that of BETWEEN.
_BETWEEN = re.compile(r"BETWEEN\s+([^\s()]+|DATE '[^']*')\s+AND\s+([^\s()]+|DATE '[^']*')", re.IGNORECASE)


def skipping_indices(session: Session, scan: OccurrenceScan, measure: Measure) -> Iterator[Advice]:
    """Yield the skipping indexes that would leave out files: bounds, else lists of values, else filters."""
    for part, condition, column in unhelped(scan):
        type_ = part.part.table.types[column]
        bounds = None
        if pa.types.is_signed_integer(type_) or pa.types.is_date32(type_):
            bounds = _by_bounds(session, scan, part, condition, column, measure)
        if bounds is not None:
            yield bounds
        values = _by_values(session, scan, part, condition, column, measure)
        # Bounds are smaller than all else, so the others have to do better.
        better = values.files_saved - (bounds.files_saved if bounds is not None else 0) if values is not None else 0
        if values is not None and better >= max(1, LEAST_SHARE * len(part.files)):
            yield values


def _by_bounds(
    session: Session, scan: OccurrenceScan, part: PartScan, condition: Condition, column: str, measure: Measure
) -> Advice | None:
    within = _within(condition)
    if within is None or _has(part, MINMAX, column):
        return None
    found = sample(session.store, part.part.table.files, part.files)
    left = measure.in_range(found, part.part.table, column, within)
    missing = [size for size, kept in zip(found.sizes, left or (), strict=False) if not kept]
    saved = found.scaled(len(missing))
    if saved < max(1, LEAST_SHARE * len(part.files)):
        return None
    target = target_of(scan, part)
    return Advice(
        "skipping index",
        f"a skipping index with the bounds of {column} of {target}",
        f"the bounds of {column} rule out {condition.text} in {counted_files(saved)}, "
        "but their footers tell that only when they are opened",
        f"CREATE SKIPPING INDEX ON {target} (MINMAX({quote_if_needed(column)}))",
        len(part.files),
        saved,
        sizes(session, part)[0],
        found.scaled(sum(missing)),
        f"by the footers of {counted_files(len(found.files))}",
        "smaller and quicker to keep up to date than an index of all values",
    )


def _by_values(
    session: Session, scan: OccurrenceScan, part: PartScan, condition: Condition, column: str, measure: Measure
) -> Advice | None:
    """Return the advice for a list of values, or for a filter where there are too many of them."""
    leaf = _leaf(session, scan, part, condition, column, measure)
    found = measure.matches(part, condition, [column]) if leaf is not None else None
    if leaf is None or found is None:
        return None
    saved = len(part.files) - found.files
    if saved < max(1, LEAST_SHARE * len(part.files)):
        return None
    counts = measure.distinct(part, found.sample, column)
    missing = found.sample.scaled(sum(s for s, rows in zip(found.sample.sizes, found.rows, strict=True) if not rows))
    target, quoted = target_of(scan, part), quote_if_needed(column)
    total, mean = sizes(session, part)
    why = f"{condition.text} holds in {counted_files(found.files)} of the {len(part.files):,} that are read, "
    if max(counts) <= MAX_LIST:
        if _has(part, VALUE_LIST, column):
            return None
        return Advice(
            "skipping index",
            f"a skipping index with the values of {column} of {target}",
            f"{why}and a file has {max(counts):,} different values of {column} at most",
            f"CREATE SKIPPING INDEX ON {target} (VALUELIST({quoted}))",
            len(part.files),
            saved,
            total,
            missing,
            looked(found),
            "quicker to keep up to date than an index of all values",
        )
    ndv, vain = _rounded(max(counts)), min(1.0, FPP * _looked_for(leaf))
    size = shape_for(FPP, ndv).bits // 8
    without, saved = saved, int(saved * (1 - vain))
    is_wanted = saved >= max(1, LEAST_SHARE * len(part.files)) and size <= FILTER_SHARE * mean
    if not is_wanted or value_type(part.part.table.types[column], BLOOM) is None or _has(part, BLOOM, column):
        return None
    return Advice(
        "skipping index",
        f"a skipping index with a filter of {column} of {target}",
        f"{why}and a file has up to {max(counts):,} different values of {column}, too many for a list",
        f"CREATE SKIPPING INDEX ON {target} (BLOOMFILTER({quoted}) WITH (fpp = {FPP}, ndv = {ndv}))",
        len(part.files),
        saved,
        total,
        missing * saved // without,
        f"{looked(found)}, less {vain:.0%} that filters read in vain",
        f"the filter of a file takes {human_bytes(size)}; for = and IN only",
    )


def _leaf(
    session: Session, scan: OccurrenceScan, part: PartScan, condition: Condition, column: str, measure: Measure
) -> Leaf | None:
    """Return a condition as lists and filters answer it, None for those that they do not."""
    leaf = in_metadata_terms(condition, scan.occurrence.id, {column})
    type_ = part.part.table.types[column]
    known = column_types({column: type_}, texts=not session.settings["default_collation"]).get((column.lower(),))
    if not isinstance(leaf, Comparison | In | Prefix) or known is None or known.family in ("float", "double"):
        return None
    zone = str(session.settings["TimeZone"])
    return leaf if value_type(type_, VALUE_LIST) is not None and as_tests(leaf, known, zone) is not None else None


def _looked_for(leaf: Leaf) -> float:
    """Return how many values a filter is asked for, infinity where it cannot be asked."""
    if isinstance(leaf, In) and not leaf.negated:
        return len(leaf.values)
    return 1 if isinstance(leaf, Comparison) and leaf.op == "=" else float("inf")


def _rounded(number: int) -> int:
    """Return a number of two digits and zeros that is not less."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step


def _has(part: PartScan, kind: str, column: str) -> bool:
    """Return whether a dataset has an index already."""
    skipping = part.part.table.skipping
    indexes: Sequence[Index] = ()
    if skipping is not None:
        with contextlib.suppress(KartosqlError):
            indexes = skipping.indexed()[0]
    return any(i.name == kind and i.path == (column.lower(),) for i in indexes)


def _within(condition: Condition) -> str | None:
    """Return a comparison with constants as what it asks of the bounds ``low`` and ``high``, None for others."""
    if not compares(condition):
        return None
    assert isinstance(condition, Atom)
    text = Atom(tuple("" if isinstance(p, tuple) else p for p in condition.pieces), negated=False, text="").render(str)
    text = text[1:-1].strip()
    for operator, bound in (("<=", "low"), (">=", "high"), ("<>", None), ("<", "low"), (">", "high")):
        if text.startswith(operator):
            return None if bound is None else f"{bound} {text}"
    if text.startswith("="):
        value = text.lstrip("=")
        return f"low <= ({value}) AND high >= ({value})"
    between = _BETWEEN.fullmatch(text)
    return f"high >= ({between[1]}) AND low <= ({between[2]})" if between else None
