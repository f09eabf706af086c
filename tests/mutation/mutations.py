"""The rules of the planner, each broken in one way."""

# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Text of a module that is replaced.

    ``by`` is a test that notices, which is tried first; ``survives`` tells why none can, where
    that is so.
    """

    name: str
    module: str
    old: str
    new: str
    by: str = ""
    survives: str = ""


EXTRACT = "plan/extract.py"
PRUNE, OVERLAYS = "plan/prune.py", "plan/overlays.py"
READER, TREE = "plan/reader.py", "predicate/tree.py"
DYNAMIC_FILTERS, ENGINE = "plan/dynamic_filters.py", "engines/duckdb/"
LOOKUPS, SORTED_INDEX = ENGINE + "lookups.py", ENGINE + "sorted_index.py"
FROM_SQL = "predicate/from_sql.py"
EVALUATOR, STATISTICS, LIMITS = ENGINE + "evaluator.py", "tables/statistics.py", "plan/limits.py"
ALIGNMENT, KEPT_STATISTICS = ENGINE + "alignment.py", "tables/kept_statistics.py"

MUTATIONS = [
    # -- joins
    Mutation("left join's right side is not filled with NULL", EXTRACT, 'if side in ("LEFT", "FULL"):', 'if side in ("FULL",):', by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[left_using_case]"),
    Mutation("right join's left side is not filled with NULL", EXTRACT, '''            if side in ("RIGHT", "FULL"):
                found.update''', '''            if side in ("FULL",):
                found.update''', by="tests/plan/test_extract.py::test_statements"),
    Mutation("full join's right side is not filled with NULL", EXTRACT, 'if side in ("LEFT", "FULL"):', 'if side in ("LEFT",):', by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("every conjunct rejects NULL", EXTRACT, "return is_evaluable(left) and not evaluator", "return True or not evaluator", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[left_partition_is_null]"),
    Mutation("ON of left join prunes the left side", EXTRACT, '''        if side in ("LEFT", "ANTI"):
            return is_right''', '''        if side in ("ANTI",):
            return is_right''', by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[left_on_left]"),
    Mutation("ON of anti join prunes the left side", EXTRACT, '''        if side in ("LEFT", "ANTI"):
            return is_right''', '''        if side in ("LEFT",):
            return is_right''', by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[anti_on]"),
    Mutation("ON of right join prunes the right side", EXTRACT, "return not is_right and at not in", "return at not in", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[right_on]"),
    Mutation("ON of full join prunes", EXTRACT, 'if side in ("FULL", "ASOF", "POSITIONAL") or', 'if side in ("ASOF", "POSITIONAL") or', by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[full_on_left]"),
    Mutation("ON of asof join prunes", EXTRACT, 'if side in ("FULL", "ASOF", "POSITIONAL") or', 'if side in ("FULL", "POSITIONAL") or', by="tests/plan/test_extract.py::test_statements"),
    Mutation("WHERE prunes an asof join's right side", EXTRACT, 'not in ("SEMI", "ANTI", "ASOF", "POSITIONAL")', 'not in ("SEMI", "ANTI", "POSITIONAL")', by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[asof_idx]"),
    Mutation("ON prunes what an earlier join fills with NULL", EXTRACT, "return is_right or (at not in self.nullable(join) and self._is_seen(at))", "return is_right or self._is_seen(at)", by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("ON holds though a later join undoes it", EXTRACT, '''        return not any(self.sides[i] in ("RIGHT", "FULL")''', '''        return not any(self.sides[i] in ()''', by="tests/plan/test_extract.py::test_statements"),
    Mutation("ON of left join holds for all rows", EXTRACT, 'if self.sides[i] in ("INNER", "SEMI") for c', 'if self.sides[i] in ("INNER", "SEMI", "LEFT") for c', by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[left_on_left]"),
    Mutation("a full join is made inner by one side", EXTRACT, '("FULL", True, False): "LEFT"', '("FULL", True, False): "INNER"', by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("a left join is made inner by its left side", EXTRACT, '("LEFT", False, True): "INNER",', '("LEFT", False, True): "INNER",\n    ("LEFT", True, False): "INNER",', by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("positional joins are pruned", EXTRACT, 'if any(s.side == "POSITIONAL" for s in scope.sources):', "if False:", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[positional]"),
    Mutation("sampled rows are pruned", EXTRACT, 'if select.args.get("sample"):', "if False:", by="tests/golden/test_sql.py::test_tables_that_must_not_be_pruned_are_kept_whole[using_sample_where]"),
    # -- bounds
    Mutation("bounds of footers are those of the column of that name", STATISTICS, "in_file = variant.names.get(name, name)", "in_file = name", by="tests/engines/test_renamed_columns.py::test_bounds_of_footers_are_those_of_the_column_that_is_meant"),
    Mutation("bounds of footers are those of a column that was dropped", STATISTICS, "if variant.types is not None and name not in variant.types:  #", "if False:  #", by="tests/engines/test_renamed_columns.py::test_bounds_of_footers_are_those_of_the_column_that_is_meant"),
    Mutation("what is lacking is NULL, whatever stands for it", STATISTICS, "return None, not table.renames", "return None, True", by="tests/engines/test_renamed_columns.py::test_files_are_left_out_by_bounds_of_columns_that_they_call_otherwise"),
    Mutation("files of which manifests tell no NULLs hold none", "sources/iceberg.py", "-1 if n is None else n", "0 if n is None else n", by="tests/sources/test_attach_iceberg.py::test_what_manifests_do_not_tell_leaves_out_no_file"),
    Mutation("bounds of dates are those of moments", "formats/iceberg/columns.py", "sizes = (4, 8) if t.is_int64(type_) else (width // 8,)", "sizes = (4, 8)", by="tests/sources/test_attach_iceberg.py::test_what_manifests_do_not_tell_leaves_out_no_file"),
    Mutation("bounds that contradict each other count", "sources/iceberg.py", "None not in (low, high) and low <= high", "None not in (low, high)", by="tests/sources/test_attach_iceberg.py::test_bounds_that_lie_about_types_are_ignored"),
    Mutation("a column that parts some files parts all", "sources/iceberg.py", "is_whole = values and len(values) == len(files.partitions)", "is_whole = bool(values)", by="tests/sources/test_attach_iceberg.py::test_partition_values_and_bounds_are_steps_of_the_plan"),
    Mutation("files of which metadata tell no bounds are left out", EVALUATOR, "left | (table.all_files - known.complete)", "left", by="tests/engines/test_metadata_bounds.py::test_no_file_with_a_match_is_left_out"),
    Mutation("moments in the log are those of rows", "sources/delta.py", "constant(sign * _MILLISECOND, pa.int64())", "constant(0, pa.int64())", by="tests/sources/test_attach_delta.py::test_moments_are_read_in_utc_and_cut_in_the_log[UTC]"),
    Mutation("digits of FLOAT are those of DOUBLE", "formats/delta/statistics.py", " and WAS_FLOAT not in f.metadata", "", by="tests/sources/test_attach_delta.py::test_types_widen_and_digits_of_narrower_ones_leave_out_nothing"),
    Mutation("vague counts of NULL are exact", "sources/delta.py", "pc.if_else(is_vague, _UNKNOWN, nulls)", "nulls", survives="what is vague is neither none nor all, and nothing asks for more"),
    Mutation("counts of NULL that cannot be count", "sources/delta.py", "kept = pc.and_(pc.and_(is_told, is_sound)", "kept = pc.and_(pc.and_(is_told, is_told)", by="tests/sources/test_attach_delta.py::test_statistics_of_another_form_are_as_none_and_those_of_others_still_count[15]"),
    Mutation("several objects of statistics count as one", "formats/delta/statistics.py", "if table.num_rows != len(texts):", "if False:", survives="what may be two objects is read one by one before"),
    Mutation("a deletion vector is not looked at by its checksum", "formats/roaring.py", 'if crc != struct.pack(">I", zlib.crc32(data)):', "if False:", by="tests/sources/test_attach_delta.py::test_deletion_vectors_with_another_checksum_or_with_rows_that_are_not_there_are_refused"),
    # -- through queries
    Mutation("conditions pass all columns of an aggregation", EXTRACT, "if keys is not None and not used <= keys and not self._is_key(at, relation):", "if False:", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[rollup_outer]"),
    Mutation("conditions pass all columns of a window", EXTRACT, "return pieces if all(used <= partition for partition in windows) else None", "return pieces", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[window_below]"),
    Mutation("one window's keys are enough", EXTRACT, "return pieces if all(used <= partition for partition in windows) else None", "return pieces if not windows or any(used <= partition for partition in windows) else None", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[two_windows]"),
    Mutation("ROLLUP, CUBE and GROUPING SETS are simple", EXTRACT, "if not _is_simple(group):\n            return frozenset()", "if False:\n            return frozenset()", survives="what is grouped by outside of these is a key of each of their groups, and the parser puts nothing else there"),
    Mutation("floats are plain", EXTRACT, "BOOLEAN|DATE", "BOOLEAN|DOUBLE|FLOAT|DATE", by="tests/plan/test_rules.py::test_zeros_that_are_equal_are_not_the_same"),
    Mutation("texts with a collation are plain", EXTRACT, "return not self._evaluator.has_collation()", "return True", by="tests/plan/test_rules.py::test_texts_that_a_collation_makes_equal_are_not_the_same"),
    Mutation("columns of set operations keep their type", EXTRACT, '''return (inner,) if self.of(inner) == type_ else ("CAST(", inner, f" AS {type_})")''', "return (inner,)", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[union_coercion]"),
    Mutation("expressions keep the type of a literal", EXTRACT, '''("CAST((", *pieces, f") AS {type_})")''', '''("(", *pieces, ")")''', by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation(
        "barriers are passed",
        EXTRACT,
        """            self._note(relation, relation.barrier)
            conditions = []""",
        """            self._note(relation, relation.barrier)""", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[limit_below]",
    ),
    Mutation("one use of an expression speaks for all", EXTRACT, "if len(pending) == len(relation.uses):", "if len(pending) == 1:", by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("uses of an expression are joined by AND", EXTRACT, "[joined(\"OR\", list(dict", "[joined(\"AND\", list(dict", by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("an OR loses the alternatives that are not understood", TREE, "if not known or (condition.op == \"OR\" and len(known) < len(items)):", "if not known:", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[left_using_mixed]"),
    # -- reading predicates
    Mutation("NOT is not pushed down", READER, 'op = "AND" if isinstance(node, exp.And) != negated else "OR"', 'op = "AND" if isinstance(node, exp.And) else "OR"', by="tests/golden/test_sql.py::test_no_more_files_are_selected_than_a_good_planner_opens[not_or_payload]"),
    Mutation("NOT is forgotten", READER, "return self.read(node.this, not negated)", "return self.read(node.this, negated)", by="tests/golden/test_sql.py::test_rows_are_those_of_the_unpruned_tables[bool_partition]"),
    Mutation(
        "impure predicates are evaluated",
        READER,
        "return tuple(pieces) if is_pure else None",
        "return tuple(pieces)", by="tests/plan/test_rules.py::test_what_depends_on_more_than_columns_prunes_nothing",
    ),
    Mutation("what DuckDB's parser has otherwise is a tree all the same", READER, "if known is None or known.operator not in _OPERATORS.get(kind, ()):", "if False:", survives="no predicate is known of which both parsers make trees that are understood, and not the same"),
    Mutation("constants are those of the first statement of a shape", READER, "return str(literal.name) if constant is None else constant", "return str(literal.name)", by="tests/plan/test_reader.py::test_statements_of_one_shape_have_trees_of_their_own"),
    Mutation("members of structs are their column", READER, "*(p.name.lower() for p in name_parts(column)[member.parts :]))", ")", by="tests/plan/test_reader.py::test_what_an_atom_says"),
    Mutation("paths go on through expressions", TREE, "if len(found) == 1 and isinstance(found[0], tuple) else None\n\n    return path", "if (found := [p for p in found if isinstance(p, tuple)]) else None\n\n    return path", by="tests/plan/test_reader.py::test_columns_that_are_cast_on_their_way_say_nothing"),
    Mutation("the parsers need not agree", EXTRACT, "if not self._reader.agrees(node):", "if False:", by="tests/plan/test_rules.py::test_what_the_parsers_read_differently_prunes_nothing"),
    # -- equal columns
    Mutation("values are carried over between all types", EXTRACT, '''        if not (self.is_plain(one) and self.is_plain(other)):
            return None
        if one == other:''', '''        if True:''', by="tests/plan/test_rules.py::test_texts_that_a_collation_makes_equal_are_not_the_same"),
    Mutation("pairs of an outer EXISTS are kept under grouping", EXTRACT, 'if scope is None or any(scope.select.args.get(key) for key in ("group", "having", "qualify", "distinct")):', "if scope is None:", by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("aggregates are ignored below EXISTS", EXTRACT, "if any(e.find(exp.AggFunc, exp.Anonymous) for e in scope.select.expressions):", "if False:", by="tests/plan/test_rules.py::test_pruned_and_unpruned_rows_are_the_same"),
    Mutation("all parts of a FULL JOIN's merged column are pruned", EXTRACT, "[c.condition for c in final if c.condition.columns and all(r[0] in parts for r in c.condition.columns)],", "[c.condition for c in final if c.condition.columns and any(r[0] in parts for r in c.condition.columns)],", by="tests/plan/test_extract.py::test_statements"),
    Mutation("a source without rows empties the side that an outer join keeps", EXTRACT, "if s.prunable and at not in nullable and", "if s.prunable and", by="tests/plan/test_needed_files.py::test_files_that_a_join_or_a_column_without_null_leaves"),
    Mutation("aggregates of no row are no row", EXTRACT, "if columns and not any(", "if not any(", by="tests/plan/test_needed_files.py::test_files_that_a_join_or_a_column_without_null_leaves"),
    Mutation("each column is never NULL", "tables/table.py", "return isinstance(rows, Overlay) and column in rows.never_null", "return True", by="tests/plan/test_needed_files.py::test_files_that_a_join_or_a_column_without_null_leaves"),
    Mutation("a lookup forgets what is NULL", DYNAMIC_FILTERS, "if scan is not None and scan.is_empty:", "if True:", by="tests/plan/test_dynamic_filters.py::test_the_files_that_a_small_source_leaves"),
    Mutation("values looked up are cut off", DYNAMIC_FILTERS, 'condition = joined("AND", known) if known else None', 'condition = joined("AND", [*known, Opaque("", ("FALSE",))])', by="tests/plan/test_dynamic_filters.py::test_the_files_that_a_small_source_leaves"),
    # -- structures
    Mutation("OR intersects", PRUNE, "left |= files", "left = files if len(found) == 1 else left & files", by="tests/plan/test_extract.py::test_where"),
    Mutation("OR ignores what cannot be evaluated", PRUNE, "files = self.all_files if files is None else files", "files = frozenset() if files is None else files", survives="an OR with such a part is not evaluated at all, see _can_prune"),
    Mutation("two indices are evaluated as one", "indexes/index.py", "column = next(iter(indexed)) if len(indexed) == 1 and", "column = min(indexed) if indexed and", by="tests/plan/test_extract.py::test_where"),
    Mutation("NULL is in indices", EVALUATOR, "absent = [] if skips_null else [self.null(type_)]", "absent = []", by="tests/plan/test_evaluate.py::test_nan_and_null_stand_in_no_index_and_count_as_possible"),
    Mutation("NaN is in indices", EVALUATOR, "if pa.types.is_floating(type_) and not asked.never_nan:", "if False:", by="tests/plan/test_evaluate.py::test_nan_and_null_stand_in_no_index_and_count_as_possible"),
    Mutation("indices tell the zeros apart", LOOKUPS, "def _with_zeros(query: str, files: str, type_: pa.DataType) -> str:\n", "def _with_zeros(query: str, files: str, type_: pa.DataType) -> str:\n    return query\n\n\ndef _unused(query: str, files: str, type_: pa.DataType) -> str:\n", by="tests/plan/test_evaluate.py::test_the_two_zeros_are_one_value_of_an_index"),
    Mutation("a predicate that fails holds for nothing", EVALUATOR, 'f"coalesce(TRY({predicate}), true)"', 'f"coalesce(TRY({predicate}), false)"', by="tests/plan/test_evaluate.py::test_a_cast_that_fails_while_planning_keeps_the_file_and_fails_in_the_run"),
    Mutation("columns of cubes are never NULL", PRUNE, "never_null = rows.never_null if", "never_null = frozenset(table.indices) if", by="tests/plan/test_prune.py::test_an_index_column_of_a_cube_may_be_null"),
    Mutation("statistics forget NULL", EVALUATOR, '"nulls <> 0"', '"false"', by="tests/engines/test_statistics.py"),
    Mutation("statistics forget NaN", EVALUATOR, "if pa.types.is_floating(type_) and self.rows", "if False and self.rows", by="tests/engines/test_statistics.py"),
    Mutation("statistics of <> are those of =", EVALUATOR, 'f"low <> {constant} OR high <> {constant}"', 'f"low <> {constant} AND high <> {constant}"', by="tests/engines/test_statistics.py"),
    Mutation("statistics: < looks at the largest value", EVALUATOR, "'low' if op.startswith('<') else 'high'", "'high' if op.startswith('<') else 'low'", by="tests/engines/test_statistics.py"),
    Mutation("statistics: all types keep their order", EVALUATOR, "return {type_, other} <= _NUMBERS or {type_, other} <= _MOMENTS", "return True", by="tests/engines/test_statistics.py::test_bounds_say_nothing_where_a_cast_changes_the_order"),
    Mutation("no predicate holds for NULL", TREE, "return not predicate.negated\n", "return False\n", by="tests/plan/test_evaluate.py"),
    # -- less than all rows
    Mutation(
        "a LIMIT counts rows that its condition may drop",
        LIMITS,
        "issubset(table.partition_keys):\n            return frozenset()",
        "issubset(table.partition_keys):\n            return frozenset(part.files)", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read",
    ),
    Mutation("a LIMIT forgets its OFFSET", LIMITS, 'for key in ("limit", "offset")]', 'for key in ("limit",)]', by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("the first rows of a DISTINCT suffice", LIMITS, '_NOT_FIRST = ("distinct", "group",', '_NOT_FIRST = ("group",', by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("the first rows of an ORDER BY suffice", LIMITS, 'first.of_files() if scope.select.args.get("order") is None else first.of_order()', "first.of_files()", by="tests/plan/test_leading_files.py"),
    Mutation("overlaid files are counted", LIMITS, "or scan.parts[0].overlaid:", ":", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    # -- cubes
    Mutation("left joined datasets are pruned by their payload", PRUNE, 'payload = own if seed or draft.join == "inner" else key', "payload = own", by="tests/plan/test_prune.py"),
    Mutation("every condition makes a dataset inner", PRUNE, '''        if self._is_about(condition, payload):
            return rejects_null(''', '''        if self._is_about(condition, payload):
            return True or rejects_null(''', by="tests/plan/test_prune.py"),
    Mutation("files that hide a row are dropped", PRUNE, "        if draft.files != before:", "        if False:", by="tests/plan/test_overlays.py"),
    Mutation(
        "the last row does not win",
        OVERLAYS,
        "        writes = self._writes\n        writes.asked += 1\n",
        "        return frozenset()\n        writes = self._writes\n        writes.asked += 1\n", by="tests/plan/test_overlays.py",
    ),
    Mutation("overlays: ranges that touch are apart", OVERLAYS, "if clusters and low <= end:", "if clusters and low < end:", by="tests/plan/test_overlaps.py"),
    Mutation("overlays: unknown ranges are apart", OVERLAYS, "if any(f not in ranges for f in group):\n        return [list(group)]", "group = [f for f in group if f in ranges]", by="tests/plan/test_overlaps.py"),
    Mutation("overlays: files of one partition are of one write", "plan/overlays.py", "return len(files) > 1 and len(set(map(self._codes.__getitem__, files))) > 1", "return False", by="tests/plan/test_overlays.py"),
    Mutation("datasets that are used are dropped", PRUNE, "or used is None:\n            return True\n        return any(self._occurrence.source.owner.get(column) == part.name for column in used)", ":\n            return True\n        return any(self._occurrence.source.owner.get(column) == part.name for column in used or ())", by="tests/plan/test_prune.py::test_the_row_of_a_cube_as_a_value_has_the_columns_of_all_datasets"),
    Mutation("the seed prunes by left joined datasets", PRUNE, 'if other.join == "inner":', "if True:", by="tests/plan/test_prune.py"),
    Mutation("join pruning: partners need no shared partition", PRUNE, "if not shared:\n        return target.files", "if not shared:\n        return frozenset()", by="tests/plan/test_join_pruning.py::test_files_are_left_out_over_dimensions"),
    # -- looking up in indices
    Mutation("a held index is looked up in its first values", LOOKUPS, "if len(found) < limit:", "if True:", by="tests/engines/test_lookups.py::test_no_file_with_a_match_is_left_out_whatever_files_cost"),
    Mutation("an index file is looked up in its first values", LOOKUPS, "if found[0] < limit:", "if found[0] <= limit:", by="tests/engines/test_lookups.py::test_no_file_with_a_match_is_left_out_whatever_files_cost"),
    Mutation("what is not looked up is left out", LOOKUPS, "return Candidates(self._table.all_files, note)", "return Candidates(self._table.all_files - rest, note)", by="tests/engines/test_lookups.py::test_no_file_with_a_match_is_left_out_whatever_files_cost"),
    Mutation("a sample speaks for the whole index", LOOKUPS, "return self._keep_all(rest) if self._exceeds(price, rest) else self._all_candidates()", "return self._keep_all(rest) if self._exceeds(price, rest) else Candidates(found.union(listed or ()))", by="tests/engines/test_lookups.py::test_no_file_with_a_match_is_left_out_whatever_files_cost"),
    Mutation("indices are looked up at any price", LOOKUPS, "return price > NEGLIGIBLE and price > self._seconds(files)", "return False", by="tests/engines/test_lookups.py::test_no_file_with_a_match_is_left_out_whatever_files_cost"),
    Mutation("binary values are never cut", LOOKUPS, "doubtful = set(self._table.all_files) if isinstance(more, bool) else {row[0] for row in more}", "doubtful = set[int]()", by="tests/plan/test_evaluate.py::test_binary_values_cut_at_a_nul_byte_are_found"),
    Mutation("any predicate may be asked of cut values", LOOKUPS, "if isinstance(found, bool) or not (clean and self._planner.compares(self._asked.predicate)):", "if isinstance(found, bool):", by="tests/plan/test_evaluate.py::test_binary_values_cut_at_a_nul_byte_are_found"),
    Mutation("cut values are compared with such that would be cut", LOOKUPS, 'clean = not any(isinstance(v, bytes) and b"\\0" in v for v in self._asked.parameters.values())', "clean = True", by="tests/plan/test_evaluate.py::test_binary_values_cut_at_a_nul_byte_are_found"),
    Mutation("NULL is in indices, beside partition keys", EVALUATOR, "return Candidates(found.files | files, found.note)", "return Candidates(found.files, found.note)", by="tests/plan/test_evaluate.py::test_nan_and_null_stand_in_no_index_and_count_as_possible"),
    Mutation("values in order belong to any files", SORTED_INDEX, "self.identity = [*about, *map(cache_key, labels)]", "self.identity = about", by="tests/engines/test_lookups.py::test_what_is_kept_belongs_to_one_index_file_and_one_list_of_files"),
    Mutation("values in order belong to any index file", SORTED_INDEX, "*map(str, self._stamp or ())", "", by="tests/engines/test_lookups.py::test_what_is_kept_belongs_to_one_index_file_and_one_list_of_files"),
    Mutation("an index file that changes is kept", SORTED_INDEX, "if is_settled and self._store.stamp(key) == stamp:", "if is_settled:", by="tests/engines/test_lookups.py::test_a_file_that_was_just_written_or_changes_is_not_kept"),
    Mutation("values of an index come in order", "formats/sorted_values.py", "if pc.all(pc.less_equal(values[:-1], values[1:]), min_count=0).as_py():", "if True:", by="tests/formats/test_sorted_values.py"),
    Mutation("a held index is read with one batch's dictionary", SORTED_INDEX, "if codes is None or not labels.dictionary.equals(last):", "if codes is None:", by="tests/engines/test_lookups.py::test_no_file_with_a_match_is_left_out_whatever_files_cost"),
    Mutation("labels without a file are held", SORTED_INDEX, "if unknown or lists.null_count or labels.null_count:", "if False:", by="tests/engines/test_lookups.py::test_unusual_index_files_say_the_same_once_they_are_held"),
    Mutation("text that is none is held", SORTED_INDEX, "values.validate(full=True)", "pass", survives="DuckDB refuses to store such text, and the index is not held then either"),
    Mutation("an index is held before it is whole", LOOKUPS, "return whole or not index.plain", "return True", by="tests/engines/test_lookups.py::test_an_index_is_held_portion_by_portion"),
    Mutation("a value stands once in a held index", LOOKUPS, "if self._session.rows(disorder):", "if False:", by="tests/engines/test_shared_cells.py"),
    Mutation("indices with a collation are held", LOOKUPS, "return pa.types.is_string(type_) and bool(self._session.rows(collation)[0][0])", "return False", by="tests/engines/test_planner_tables.py::test_texts_that_a_collation_takes_for_equal_stay_apart_in_an_index"),
    Mutation("an index is never held", LOOKUPS, "if not self.may_be_held or self.uses < FREE_USES:", "if True:", by="tests/engines/test_planner_tables.py::test_an_index_gives_the_same_answer_before_and_after_it_is_held"),
    # -- statistics
    Mutation("statistics: the ends of a list are outside", EVALUATOR, "lambda e: low <= e AND e <= high", "lambda e: low < e AND e < high", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("statistics: a long list is looked at from one end", EVALUATOR, "low <= list_max({items}) AND high >= list_min({items})", "low <= list_min({items}) AND high >= list_min({items})", by="tests/engines/test_statistics.py"),
    Mutation("statistics: a prefix is compared with whole texts", EVALUATOR, "left(high, {size}) >= {text}", "left(high, {size}) > {text}", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("patterns are prefixes", "predicate/patterns.py", 'elif letter in "%_":', 'elif letter in "%":', by="tests/engines/test_statistics.py"),
    Mutation("a backslash of a pattern is text", FROM_SQL, '(pattern, "", "") if escape is not None else', '(pattern, "", "") if True else', by="tests/predicate/test_from_sql.py"),
    Mutation("NOT BETWEEN is outside of both ends", FROM_SQL, '"OR", ("<", ">")', '"AND", ("<", ">")', by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("a comparison is not turned around", FROM_SQL, "left, op, right = right, _FLIPPED[op], left", "left, right = right, left", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("NOT of a comparison is forgotten", FROM_SQL, "_NEGATED[op] if negated else op", "op", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("what differs from a constant is not NULL", FROM_SQL, "[IsNull(found.path), found]", "[found]", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("an instant without an offset is a time of the clock", FROM_SQL, 'Value("instant" if is_utc else clock, micros)', 'Value("instant" if is_utc else "timestamp", micros)', by="tests/plan/test_clocks.py"),
    Mutation("a day is an instant that clocks show once", FROM_SQL, "return Value(clock, raw * 86_400_000_000)", 'return Value("timestamp", raw * 86_400_000_000)', by="tests/plan/test_clocks.py"),
    Mutation("times of a clock are compared with instants in their own order", "formats/xskipper/domain.py", 'type_.clock is True or type_.family == "date")', 'type_.family == "date")', by="tests/plan/test_clocks.py"),
    Mutation("days are compared with instants in their own order", "formats/xskipper/domain.py", 'type_.clock is True or type_.family == "date")', "type_.clock is True)", by="tests/plan/test_clocks.py"),
    Mutation("a decimal without a fraction is an integer", ENGINE + "types.py", 'f"({text}.)"', 'f"({text})"', by="tests/engines/test_duckdb_types.py"),
    Mutation("statistics: constants need no type in common", EVALUATOR, "if len(set(types)) > 1 and not _INTEGERS.issuperset([type_, *types]):\n            return None", "", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("statistics with a collation count", EVALUATOR, 'or (declared == "VARCHAR" and self.has_collation())', "", by="tests/engines/test_footers.py::test_a_collation_of_the_session_keeps_all_files"),
    Mutation("files without statistics match nothing", STATISTICS, "frozenset(new),", "frozenset(found),", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("a row group without statistics matches nothing", "parquet.py", "return None if None in told else told", "return [g for g in told if g is not None]", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("a file's first row group speaks for all", "parquet.py", "for chunk in chunks]", "for chunk in chunks[:1]]", by="tests/engines/test_statistics.py::test_files_with_a_matching_row_are_never_left_out"),
    Mutation("dictionaries of texts hold what rows have", "formats/parquet_pages.py", "return size <= 1\n", "return True\n", by="tests/formats/test_parquet_pages.py::test_texts_of_a_dictionary_that_no_row_has_are_left_to_arrow"),
    Mutation("plain pages behind a dictionary hold nothing new", "formats/parquet_pages.py", "elif head[5][2] in _BY_NUMBER and size:", "elif size:", by="tests/formats/test_parquet_pages.py::test_values_by_pages_are_those_of_the_rows"),
    # -- row counts and extremes
    Mutation("extremes of floats are exact", LIMITS, "if not pa.types.is_floating(known.type) else None", "", by="tests/plan/test_limit_pushdown.py::test_the_largest_float_may_be_no_number_of_the_statistics"),
    Mutation("bounds that were cut are values", STATISTICS, "if not self.are_exact and not all(compress(self.exact, mask)):", "if False:", by="tests/plan/test_leading_files.py"),
    Mutation("partitions without rows are counted", LIMITS, "for number, count in counts.items() if count}", "for number, count in counts.items()}", by="tests/plan/test_limit_pushdown.py::test_files_without_rows_make_no_groups"),
    Mutation("no files have no count", LIMITS, "coalesce(sum(kartosql_rows), 0)", "sum(kartosql_rows)", by="tests/plan/test_limit_pushdown.py::test_files_without_rows_make_no_groups"),
    Mutation("rows are grouped by what is in no metadata", LIMITS, "elif reading.column(node) not in keys:", "elif reading.column(node) is None:", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("min and max have one argument", LIMITS, 'column is None or any(v for k, v in node.args.items() if k != "this"):', "column is None:", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("DISTINCT ON is DISTINCT", LIMITS, 'if distinct is not None and distinct.args.get("on") is not None:', "if False:", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("GROUP BY ROLLUP is answered from metadata", LIMITS, "exp.Group, exp.Having", "exp.Group, exp.Rollup, exp.Having", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("conditions of queries inside say nothing of counts", LIMITS, "stack += reading.wheres", "", by="tests/plan/test_limit_pushdown.py::test_queries_inside_pass_rows_on"),
    Mutation("a query inside that is read twice stands for its counts", LIMITS, "or len(relation.uses) > 1:", ":", by="tests/plan/test_limit_pushdown.py::test_queries_inside_pass_rows_on"),
    Mutation("what a query inside computes of columns is computed of NULL", LIMITS, "not read <= {*extremes, *keys, *ordered}", "False", survives="the engine computes nothing that nobody asks for; should it once do so, the files are read"),
    Mutation("row counts have a name of their own in a list of columns", LIMITS, """if (alias is not None and alias.args.get("columns")) or not""", "if not", by="tests/plan/test_limit_pushdown.py::test_queries_inside_pass_rows_on"),
    # -- LIMIT
    Mutation("the order of a query inside does not matter for a LIMIT", LIMITS, 'is_ordered = any(s.args.get("order") for s in inner)', "is_ordered = False", by="tests/plan/test_limit_pushdown.py::test_queries_inside_pass_rows_on"),
    Mutation("a LIMIT counts the rows of all files", LIMITS, "found += count if file in sure else 0", "found += count", survives="what is left of files is sure by the same condition, except where that fails, as the statement then does"),
    Mutation("a LIMIT in percent counts rows", LIMITS, 'if any(value for key, value in node.args.items() if key not in ("this", "expression")):\n        return None', "", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("a row becomes one row, whatever is selected", LIMITS, "if any(not isinstance(v, exp.Column) and reader.pieces(v) is None for v in made):", "if False:", by="tests/plan/test_limit_pushdown.py::test_the_files_that_are_read"),
    Mutation("rows that are equal to the last one are not needed", LIMITS, "(value >= end if descending else value <= end)", "(value > end if descending else value < end)", by="tests/plan/test_leading_files.py"),
    Mutation("NULL comes last in any order", LIMITS, "or (nulls_first and nulls)", "", by="tests/plan/test_leading_files.py"),
    Mutation("NaN never comes first", LIMITS, "if descending and pa.types.is_floating(bounds.type):", "if False:", by="tests/plan/test_leading_files.py"),
    Mutation("all rows of floats are numbers", LIMITS, "is_number = not pa.types.is_floating(bounds.type)", "is_number = True", by="tests/plan/test_leading_files.py"),
    Mutation("rows that a condition drops count for the first ones", LIMITS, "if not has_values or file not in sure:", "if not has_values:", by="tests/plan/test_leading_files.py"),
    Mutation("files that tell no bounds hold no first row", LIMITS, "return (files - bounds.complete) | (files & may_lead)", "return files & may_lead", by="tests/plan/test_leading_files.py"),
    # -- cells
    Mutation("binary values and floats are exact in indices", "plan/evaluate.py", "t.is_date32, t.is_timestamp)", "t.is_date32, t.is_timestamp, t.is_binary, t.is_floating)", by="tests/plan/test_join_pruning.py::test_what_an_index_cuts_is_not_looked_up_in_it"),
    Mutation("files with other cells stand beside each other", ALIGNMENT, "coalesce({equal} AND (before", "coalesce(true AND (before", by="tests/engines/test_alignment.py"),
    Mutation("a cell stands once in a file", ALIGNMENT, "IS DISTINCT FROM {FILE} OR {ascends})", "IS DISTINCT FROM {FILE} OR true)", by="tests/engines/test_alignment.py"),
    Mutation("files of one write have no cell in common when they join by position", ALIGNMENT, "if number not in without and len(", "if True or len(", by="tests/engines/test_alignment.py"),
    Mutation("what was found of files is kept whatever becomes of them", ALIGNMENT, "names[f] = repr(tuple(stamp)).encode()", "names[f] = str(f).encode()", by="tests/engines/test_alignment.py"),
    Mutation("files that were written just now do not change", ALIGNMENT, '(b"" if settled else os.urandom(_DIGEST))', 'b""', by="tests/engines/test_alignment.py"),
    Mutation("a value stands in one row of an index file", ENGINE + "shared_cells.py", "if self._repeats(index):", "if False:", by="tests/engines/test_shared_cells.py"),
    Mutation("ranges of one row group are those of the file", STATISTICS, "found[file] = min(least, low), max(most, high)", "found[file] = low, high", by="tests/engines/test_shared_cells.py"),
    Mutation("statistics of files that were written since", KEPT_STATISTICS, "_STAMP.pack(*stamp)", "_STAMP.pack(*stamp[:2], 0, 0, 0)", by="tests/tables/test_kept_statistics.py::test_a_file_that_was_written_anew_is_read_again"),
    Mutation("statistics of files that are being written", KEPT_STATISTICS, "self._settled & bounds.seen", "self._names.keys() & bounds.seen", by="tests/tables/test_kept_statistics.py::test_files_that_were_written_just_now_are_not_kept"),
    Mutation("ranges tell of NULL", STATISTICS, "self.complete.intersection(files) - holding", "self.complete.intersection(files)", by="tests/engines/test_shared_cells.py"),
    Mutation("files that cannot be compared share no cells", ENGINE + "shared_cells.py", "return found is True or bool(found)", "return found is not True and bool(found)", by="tests/plan/test_overlays.py::test_a_later_file_that_cannot_be_read_is_not_left_out"),
    # -- overlays
    Mutation("a file is overlaid only by all its partners", "plan/overlays.py", "if f in partners and not files.isdisjoint(partners[f])", "if f in partners and files.issuperset(partners[f])", by="tests/plan/test_overlays.py::test_an_enrichments_overwritten_rows_stay_overwritten"),
    Mutation("a file name of any kind tells the write", "formats/kartothek/dataset.py", "[at if write is None else number", "[0 if write is None else number", by="tests/plan/test_overlays.py::test_a_condition_never_brings_an_overwritten_row_back"),
    Mutation("a second file of a partition is one of another write", "formats/kartothek/naming.py", "(-[0-9a-f]{16})?", "", by="tests/write/test_rows.py::test_files_of_one_write_are_known_to_hold_different_cells"),
    Mutation("dimensions are never NULL in any cube", OVERLAYS, "if c in checked and c not in keys]", "if c not in keys]", by="tests/plan/test_overlaps.py::test_ranges_and_indices_are_not_trusted_where_dimensions_may_be_null"),
    Mutation("where there are many pairs no file hides another", OVERLAYS, "hiding.update(late)", "pass", by="tests/plan/test_overlaps.py::test_with_too_many_pairs_of_files_all_later_ones_may_hide_rows"),
    Mutation("where there are many files none is overlaid", OVERLAYS, "return frozenset(f for group in groups for f in group)", "return frozenset()", by="tests/plan/test_overlaps.py::test_too_many_pairs_of_files_are_not_looked_at"),
    # -- transfer
    Mutation("what a dimension leaves out hides nothing", PRUNE, "left=n.left | files", "left=n.left", by="tests/plan/test_overlays.py::test_a_condition_never_brings_an_overwritten_row_back"),
    Mutation("looked up values are as many as there may be", EVALUATOR, "if count > limit:", "if False:", by="tests/plan/test_dynamic_filters.py::test_more_values_than_may_be_looked_up_are_no_condition"),
    Mutation("overwritten rows are looked up no more", DYNAMIC_FILTERS, "overlaid=frozenset()", "overlaid=p.overlaid", by="tests/plan/test_rules.py::test_a_lookup_does_not_bring_an_overwritten_row_back"),
    Mutation("skipping indexes of payload columns bring overwritten rows back", "plan/prune.py", "self._narrow(draft, self._conditions, key)", "self._narrow(draft, self._conditions, payload | key)", by="tests/write/test_dataset_skipping.py::test_overlaid_rows_stay_hidden"),
    # -- what is attached
    Mutation("a record that retracts another one is read, whatever its data", "plan/prune.py", "own &= part.rows.stable", "pass", by="tests/sources/test_attach_odf.py::test_a_later_record_counts_though_a_condition_does_not_hold_for_it"),
    Mutation("rows of a state are not those of files", LIMITS, "if isinstance(scan.parts[0].part.rows, Changelog):", "if False:", survives="rows_are_files_rows and whole_files say so, too"),
    Mutation("deleted rows are counted", "plan/scan.py", "return not rows.touched(self.files)", "return True", by="tests/engines/test_deletes.py::test_counts_and_extremes_are_told_of_whole_files_only"),
    Mutation("a LIMIT counts deleted rows", "plan/scan.py", "return files.difference(rows.touched(files))", "return files", by="tests/engines/test_deletes.py::test_a_limit_counts_rows_of_whole_files_only"),
    Mutation("keys delete rows of later files", "engines/base.py", "r.{_SEQUENCE} < k{number}.{_SEQUENCE}", "r.{_SEQUENCE} <> k{number}.{_SEQUENCE}", by="tests/engines/test_deletes.py"),
    Mutation("an indexed column that other engines see otherwise", "indexes/metadata_terms.py", "elif known is not None and (texts or known.family", "elif known is not None and (True or known.family", by="tests/sources/test_attach_metadata.py::test_texts_under_a_collation_are_not_compared_with_metadata"),
    Mutation("members of structs of another table", "indexes/metadata_terms.py", "if of != occurrence or column not in columns:", "if False:", by="tests/sources/test_attach_metadata.py::test_conditions_on_other_tables_say_nothing"),
    Mutation("the case of letters counts in pieces of texts", "formats/xskipper/grams.py", "folded = pc.ascii_lower(values)", "folded = values", by="tests/write/test_text_skipping.py::test_pruned_and_unpruned_answers_agree[dataset]"),
    Mutation("only ASCII letters have a case in pieces of texts", "formats/xskipper/grams.py", "for letter, plain in _FOLDED.items():", "for letter, plain in ():", by="tests/formats/xskipper/test_grams.py::test_what_contains_a_text_has_its_pieces"),
    Mutation("a text that begins with a piece may stand anywhere, and the other way round", "formats/xskipper/grams.py", "content = begins * END + folded + ends * END", "content = END + folded + ends * END", by="tests/write/test_text_skipping.py::test_pruned_and_unpruned_answers_agree[dataset]"),
    Mutation("of several texts each must be there", "formats/xskipper/grams.py", "any(all(_holds(data, a, b, probes(k)[n]) for a, b, k in filters) for n in numbers)", "all(all(_holds(data, a, b, probes(k)[n]) for a, b, k in filters) for n in numbers)", by="tests/write/test_text_skipping.py::test_pruned_and_unpruned_answers_agree[dataset]"),
    Mutation("beginnings are compared with whole texts", "formats/xskipper/kinds.py", "return Among(frozenset(map(cut, test.keys)))", "return test", by="tests/write/test_text_skipping.py::test_texts_with_the_same_beginning_may_match"),
    Mutation("the beginning of a greater text is greater", "formats/xskipper/kinds.py", 'return Range(f"{test.op[0]}=", cut(test.key))', "return Range(test.op, cut(test.key))", by="tests/write/test_text_skipping.py::test_texts_with_the_same_beginning_may_match"),
    Mutation("a beginning tells that a text is another one", "formats/xskipper/kinds.py", """            if isinstance(test, Outside):
                return ANY
""", """            if isinstance(test, Outside):
                return test
""", by="tests/write/test_text_skipping.py::test_texts_with_the_same_beginning_may_match"),
    Mutation("what may be repeated must be there", "predicate/patterns.py", 'run[:-1] if kind == "repeated" else run', "run", by="tests/predicate/test_patterns.py"),
    Mutation("alternatives are not told apart", "predicate/patterns.py", 'or (kind == "either" and not depth)', "", by="tests/predicate/test_patterns.py"),
    Mutation("what stands in groups must be there", "predicate/patterns.py", 'if depth or kind == "close":', 'if kind in ("open", "close"):', by="tests/predicate/test_patterns.py"),
    Mutation("letters of other scripts lose their case as those of ASCII do", "predicate/from_sql.py", "for run in ascii_runs(text)]", "for run in [text]]", by="tests/predicate/test_from_sql.py::test_case_is_known_of_ascii_letters_alone"),
    Mutation("files have to be left out by all kinds of parts", "formats/xskipper/store.py", "if any(p and not any(flags[n] for n in p) for p in ps))", "if all(not p or not any(flags[n] for n in p) for p in ps))", by="tests/write/test_text_skipping.py::test_pruned_and_unpruned_answers_agree[dataset]"),
    Mutation("a column of files is the partition column of its name", "indexes/skipping.py", " if name not in table.partition_keys}", "}", by="tests/sources/test_attach_skipping.py::test_a_column_of_the_files_is_not_the_partition_column_of_its_name"),
    Mutation("texts are the same however they are read", "sources/folder_metadata.py", "elif segment.schema.reading not in (None, self.reading):", "elif False:", by="tests/sources/test_attach_skipping.py::test_csv_read_in_another_way_is_another_table"),
    Mutation("an index tells of files that it has not seen", "formats/segments.py", "left = set(self.unseen)", "left = set()", by="tests/sources/test_attach_indexes.py::test_a_file_that_the_index_has_not_seen_is_read"),
    Mutation("an index tells of files that changed", "formats/segments.py", "return at if now and now == stamp else -1", "return at", by="tests/sources/test_attach_indexes.py::test_a_file_that_changed_is_read"),
    Mutation("a damaged segment has no file", "formats/segments.py", "left.update(places.to_pylist())\n        return", "pass\n        return", by="tests/sources/test_attach_indexes.py::test_what_is_damaged_is_told_and_leaves_out_nothing[page]"),
    Mutation("an index knows columns by their names", "sources/file_indexes.py", 'return [stamp and f"{stamp}-{identity}" for stamp in table.stamps] if identity else table.stamps', "return table.stamps", by="tests/sources/test_lake_indexes.py::test_the_index_of_a_column_is_not_that_of_another_one_with_its_name"),
    # -- plans that are kept
    Mutation("a plan is kept for all parameters", "plan/bind.py", "tuple((n, type(v), repr(v)) for n, v in sorted(given.items()))", "tuple(sorted(given))", by="tests/plan/test_plan_cache.py"),
    Mutation("1, 1.0 and TRUE are one parameter", "plan/bind.py", "tuple((n, type(v), repr(v)) for n, v in sorted(given.items()))", "tuple((n, v) for n, v in sorted(given.items()))", by="tests/plan/test_plan_cache.py"),
    Mutation("a plan is kept for all settings", "plan/bind.py", "return planner, values, tuple(sorted(settings.items()))", "return planner, values, ()", by="tests/plan/test_plan_cache.py"),
    Mutation("a plan is kept when tables change", "plan/bind.py", "if entry is not None and _has_same_tables(entry, tables):", "if entry is not None:", by="tests/plan/test_plan_cache.py"),
    # -- what footers tell
    Mutation("notes of geometries are no part of a schema", "parquet.py", "if GEO in footer else ()", "if not footer else ()", by="tests/parquet/test_footer_reader.py::test_schemas_have_one_number_each"),
    Mutation("files of one size hold the same for Spark", "engines/spark/scan.py", "schemas = self._cache.schemas(table)", "schemas = self._cache.schemas(self)", by="tests/engines/spark/test_spark_shapes.py::test_a_file_written_anew_is_read_anew_with_the_table_that_names_it"),
]  # fmt: skip
