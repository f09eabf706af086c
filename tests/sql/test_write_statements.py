"""Text to the statements that write."""

from __future__ import annotations

import pytest

from kartosql.errors import SqlError
from kartosql.sql import Select, parse
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import Write


def _failure(text: str) -> SqlError:
    with pytest.raises(SqlError) as e:
        parse(text)
    return e.value


def _names(columns: ws.Columns | None) -> list[str] | None:
    return None if columns is None else [c.last for c in columns]


def _query(statement: Write) -> str:
    query = statement.query  # type: ignore[attr-defined]
    assert isinstance(query, Select)
    return query.text.strip()


# -- forms -------------------------------------------------------------------------------------


def test_create_cube_takes_its_clauses_in_any_order():
    text = 'CREATE CUBE c DIMENSIONS (a, "B b") PARTITION BY (p, q) SEED s INDEX (i) AS SELECT 1'
    other = 'create cube c seed s index (i) partition   by (p, q) dimensions (a, "B b") as SELECT 1'
    for statement in map(parse, (text, other)):
        assert isinstance(statement, ws.CreateCube)
        assert (statement.cube.last, statement.seed and statement.seed.last) == ("c", "s")
        assert _names(statement.dimensions) == ["a", "B b"]
        assert _names(statement.partition_by) == ["p", "q"]
        assert _names(statement.index) == ["i"]
        assert not statement.replace
        assert _query(statement) == "SELECT 1"


def test_create_cube_needs_no_seed_and_no_index():
    statement = parse("CREATE OR REPLACE CUBE c DIMENSIONS (a) PARTITION BY (p) AS FROM t;")
    assert isinstance(statement, ws.CreateCube)
    assert (statement.seed, statement.index, statement.replace) == (None, (), True)


@pytest.mark.parametrize(
    ("clauses", "partition_by", "index"),
    [("", None, []), ("PARTITION BY (p)", ["p"], []), ("PARTITION BY ()", [], []), ("INDEX (i)", None, ["i"])],
)
def test_add_dataset_tells_no_partitioning_from_nothing_said(clauses, partition_by, index):
    statement = parse(f"ALTER CUBE c ADD DATASET d {clauses} AS SELECT 1 AS x")
    assert isinstance(statement, ws.AddDataset)
    assert (statement.cube.last, statement.dataset.last) == ("c", "d")
    assert (_names(statement.partition_by), _names(statement.index)) == (partition_by, index)


def test_create_dataset():
    statement = parse("CREATE OR REPLACE DATASET d INDEX (i) PARTITION BY (p) AS (SELECT 1)")
    assert isinstance(statement, ws.CreateDataset)
    assert (_names(statement.partition_by), _names(statement.index), statement.replace) == (["p"], ["i"], True)
    assert _query(statement) == "(SELECT 1)"


@pytest.mark.parametrize(
    ("text", "columns", "query"),
    [
        ("INSERT INTO c.d SELECT 1 AS a", None, "SELECT 1 AS a"),
        ("INSERT INTO c.d BY NAME SELECT 1 AS a", None, "SELECT 1 AS a"),
        ("INSERT INTO c.d BY POSITION SELECT 1", [], "SELECT 1"),
        ("INSERT INTO c.d VALUES (1)", [], "VALUES (1)"),
        ('INSERT INTO c.d (a, "from") VALUES (1, 2)', ["a", "from"], "VALUES (1, 2)"),
        ("INSERT INTO c.d (a) SELECT 1", ["a"], "SELECT 1"),
        ("INSERT INTO c.d (SELECT 1 AS a)", None, "(SELECT 1 AS a)"),
        ("INSERT INTO c.d ((SELECT 1 AS a))", None, "((SELECT 1 AS a))"),
        ("INSERT INTO c.d WITH q AS (SELECT 1 AS a) FROM q", None, "WITH q AS (SELECT 1 AS a) FROM q"),
        ("INSERT INTO c.d FROM t", None, "FROM t"),
    ],
)
def test_insert(text, columns, query):
    statement = parse(text)
    assert isinstance(statement, ws.Insert)
    assert (statement.target.parts, statement.overwrite, statement.partition) == (("c", "d"), False, None)
    assert (_names(statement.columns), _query(statement)) == (columns, query)


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [
        ("", None),
        ("PARTITION (p, q)", [("p", None), ("q", None)]),
        ("PARTITION (p = 1, q)", [("p", 1), ("q", None)]),
        ("PARTITION (p = -1, q = 2.5)", [("p", -1), ("q", 2.5)]),
        ("PARTITION (p = 'it''s', q = DATE '2020-01-01')", [("p", "it's"), ("q", "2020-01-01")]),
        ("PARTITION (p = TRUE)", [("p", True)]),
    ],
)
def test_insert_overwrite_with_and_without_partition(partition, wanted):
    statement = parse(f"INSERT OVERWRITE c.d {partition} SELECT 1")
    assert isinstance(statement, ws.Insert)
    assert statement.overwrite
    found = statement.partition and [(name.last, value) for name, value in statement.partition]
    assert found == wanted


@pytest.mark.parametrize(("clause", "datasets"), [("", None), ("DATASETS (a, b)", ["a", "b"])])
def test_delete_keeps_every_character_of_its_condition_in_place(clause, datasets):
    text = f"DELETE FROM c {clause}\n WHERE p = $p AND q IN ('x', 'y')"
    statement = parse(text)
    assert isinstance(statement, ws.Delete)
    assert _names(statement.datasets) == datasets
    condition = "p = $p AND q IN ('x', 'y')"
    assert statement.query.text.index(condition) == text.index(condition)
    assert statement.query.text.split() == f"FROM c WHERE {condition}".split()
    assert statement.query.text.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("DROP CUBE c", ("cube", "c", False)),
        ("DROP CUBE IF EXISTS c", ("cube", "c", True)),
        ("DROP DATASET c.d", ("dataset", "c.d", False)),
        ('drop dataset if exists "c++d"', ("dataset", "c++d", True)),
    ],
)
def test_drop(text, wanted):
    statement = parse(text)
    assert isinstance(statement, ws.Drop)
    named = ".".join(statement.target.parts)
    assert (statement.kind, named, statement.if_exists) == wanted
    assert text[slice(*statement.target.span)].strip('"') == named


@pytest.mark.parametrize(("word", "drop"), [("CREATE", False), ("DROP", True)])
def test_indices(word, drop):
    statement = parse(f"{word} INDEX ON c.d (a, b)")
    assert isinstance(statement, ws.ChangeIndex)
    assert statement.drop is drop
    assert (statement.target.parts, _names(statement.columns)) == (("c", "d"), ["a", "b"])


@pytest.mark.parametrize(("text", "name"), [("", None), ("AS n", "n")])
def test_copy_cube(text, name):
    statement = parse(f"COPY CUBE c TO 's3://bucket/store' {text}")
    assert isinstance(statement, ws.Copy)
    assert statement.is_cube
    assert (statement.target.last, statement.url) == ("c", "s3://bucket/store")
    assert (statement.new_name and statement.new_name.last) == name


@pytest.mark.parametrize(
    ("text", "full", "repair"),
    [
        ("CHECK c", False, False),
        ("CHECK c FULL", True, False),
        ("CHECK c REPAIR", False, True),
        ("CHECK c FULL REPAIR", True, True),
        ("check c repair full", True, True),
    ],
)
def test_check(text, full, repair):
    statement = parse(text)
    assert isinstance(statement, ws.Check)
    assert (statement.target.last, statement.full, statement.repair) == ("c", full, repair)


def test_compact_and_cleanup():
    compact, cleanup, dry = map(parse, ("COMPACT c.d", "CLEANUP c", "CLEANUP c DRY RUN"))
    assert isinstance(compact, ws.Compact)
    assert compact.target.parts == ("c", "d")
    assert isinstance(cleanup, ws.Cleanup)
    assert isinstance(dry, ws.Cleanup)
    assert (cleanup.dry_run, dry.dry_run) == (False, True)


# -- queries inside ----------------------------------------------------------------------------


def test_parameters_of_the_query_are_read_as_those_of_a_select():
    statement = parse("INSERT INTO c.d SELECT x FROM t WHERE x = :x")
    assert "$x" in _query(statement)


def test_places_in_the_query_are_those_in_the_statement():
    text = "INSERT INTO c.d SELECT * FROM read_csv('x')"
    error = _failure(text)
    assert (error.code, error.sql) == ("function-not-allowed", text)
    assert error.span is not None
    assert text[slice(*error.span)] == "read_csv"


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO c.d WITH q AS (DELETE FROM t RETURNING *) FROM q",
        "INSERT INTO c.d (a) (INSERT INTO t VALUES (1) RETURNING a)",
        "CREATE DATASET d AS SELECT * FROM (COPY t TO 'x')",
        "ALTER CUBE c ADD DATASET d AS WITH q AS (CREATE TABLE t AS SELECT 1) FROM q",
        "CREATE CUBE c DIMENSIONS (a) PARTITION BY (p) AS SELECT 1 INTO t",
    ],
)
def test_a_query_inside_changes_nothing(text):
    assert _failure(text).code in ("not-allowed", "syntax-error")


def test_another_statement_behind_it_is_refused():
    error = _failure("DELETE FROM c WHERE p = 1; DROP CUBE c")
    assert (error.code, error.span) == ("several-statements", (25, 26))


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("CREATE CUBE c AS SELECT 1", "c", "no DIMENSIONS"),
        ("CREATE CUBE c DIMENSIONS (a) AS SELECT 1", "c", "no PARTITION BY"),
        ("CREATE CUBE c DIMENSIONS () PARTITION BY (p) AS SELECT 1", "(", "At least one column"),
        ("CREATE CUBE c DIMENSIONS (a, a) PARTITION BY (p) AS SELECT 1", "a", "twice"),
        ("CREATE CUBE c DIMENSIONS (a PARTITION BY (p) AS SELECT 1", "PARTITION BY", "Expected , or )"),
        ("CREATE CUBE c DIMENSIONS (a) DIMENSIONS (b) AS SELECT 1", "DIMENSIONS", "each of them once"),
        ("CREATE CUBE c.d DIMENSIONS (a) PARTITION BY (p) AS SELECT 1", "c.d", "without dots"),
        ("CREATE DATASET d AS VACUUM", "VACUUM", "Expected a query"),
        ("ALTER CUBE c DROP DATASET d", "DROP", "Expected ADD DATASET"),
        ("INSERT INTO c.d", "", "Expected a query"),
        ("INSERT INTO c.d () SELECT 1", "(", "At least one column"),
        ("INSERT OVERWRITE c.d PARTITION (p = NULL) SELECT 1", "NULL", "Expected a number"),
        ("INSERT OVERWRITE c.d PARTITION (p = - 'a') SELECT 1", "'a'", "Expected a number"),
        ("DELETE FROM c", "", "Expected WHERE"),
        ("DELETE FROM c d e WHERE p = 1", "e", "Expected WHERE"),
        ("DELETE FROM c USING d WHERE p = 1", "USING", "Expected WHERE"),
        ("UPDATE c d e SET p = 1 WHERE p = 2", "e", "Expected SET"),
        ("UPDATE c SET p = 1", "", "Expected WHERE"),
        ("DELETE FROM c DATASETS () WHERE p = 1", "(", "At least one dataset"),
        ("COPY CUBE c DATASETS () TO 'x'", "(", "At least one dataset"),
        ("DELETE FROM 'c' WHERE p = 1", "'c'", "not a text"),
        ("DROP CUBE", "", "Expected a name"),
        ("DROP INDEX c (a)", "c", "Expected ON"),
        ("COPY CUBE c", "", "Expected TO"),
        ("COPY CUBE c TO d", "d", "Expected the URL"),
        ("COMPACT c d", "d", "Unexpected 'd'"),
        ("CLEANUP c DRY", "DRY", "Unexpected 'DRY'"),
        ("CHECK c FULL FULL", "FULL", "Unexpected 'FULL'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text, at, message):
    error = _failure(text)
    assert error.code == "syntax-error"
    assert message in error.message
    assert error.hint
    assert error.span is not None
    assert text[slice(*error.span)] == at


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CREATE CUBES c", "CREATE CUBE"),
        ("CREATE DATSET c", "CREATE DATASET"),
        ("DROP INDX ON c (a)", "DROP INDEX"),
        ("INSERT OVERWRIT c SELECT 1", "INSERT OVERWRITE"),
        ("DELTE FROM c WHERE p = 1", "DELETE"),
        ("CLEANP c", "CLEANUP"),
    ],
)
def test_typing_errors_get_a_suggestion(text, hint):
    error = _failure(text)
    assert error.code == "syntax-error"
    assert f"Did you mean {hint}?" in str(error.hint)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("CREATE TABLE t (a INT)", "Did you mean CREATE DATASET?"),
        ("CREATE OR REPLACE INDEX ON c (a)", "CREATE CUBE"),
        ("DROP TABLE c", "DROP DATASET"),
        ("ALTER TABLE c ADD COLUMN x INT", "ALTER CUBE"),
        ("COPY c TO 'x'", "COPY CUBE"),
        ("COPY (SELECT 1) TO 'x'", "COPY CUBE"),
        ("COPY (SELECT 1) TO 'x'", "kartosql -o FILE"),
        ("COPY TABLE t TO 'x'", "Did you mean COPY DATASET?"),
        ("INSERT OR REPLACE INTO c VALUES (1)", "INSERT INTO"),
        ('CREATE "CUBE" c DIMENSIONS (a) PARTITION BY (p) AS SELECT 1', "CREATE CUBE"),
    ],
)
def test_statements_of_other_databases_say_what_there_is(text, form):
    error = _failure(text)
    assert error.code == "not-supported"
    assert form in str(error.hint)
    assert error.span is not None
    assert text[slice(*error.span)] == text.split()[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("DELETE FROM c WHERE p = 1 ORDER BY p", "syntax-error"),
        ("DELETE FROM c WHERE p = 1 LIMIT 1", "syntax-error"),
        ("DELETE FROM c WHERE p = 1 GROUP BY ALL", "syntax-error"),
        ("DELETE FROM c WHERE p = 1 USING SAMPLE 1", "syntax-error"),
        ("DELETE FROM c WHERE p = 1 UNION SELECT 1", "syntax-error"),
        ("DELETE FROM c WHERE p = 1, d", "syntax-error"),
        ("DELETE FROM c WHERE p = 1 QUALIFY true", "syntax-error"),
    ],
)
def test_a_delete_has_one_condition(text, code):
    error = _failure(text)
    assert (error.code, error.sql) == (code, text)


@pytest.mark.parametrize("name", ["create", "insert", "delete", "drop", "copy", "check", "cleanup", "compact", "alter"])
def test_the_words_are_still_names_in_queries(name):
    statement = parse(f'SELECT "{name}" FROM "{name}"')
    assert isinstance(statement, Select)
    assert statement.tree is not None
