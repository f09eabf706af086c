"""Which functions a query may call, judged twice: from its tokens and tree, and from DuckDB's own parse."""

from __future__ import annotations

import duckdb
import pytest

from kartosql.errors import SqlError
from kartosql.sql import parse
from kartosql.sql.statement_policy import TABLE_FUNCTIONS, check_parsed, is_refused, words
from kartosql.sql.tree import CONSTANTS, LONG_LIST, cleaned, tokens_of

pytestmark = pytest.mark.usefixtures("no_collection")  # some statements are as deep as may be


@pytest.fixture(scope="module")
def engine():
    with duckdb.connect() as connection:
        yield connection


def _judge(engine, sql: str) -> set[tuple[str, ...]]:
    return check_parsed(engine.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()[0], sql)


# -- the engine's functions ----------------------------------------------------------------------

# A new DuckDB brings new functions: those that depend on more than their arguments are judged here.
ALLOWED_NOT_CONSISTENT = words(
    "current_database current_date current_schema current_schemas error gen_random_uuid get_current_time",
    "get_current_timestamp now random today transaction_timestamp uuid uuidv4 uuidv7",
)
CLOCKS = words("current_localtime current_localtimestamp")  # which DuckDB 2.0.0 calls consistent
REFUSED_CONSISTENT = {"index_key", "json_serialize_plan"}


def _functions(engine, where: str) -> set[str]:
    sql = f"SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE {where}"
    return {name for (name,) in engine.execute(sql).fetchall()}


def test_every_function_that_computes_from_its_arguments_is_allowed(engine):
    names = _functions(engine, "function_type IN ('scalar', 'aggregate', 'window') AND stability = 'CONSISTENT'")
    assert len(names) > 800
    assert {n for n in names if is_refused(n) and not n.startswith("__")} == REFUSED_CONSISTENT


def test_a_function_that_depends_on_more_is_allowed_by_name_only(engine):
    names = _functions(engine, "function_type = 'scalar' AND stability <> 'CONSISTENT'")
    consistent = _functions(engine, "function_type = 'scalar' AND stability = 'CONSISTENT'")
    assert {n for n in names - consistent if not is_refused(n)} - CLOCKS == ALLOWED_NOT_CONSISTENT


def test_few_table_functions_are_allowed(engine):
    names = _functions(engine, "function_type IN ('table', 'table_macro', 'pragma')")
    assert {n for n in names if n in TABLE_FUNCTIONS} == words(
        "generate_series icu_calendar_names json_each json_tree pg_timezone_names range repeat repeat_row unnest"
    )


def test_no_macro_reaches_what_is_refused(engine):
    rows = engine.execute(
        "SELECT lower(function_name), lower(macro_definition) FROM duckdb_functions() WHERE function_type = 'macro'"
    ).fetchall()
    assert len(rows) > 100
    for name, definition in rows:
        if not is_refused(name):
            judged = _judge(engine, f"SELECT {definition}")
            assert judged == set(), name


# -- judged twice --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT getvariable('a')", "function-not-allowed"),
        ("SELECT system.main.getvariable('a')", "function-not-allowed"),
        ("SELECT 'a'.getvariable()", "function-not-allowed"),
        ("FROM glob('*')", "function-not-allowed"),
        ("FROM summary((SELECT 1))", "function-not-allowed"),
        ("FROM test_all_types()", "function-not-allowed"),
        ("SELECT x FROM t, LATERAL duckdb_views()", "function-not-allowed"),
        ("SELECT (SELECT max(content) FROM read_text('x'))", "function-not-allowed"),
        ("WITH a AS (DELETE FROM t RETURNING *) FROM a", "not-allowed"),
        ("WITH a AS (INSERT INTO t VALUES (1) RETURNING *) FROM a", "not-allowed"),
        ("WITH a AS (UPDATE t SET x = 1 RETURNING *) FROM a", "not-allowed"),
        ("WITH a AS (COPY t TO 'x') FROM a", "not-allowed"),
        ("WITH a AS (COPY (SELECT 1) TO 'x') FROM a", "not-allowed"),
        ("FROM (SHOW ALL TABLES)", "not-allowed"),
    ],
)
def test_both_judges_refuse(engine, sql, code):
    for refuse in (parse, lambda text: _judge(engine, text)):
        with pytest.raises(SqlError) as e:
            refuse(sql)
        assert e.value.code == code


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("FROM a.b, c", {("a", "b"), ("c",)}),
        ("WITH c AS (FROM d) FROM c", {("d",)}),
        ("WITH c AS (FROM c) FROM c", {("c",)}),
        ("WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x FROM c) FROM c", set()),
        ("WITH a AS (FROM b), b AS (SELECT 1) FROM a", {("b",)}),
        ("FROM t, (WITH t AS (SELECT 1) FROM t)", {("t",)}),
        ("WITH T AS (SELECT 1) SELECT (SELECT count(*) FROM t), (WITH u AS (SELECT 1) SELECT 1 FROM U)", set()),
        ("FROM (DESCRIBE t)", {("t",)}),
        ("SELECT * FROM x PIVOT (count(*) FOR p IN (1)), range(3), unnest([1])", {("x",)}),
    ],
)
def test_the_second_judge_finds_the_tables(engine, sql, tables):
    assert _judge(engine, sql) == tables


def test_the_second_judge_refuses_what_is_too_deep_for_it(engine):
    ((document,),) = engine.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()
    deep = 200_000  # more than any Python reads
    document = document.replace('"modifiers":[]', f'"modifiers":{"[" * deep}{"]" * deep}', 1)
    with pytest.raises(SqlError) as e:
        check_parsed(document, "SELECT 1")
    assert e.value.code == "statement-too-deep"


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fits", "too_deep"),
    [
        ("SELECT " + "(" * 99 + "1" + ")" * 99, "SELECT " + "(" * 100 + "1" + ")" * 100),
        ("SELECT 1" + "+1" * 250, "SELECT 1" + "+1" * 251),
        ("SELECT 1" + " UNION SELECT 1" * 1000, "SELECT 1" + " UNION SELECT 1" * 1001),
        (
            "SELECT " + "list_transform([1], lambda v: " * 8 + "1" + ")" * 8,
            "SELECT " + "list_transform([1], lambda v: " * 9 + "1" + ")" * 9,
        ),
    ],
)
def test_nesting_has_a_limit(fits, too_deep):
    parse(fits)
    with pytest.raises(SqlError) as e:
        parse(too_deep)
    assert e.value.code == "statement-too-deep"
    assert e.value.span is not None


def test_siblings_are_not_nested():
    parse("SELECT " + ", ".join(["list_transform([1], lambda v: v + 1)"] * 300))
    parse("SELECT " + " AND ".join(["x + 1 = 2 * y"] * 300))


# -- tokens --------------------------------------------------------------------------------------


def test_a_long_list_is_one_token_and_keeps_its_place():
    values = ", ".join(["1", "-2.5", "'it''s'", "', ('"] * LONG_LIST)
    sql = f"SELECT '(' FROM t WHERE x IN ({values}) AND y = 'z'"
    tokens = tokens_of(sql)
    (held,) = [t for t in tokens if t.token_type == CONSTANTS]
    assert held.text == sql[held.start : held.end + 1] == values
    assert [t.text for t in tokens[-4:]] == ["AND", "y", "=", "z"]
    condition = parse(sql).tree.args["where"].this.this
    assert condition.sql("duckdb") == f"x IN ({values})"


@pytest.mark.parametrize("quoted", ["'{}'", '"{}"', "-- {}\n", "/* {} */", "$$ {} $$", "e'\\'{}'"])
def test_a_list_inside_of_a_quotation_is_none(quoted):
    text = f"x IN ({','.join(['1'] * LONG_LIST)})"
    assert not [t for t in tokens_of(f"SELECT 1 {quoted.format(text)}") if t.token_type == CONSTANTS]


@pytest.mark.parametrize("item", ["y", "f(1)", "1 + 1", "NULL", "?", "1::INT"])
def test_a_list_with_anything_but_constants_is_read_as_it_stands(item):
    sql = f"SELECT 1 FROM t WHERE x IN ({','.join(['1'] * LONG_LIST)}, {item})"
    assert len(parse(sql).tree.args["where"].this.expressions) == LONG_LIST + 1


def test_the_engine_reads_spaces_for_comments():
    sql = "SELECT /* /* a */ b */ 1 -- c\r\n, '--d' /* e\n */"
    text, _ = cleaned(sql, tokens_of(sql))
    assert text == "SELECT                 1     \r\n, '--d'     \n   "
    assert len(text) == len(sql)


def test_a_doubled_quote_behind_a_parameter_keeps_places():
    sql = "SELECT $12, $name FROM t WHERE s = '' AND r = 'it''s' AND u = $$'$$"
    assert [sql[t.start : t.end + 1] for t in tokens_of(sql)][:6] == ["SELECT", "$", "12", ",", "$", "name"]
    assert tokens_of(sql)[-1].text == "'"
