"""The rules of the planner, each broken in one way."""

# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Text of a module that is replaced; ``survives`` tells why no test can notice, where that is so."""

    name: str
    module: str
    old: str
    new: str
    survives: str = ""


JOINS, PASSING, EXTRACT = "plan/joins.py", "plan/passing.py", "plan/extract.py"
DATASETS, EVALUATE, OVERLAY = "plan/datasets.py", "plan/evaluate.py", "plan/overlay.py"
COLUMNS, READER, CONDITIONS = "plan/columns.py", "plan/reader.py", "plan/conditions.py"
LOOKUP, TRANSFER, ENGINE = "plan/lookup.py", "plan/transfer.py", "engines/duckdb/"

MUTATIONS = [
    # -- joins
    Mutation("left join's right side is not filled with NULL", JOINS, 'if side in ("LEFT", "FULL"):', 'if side in ("FULL",):'),
    Mutation("right join's left side is not filled with NULL", JOINS, '''            if side in ("RIGHT", "FULL"):
                found.update''', '''            if side in ("FULL",):
                found.update'''),
    Mutation("full join's right side is not filled with NULL", JOINS, 'if side in ("LEFT", "FULL"):', 'if side in ("LEFT",):'),
    Mutation("every conjunct rejects NULL", EXTRACT, '''        return not self._evaluator.constant(condition.render(str)''', '''        return True or not self._evaluator.constant(condition.render(str)'''),
    Mutation("ON of left join prunes the left side", JOINS, '''        if side in ("LEFT", "ANTI"):
            return is_right''', '''        if side in ("ANTI",):
            return is_right'''),
    Mutation("ON of anti join prunes the left side", JOINS, '''        if side in ("LEFT", "ANTI"):
            return is_right''', '''        if side in ("LEFT",):
            return is_right'''),
    Mutation("ON of right join prunes the right side", JOINS, "return not is_right and at not in", "return at not in"),
    Mutation("ON of full join prunes", JOINS, 'if side in ("FULL", "ASOF", "POSITIONAL") or', 'if side in ("ASOF", "POSITIONAL") or'),
    Mutation("ON of asof join prunes", JOINS, 'if side in ("FULL", "ASOF", "POSITIONAL") or', 'if side in ("FULL", "POSITIONAL") or'),
    Mutation("WHERE prunes an asof join's right side", JOINS, 'not in ("SEMI", "ANTI", "ASOF", "POSITIONAL")', 'not in ("SEMI", "ANTI", "POSITIONAL")'),
    Mutation("ON prunes what an earlier join fills with NULL", JOINS, "return is_right or (at not in self.nullable(join) and self._is_seen(at))", "return is_right or self._is_seen(at)"),
    Mutation("ON holds though a later join undoes it", JOINS, '''        return not any(self.sides[i] in ("RIGHT", "FULL")''', '''        return not any(self.sides[i] in ()'''),
    Mutation("ON of left join holds for all rows", JOINS, 'if self.sides[i] in ("INNER", "SEMI") for c', 'if self.sides[i] in ("INNER", "SEMI", "LEFT") for c'),
    Mutation("a full join is made inner by one side", JOINS, '("FULL", True, False): "LEFT"', '("FULL", True, False): "INNER"'),
    Mutation("a left join is made inner by its left side", JOINS, '("LEFT", False, True): "INNER",', '("LEFT", False, True): "INNER",\n    ("LEFT", True, False): "INNER",'),
    Mutation("positional joins are pruned", EXTRACT, "if is_positional(scope.sources):", "if False:"),
    Mutation("sampled rows are pruned", EXTRACT, 'if select.args.get("sample"):', "if False:"),
    # -- through queries
    Mutation("conditions pass all columns of an aggregation", PASSING, "if keys is not None and not used <= keys and not self._is_key(at, relation):", "if False:"),
    Mutation("conditions pass all columns of a window", PASSING, "return pieces if all(used <= partition for partition in windows) else None", "return pieces"),
    Mutation("one window's keys are enough", PASSING, "return pieces if all(used <= partition for partition in windows) else None", "return pieces if not windows or any(used <= partition for partition in windows) else None"),
    Mutation("ROLLUP, CUBE and GROUPING SETS are simple", PASSING, "if not _is_simple(group):\n            return frozenset()", "if False:\n            return frozenset()"),
    Mutation("floats are plain", COLUMNS, "BOOLEAN|DATE", "BOOLEAN|DOUBLE|FLOAT|DATE"),
    Mutation("texts with a collation are plain", COLUMNS, "return not self._evaluator.has_collation()", "return True"),
    Mutation("columns of set operations keep their type", PASSING, '''return (inner,) if self._types.of(inner) == type_ else ("CAST(", inner, f" AS {type_})")''', "return (inner,)"),
    Mutation("expressions keep the type of a literal", PASSING, '''("CAST((", *pieces, f") AS {type_})")''', '''("(", *pieces, ")")'''),
    Mutation(
        "barriers are passed",
        EXTRACT,
        """            self._note(relation, relation.barrier)
            conditions = []""",
        """            self._note(relation, relation.barrier)""",
    ),
    Mutation("one use of an expression speaks for all", EXTRACT, "if len(pending) == len(relation.uses):", "if len(pending) == 1:"),
    Mutation("uses of an expression are joined by AND", CONDITIONS, "return flat[0] if len(flat) == 1 else Group(\"OR\", tuple(flat))", "return flat[0] if len(flat) == 1 else Group(\"AND\", tuple(flat))"),
    Mutation("an OR loses the alternatives that are not understood", CONDITIONS, '''            items = []
        if not items:''', '''            items = [i for i in items if not isinstance(i, Opaque)]
        if not items:'''),
    # -- reading predicates
    Mutation("NOT is not pushed down", READER, 'op = "AND" if isinstance(node, exp.And) != negated else "OR"', 'op = "AND" if isinstance(node, exp.And) else "OR"'),
    Mutation("NOT is forgotten", READER, "return self.read(node.this, not negated)", "return self.read(node.this, negated)"),
    Mutation(
        "impure predicates are evaluated",
        READER,
        """if self._is_pure(_NUMBER.sub("0", "".join(pure))) else None""",
        "if True else None",
    ),
    Mutation("the parsers need not agree", EXTRACT, "if not self._reader.agrees(node):", "if False:"),
    # -- equal columns
    Mutation("values are carried over between all types", COLUMNS, '''        if not (self.is_plain(one) and self.is_plain(other)):
            return None
        if one == other:''', '''        if True:'''),
    Mutation("pairs of an outer EXISTS are kept under grouping", EXTRACT, 'if scope is None or any(scope.select.args.get(key) for key in ("group", "having", "qualify", "distinct")):', "if scope is None:"),
    Mutation("aggregates are ignored below EXISTS", EXTRACT, "if any(e.find(exp.AggFunc, exp.Anonymous) for e in scope.select.expressions):", "if False:"),
    Mutation("all parts of a FULL JOIN's merged column are pruned", EXTRACT, "[c.condition for c in final if c.condition.columns and all(r[0] in parts for r in c.condition.columns)],", "[c.condition for c in final if c.condition.columns and any(r[0] in parts for r in c.condition.columns)],"),
    Mutation("a lookup forgets what is NULL", LOOKUP, "if scan is not None and scan.is_empty:", "if True:"),
    Mutation("values looked up are cut off", LOOKUP, "conjunction(known) if known else None, own, MAX_VALUES)", 'conjunction([*known, Atom(("FALSE",), negated=False, text="")]), own, MAX_VALUES)'),
    # -- structures
    Mutation("OR intersects", EVALUATE, "return frozenset().union(*(self.all_files if p is None else p for p in parts))", "return self.all_files.intersection(*(self.all_files if p is None else p for p in parts))"),
    Mutation("OR ignores what cannot be evaluated", EVALUATE, "return frozenset().union(*(self.all_files if p is None else p for p in parts))", "return frozenset().union(*(p for p in parts if p is not None))", survives="an OR with such a part is not evaluated at all, see _can_prune"),
    Mutation("two indices are evaluated as one", EVALUATE, "return frozenset(indexed) if len(indexed) <= 1 else None", "return frozenset(sorted(indexed)[:1])"),
    Mutation("NULL is in indices", ENGINE + "evaluator.py", "absent = [] if skips_null else [self.null(type_)]", "absent = []"),
    Mutation("every predicate is NULL for NULL", ENGINE + "evaluator.py", "return tree is not None and is_null_for_null(tree, texts=pa.types.is_string(type_))", "return True"),
    Mutation("NaN is in indices", ENGINE + "evaluator.py", "if pa.types.is_floating(type_) and not never_nan:", "if False:"),
    Mutation("indices tell the zeros apart", ENGINE + "structures.py", "def _with_zeros(query: str, files: str, type_: pa.DataType) -> str:\n", "def _with_zeros(query: str, files: str, type_: pa.DataType) -> str:\n    return query\n\n\ndef _unused(query: str, files: str, type_: pa.DataType) -> str:\n"),
    Mutation("a predicate that fails holds for nothing", ENGINE + "evaluator.py", 'f"coalesce(TRY({predicate}), true)"', 'f"coalesce(TRY({predicate}), false)"'),
    Mutation("columns of cubes are never NULL", DATASETS, "never_null = frozenset(cube.cube.dimension_columns) if", "never_null = frozenset(table.indices) if"),
    Mutation("statistics forget NULL", ENGINE + "evaluator.py", '" AND nulls = 0" * null', '""'),
    Mutation("statistics forget NaN", ENGINE + "evaluator.py", "            if nan:\n                return None", "            if False:\n                return None"),
    Mutation("statistics of <> are those of =", ENGINE + "bounds.py", 'template = "(low <> {0} OR high <> {0})"', 'template = "(low <> {0} AND high <> {0})"'),
    Mutation("statistics: < looks at the largest value", ENGINE + "bounds.py", "'low' if operator.startswith('<') else 'high'", "'high' if operator.startswith('<') else 'low'"),
    Mutation("statistics: all types keep their order", ENGINE + "bounds.py", "return {type_, other} <= _NUMBERS or {type_, other} <= _MOMENTS", "return True"),
    # -- less than all rows
    Mutation(
        "a LIMIT counts rows that its condition may drop",
        "plan/less.py",
        "if not all(o == head.occurrence and c in keys for o, c in condition.columns):\n        return frozenset()",
        "if not all(o == head.occurrence and c in keys for o, c in condition.columns):\n        return frozenset(part.files)",
    ),
    Mutation("a LIMIT forgets its OFFSET", "plan/shapes.py", 'for key in ("limit", "offset")]', 'for key in ("limit",)]'),
    Mutation("the first rows of a DISTINCT suffice", "plan/shapes.py", '_NOT_FIRST = ("distinct", "group",', '_NOT_FIRST = ("group",'),
    Mutation("the first rows of an ORDER BY suffice", "plan/shapes.py", '"qualify", "order", "sample"', '"qualify", "sample"'),
    Mutation("overlaid files are counted", "plan/less.py", "or scan.parts[0].overlaid or", "or"),
    # -- cubes
    Mutation("left joined datasets are pruned by their payload", DATASETS, 'payload = own if seed or draft.join == "inner" else key', "payload = own"),
    Mutation("every condition makes a dataset inner", DATASETS, '''        if self._is_about(condition, payload):
            return rejects_null(''', '''        if self._is_about(condition, payload):
            return True or rejects_null('''),
    Mutation("files that hide a row are dropped", DATASETS, "        if draft.files != before:", "        if False:"),
    Mutation(
        "the last row does not win",
        OVERLAY,
        "        writes = self._writes\n        writes.asked += 1\n",
        "        return frozenset()\n        writes = self._writes\n        writes.asked += 1\n",
    ),
    Mutation("overlays: ranges that touch are apart", OVERLAY, "if clusters and low <= end:", "if clusters and low < end:"),
    Mutation("overlays: unknown ranges are apart", OVERLAY, "if any(f not in ranges for f in group):\n        return [list(group)]", "group = [f for f in group if f in ranges]"),
    Mutation("overlays: files of one partition are of one write", "plan/writes.py", "return len(files) > 1 and len(set(map(self._codes.__getitem__, files))) > 1", "return False"),
    Mutation("datasets that are used are dropped", DATASETS, "if part is self._source.parts[0] or used is None:", "if part is self._source.parts[0]:"),
    Mutation("the seed prunes by left joined datasets", TRANSFER, 'if other.join == "inner":', "if True:"),
    Mutation("transfer: partners need no shared partition", TRANSFER, "if not shared:\n        return target.files", "if not shared:\n        return frozenset()"),
]  # fmt: skip
