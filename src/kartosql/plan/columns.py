"""Types of the columns of a statement's queries, and which of them compare as they look."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kartosql.plan.evaluate import Evaluator
from kartosql.plan.reader import ConditionReader
from kartosql.plan.table_refs import Relation, Source
from kartosql.predicate.tree import ColumnRef, Parameter, Pieces

_INTEGER = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
# Types whose equal values no function can tell apart: not floats (0.0 = -0.0), intervals, nested types.
_PLAIN = re.compile(
    rf"{_INTEGER.pattern}|BOOLEAN|DATE|TIME|TIMESTAMP(_S|_MS|_NS)?|TIMESTAMP WITH TIME ZONE|BLOB|UUID|DECIMAL.*"
)


class ColumnTypes:
    """Finds the types of columns, by the engine's own rules."""

    def __init__(
        self,
        evaluator: Evaluator,
        reader: ConditionReader,
        sources: Mapping[int, Source],
        relations: Mapping[int, Relation],
    ) -> None:
        self._evaluator = evaluator
        self._reader = reader
        self._sources = sources
        self._relations = relations
        self._known: dict[ColumnRef, str | None] = {}

    def of(self, ref: ColumnRef) -> str | None:
        """Return the engine's name of a column's type, None if it is not known."""
        if ref not in self._known:
            self._known[ref] = None  # should a column refer to itself
            self._known[ref] = self._find(ref)
        return self._known[ref]

    def null(self, ref: ColumnRef) -> str:
        """Return a NULL of a column's type as SQL."""
        type_ = self.of(ref)
        return "NULL" if type_ is None else f"CAST(NULL AS {type_})"

    def of_pieces(self, pieces: Pieces) -> str | None:
        """Return the type of an expression."""
        if any(isinstance(p, Parameter) for p in pieces):
            return None
        return self._evaluator.type_of("".join(self.null(p) if isinstance(p, tuple) else str(p) for p in pieces))

    def _find(self, ref: ColumnRef) -> str | None:
        source = self._sources.get(ref[0])
        if source is not None and source.occurrence is not None:
            return self._evaluator.type_name(source.occurrence.source.columns[source.real(ref[1])])
        if source is not None and source.relation is not None:
            return self.of((source.relation.id, str(source.positions[ref[1]])))
        relation = self._relations.get(ref[0])
        if relation is None or relation.outputs is None:
            return None
        if relation.branches is not None:
            sides = [self.of((branch.id, ref[1])) for branch in relation.branches]
            if None in sides:
                return None
            if sides[0] == sides[1]:
                return sides[0]
            queries = " UNION ALL ".join(f"SELECT CAST(NULL AS {side})" for side in sides)
            return self._evaluator.type_of(f"(FROM ({queries}) LIMIT 1)")
        output = relation.outputs[int(ref[1])]
        if output.source is not None:
            return self.of((output.source[0].id, output.source[1]))
        pieces = self._reader.pieces(output.value) if output.value is not None else None
        return None if pieces is None else self.of_pieces(pieces)

    def is_plain(self, type_: str | None) -> bool:
        """Return whether values of a type that are equal are the same in every other way, too."""
        if type_ is None:
            return False
        if type_ == "VARCHAR":
            return not self._evaluator.has_collation()
        return _PLAIN.fullmatch(type_) is not None

    def carried(self, of: ColumnRef, to: ColumnRef) -> Pieces | None:
        """Return the expression that replaces column ``of`` in conditions carried over to an equal column ``to``."""
        one, other = self.of(of), self.of(to)
        if not (self.is_plain(one) and self.is_plain(other)):
            return None
        if one == other:
            return (to,)
        if one and other and _INTEGER.fullmatch(one) and _INTEGER.fullmatch(other):
            # A value that does not fit has no equal; NULL makes the condition less strict at most.
            return ("TRY_CAST(", to, f" AS {one})")
        return None
