"""Text to statement."""

from __future__ import annotations

import pytest
from sqlglot import exp

from kartosql.errors import KartosqlError, SqlError
from kartosql.sql import Describe, Explain, Reset, Select, Set, Show, parse, split_statements
from kartosql.sql.tree import placeholders, span_of

pytestmark = pytest.mark.usefixtures("no_collection")  # some statements are as deep as may be


def _failure(text: str) -> SqlError:
    with pytest.raises(SqlError) as e:
        parse(text)
    return e.value


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "select 1",
        "FROM c",
        "TABLE c",
        "VALUES (1)",
        "(SELECT 1)",
        "WITH a AS (SELECT 1) FROM a",
        "PIVOT c ON p USING count(*)",
        "UNPIVOT c ON p",
        "SUMMARIZE c",
        "SELECT 1 UNION SELECT 2",
        "-- note\nSELECT 1",
    ],
)
def test_queries_of_every_kind_become_a_select_with_their_text(text):
    statement = parse(f"{text} ; ")
    assert isinstance(statement, Select)
    assert statement.text.endswith(text.rpartition("\n")[2])
    assert statement.tree is not None


def test_what_only_the_engine_can_read_becomes_a_select_without_a_tree():
    assert parse("SELECT x FROM c WHERE (((") == Select("SELECT x FROM c WHERE (((", None)


def test_nesting_beyond_the_parsers_stack_becomes_a_select_without_a_tree():
    text = "SELECT " + "(" * 98 + "1" + ")" * 98
    assert parse(text) == Select(text, None)


@pytest.mark.parametrize(
    ("text", "what", "target"),
    [
        ("SHOW CUBES", "cubes", None),
        ("show tables;", "tables", None),
        ("SHOW DATASETS", "datasets", None),
        ("SHOW DATASETS FROM c", "datasets", ("c",)),
        ("SHOW PARTITIONS FROM c.d", "partitions", ("c", "d")),
        ('SHOW INDEXES IN "a b"', "indexes", ("a b",)),
        ('SHOW FILES OF "pre""fix++d".t', "files", ('pre"fix++d', "t")),
        ("SHOW STATS FROM c", "stats", ("c",)),
        ("SHOW SETTINGS", "settings", None),
    ],
)
def test_show(text, what, target):
    statement = parse(text)
    assert isinstance(statement, Show)
    assert (statement.what, statement.target) == (what, target)


def test_the_place_of_a_target_is_known():
    statement = parse('SHOW FILES FROM  "a b".c')
    assert isinstance(statement, Show)
    assert statement.text[slice(*statement.span)] == '"a b".c'


@pytest.mark.parametrize("text", ["DESCRIBE c.d", "DESC c.d", "DESCRIBE TABLE c.d"])
def test_describe_takes_a_table(text):
    statement = parse(text)
    assert isinstance(statement, Describe)
    assert (statement.target, statement.query) == (("c", "d"), None)


def test_describe_takes_a_query():
    statement = parse("DESCRIBE SELECT x FROM c;")
    assert isinstance(statement, Describe)
    assert statement.target is None
    assert statement.query.text == "SELECT x FROM c"


@pytest.mark.parametrize(
    ("text", "analyze", "format_"),
    [
        ("EXPLAIN SELECT 1", False, "text"),
        ("EXPLAIN ANALYZE SELECT 1", True, "text"),
        ("explain (analyze) SELECT 1", True, "text"),
        ("EXPLAIN (FORMAT JSON) SELECT 1", False, "json"),
        ("EXPLAIN (FORMAT TEXT, ANALYZE) SELECT 1", True, "text"),
        ("EXPLAIN ANALYZE (FORMAT JSON) SELECT 1", True, "json"),
    ],
)
def test_explain(text, analyze, format_):
    statement = parse(text)
    assert isinstance(statement, Explain)
    assert (statement.query.text, statement.kind == "analyze", statement.format) == ("SELECT 1", analyze, format_)


def test_explain_of_a_query_in_parentheses_is_no_option_list():
    statement = parse("EXPLAIN (SELECT 1)")
    assert isinstance(statement, Explain)
    assert statement.query.text == "(SELECT 1)"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("SET threads = 4", "threads", 4),
        ("SET SESSION timeout TO 1.5", "timeout", 1.5),
        ("SET TimeZone = 'Europe/Berlin'", "TimeZone", "Europe/Berlin"),
        ("SET TIME ZONE 'UTC'", "TimeZone", "UTC"),
        ("SET max_bytes = '2GiB'", "max_bytes", "2GiB"),
        ("SET max_bytes = NULL", "max_bytes", None),
        ("SET max_bytes = DEFAULT", "max_bytes", None),
        ("SET default_collation = nocase", "default_collation", "nocase"),
    ],
)
def test_set(text, name, value):
    statement = parse(text)
    assert isinstance(statement, Set)
    assert (statement.name, statement.value) == (name, value)


def test_reset():
    assert parse("RESET TimeZone") == Reset("RESET TimeZone", "TimeZone")


@pytest.mark.parametrize("text", ["", "  \n", ";", ";;", "-- nothing", "/* nothing */;"])
def test_no_statement_is_an_error(text):
    assert _failure(text).code == "empty-statement"


def test_a_second_statement_is_an_error_at_its_semicolon():
    error = _failure("SELECT 1;\nSELECT 2")
    assert (error.code, error.span) == ("several-statements", (8, 9))


@pytest.mark.parametrize(
    "text",
    [
        "COPY c TO 'x'",
        "CREATE TABLE t (a INT)",
        "PRAGMA version",
        "INSTALL httpfs",
        "DROP TABLE c",
        "UPSERT c SET x = 1",
        "CALL f()",
        "BEGIN",
        "USE c",
    ],
)
def test_statements_that_do_not_exist_say_what_does(text):
    error = _failure(text)
    assert error.code == "not-supported"
    assert "SELECT" in error.hint
    assert text[slice(*error.span)] == text.split()[0]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SELCT 1", "SELECT"),
        ("DESCRBE c", "DESCRIBE"),
        ("SHOW CUBS", "SHOW CUBES"),
        ("SHOW PARTITION FROM c", "SHOW PARTITIONS"),
    ],
)
def test_typing_errors_get_a_suggestion(text, hint):
    error = _failure(text)
    assert error.code == "syntax-error"
    assert f"Did you mean {hint}?" in error.hint


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SHOW", 4),
        ("SHOW PARTITIONS", 15),
        ("SHOW FILES FROM", 15),
        ("SHOW CUBES now", 11),
        ("DESCRIBE", 8),
        ("DESCRIBE c d", 11),
        ("DESCRIBE c.", 11),
        ("EXPLAIN", 7),
        ("EXPLAIN SHOW CUBES", 8),
        ("EXPLAIN COPY c TO 'x'", 8),
        ("EXPLAIN (FORMAT XML) SELECT 1", 9),
        ("EXPLAIN (FORMAT", 9),
        ("SET threads 4", 12),
        ("SET threads =", 13),
        ("SET TIME 'UTC'", 9),
        ("RESET", 5),
        ("RESET a b", 8),
        ("SELECT 1 \0", 9),
    ],
)
def test_syntax_errors_point_at_their_place(text, place):
    error = _failure(text)
    assert error.code == "syntax-error"
    assert error.span is not None
    assert error.span[0] == place


@pytest.mark.parametrize("text", ["SELECT 'abc", 'SELECT "abc', "SELECT /* abc", "SELECT $$abc"])
def test_what_never_ends_is_a_syntax_error(text):
    with pytest.raises(KartosqlError) as e:
        split_statements(text)
    assert e.value.code == "syntax-error"


def test_a_statement_has_a_longest_length():
    assert _failure("SELECT " + "1" * 1_000_000).code == "statement-too-long"


@pytest.mark.parametrize("text", [None, b"SELECT 1", 5])
def test_what_is_no_text_is_refused(text):
    assert _failure(text).code == "invalid-argument"


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        (" SELECT ';' ; ", ["SELECT ';'"]),
        ('SELECT ";" -- ; \n; FROM c /* ; */', ['SELECT ";" -- ;', "FROM c /* ; */"]),
        ("SELECT $$;$$;;", ["SELECT $$;$$"]),
        ("SELECT 'it''s;' ;SHOW CUBES", ["SELECT 'it''s;'", "SHOW CUBES"]),
        ("", []),
        ("-- only a comment\n;", []),
    ],
)
def test_scripts_are_split_at_semicolons_outside_of_strings_and_comments(text, statements):
    assert split_statements(text) == statements


# -- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "predicate",
    [
        "x = 1",
        "x  BETWEEN 1 AND 2",
        "NOT (x = 1 )",
        "x IN (1, 'é')",
        "(x = 1)",
        "x IS NOT NULL",
        "lower( s1 ) LIKE 'a%'",
    ],
)
def test_conditions_know_the_characters_they_were_read_from(predicate):
    text = f"SELECT 'ä', x FROM c WHERE {predicate} AND y = 'z'"
    tree = parse(text).tree
    condition = tree.args["where"].this
    assert text[slice(*span_of(condition))] == f"{predicate} AND y = 'z'"
    assert text[slice(*span_of(condition.this))] == predicate
    assert text[slice(*span_of(condition.expression))] == "y = 'z'"


def test_names_know_the_characters_they_were_read_from():
    text = 'SELECT c . "x y" FROM "a""b".c'
    tree = parse(text).tree
    column, table = tree.find(exp.Column), tree.find(exp.Table)
    assert text[slice(*span_of(column))] == 'c . "x y"'
    assert text[slice(*span_of(table))] == '"a""b".c'


def test_parameters_are_found_with_name_and_place():
    text = "SELECT ?, $1, $name, :other, '?', \"$2\", $$ ? $$ -- ? $3\nFROM c"
    found = {text[slice(*span)]: name for name, span in placeholders(parse(text).tree)}
    assert found == {"?": None, "$1": "1", "$name": "name", ":other": "other"}


def test_a_named_parameter_behind_a_dollar_is_a_syntax_error():
    with pytest.raises(SqlError) as caught:
        parse("SELECT 1; $:a, :b")
    assert caught.value.code == "syntax-error"


@pytest.mark.parametrize("text", ["a = %s", "a IN (1, %s)", "a LIKE %(x)s", "a BETWEEN 1 AND %d", "a > 1 LIMIT %s"])
@pytest.mark.parametrize("begin", ["SELECT * FROM t WHERE ", "EXPLAIN SELECT * FROM t WHERE ", "DELETE FROM t WHERE "])
def test_the_marks_of_other_drivers_are_no_parameters(begin, text):
    with pytest.raises(SqlError) as caught:
        parse(begin + text)
    error = caught.value
    assert error.code == "invalid-parameters"
    assert error.sql[slice(*error.span)] in ("%s", "%d", "%(x)s")
    assert error.hint == "Write ? and hand over a list, or $name and a dictionary."


@pytest.mark.parametrize("text", ["a %s", "3 %s", "(a) %s", "a[1] %d", "'%s'", "CASE WHEN a THEN 1 END %s", '"="%s'])
def test_a_remainder_is_no_mark(text):
    assert isinstance(parse(f"SELECT {text} FROM t"), Select)
