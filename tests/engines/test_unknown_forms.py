"""What another release of DuckDB may write otherwise: plans, parse trees and profiles in forms that are not known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import kartosql
from kartosql.engines.duckdb import statement
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.profile import DuckProfile
from kartosql.engines.duckdb.statement import EngineSession
from kartosql.engines.spark.translate import translate
from kartosql.errors import NotPortable, SqlError
from kartosql.sql.statement_policy import check_parsed
from kartosql.store import Store
from written import write_dataset

# -- plans, which Spark follows -----------------------------------------------------------------------


def _fold(expressions: Sequence[str]) -> list[Any]:
    return list(duckdb.sql(f"SELECT {', '.join(expressions)}").fetchall()[0])


def _plan(sql: str, edit: Callable[[str], str] = str) -> Any:
    asked = "SELECT json_serialize_plan(?, skip_default := true, optimize := false)"
    ((document,),) = duckdb.execute(asked, [sql]).fetchall()
    return json.loads(edit(document))["plans"][0]


def _translated(plan: Any) -> str:
    return translate(plan, {}, _fold, is_volatile={"random"}.__contains__).sql


@pytest.mark.parametrize(
    ("condition", "signs"),
    [
        ("i + 1 BETWEEN 2 AND 3", (">=", "<=")),
        ("i + 1 NOT BETWEEN 2 AND 3", (">=", "<=", "NOT")),
        ("i BETWEEN 1 AND 2", (">=", "<=")),
        ("2 BETWEEN 1 AND 3", ("true",)),
        ("i = CASE WHEN 2 BETWEEN 3 AND 4 THEN 1 ELSE 2 END", ("'2'",)),
    ],
)
def test_between_is_what_it_stands_for(condition, signs):
    text = _translated(_plan(f"SELECT i FROM range(5) t(i) WHERE {condition}"))
    assert "between" not in text.lower()
    assert all(sign in text for sign in signs), text


BETWEEN = {"lower_inclusive": True, "upper_inclusive": True}


def _between(data: Any) -> Any:
    """Return a plan with a BETWEEN as DuckDB 2.0.1 writes it, whichever release is here."""
    plan = _plan("SELECT i + 1 >= 2 FROM range(5) t(i)")
    (compared,) = plan["expressions"]
    value, bound = compared["children"]
    compared |= {"type": "COMPARE_BETWEEN", "qname": {"path": ["__between"]}, "children": [value, bound, bound]}
    compared["function_data"] = data
    return plan


def test_a_between_with_other_bounds_is_not_taken_for_one():
    assert ">=" in _translated(_between(BETWEEN))
    for data in (None, {}, {**BETWEEN, "lower_inclusive": False}, {"lower_inclusive": True}):
        with pytest.raises(NotPortable):
            _translated(_between(data))


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ('"+"', '"__unheard_of"'),
        ('"children"', '"inputs"'),
        ('"qname"', '"name"'),
        ('"path"', '"parts"'),
        ('"return_type"', '"type_of_result"'),
        ('"expressions"', '"items"'),
        ('"BOUND_FUNCTION"', '"BOUND_CALL"'),
        ('"LOGICAL_GET"', '"LOGICAL_READ"'),
        ('"value"', '"constant"'),
    ],
)
@pytest.mark.parametrize(
    "sql", ["SELECT i + 1 FROM range(5) t(i)", "SELECT sum(i + 2) FROM range(5) t(i) GROUP BY i + 1"]
)
def test_a_plan_of_another_form_is_not_portable(sql, known, other):
    assert _translated(_plan(sql))
    with pytest.raises(NotPortable):
        _translated(_plan(sql, lambda document: document.replace(known, other)))


# -- parse trees, by which predicates prune and statements are judged ---------------------------------

TREES = [
    ('"function_name"', '"name"'),
    ('"function_name":"', '"function_name":"__new_'),
    ('"class"', '"kind"'),
    ('"class":"FUNCTION"', '"class":"CALL"'),
    ('"arguments"', '"inputs"'),
    ('"where_clause"', '"conditions"'),
    ('"node"', '"query"'),
    ('"statements":[', '"statements":["",'),
    ('{"', '["'),
]


@pytest.fixture
def written(tmp_path) -> str:
    write_dataset(Store(str(tmp_path)), "t", pa.table({"p": [*range(8)], "v": [*range(8)]}), partition_on="p")
    return str(tmp_path)


@pytest.fixture
def of_another_form(monkeypatch) -> Callable[..., None]:
    """Let DuckDB describe what some sessions ask for in another form."""
    rows = EngineSession.rows

    def change(is_changed: Callable[[Any], bool], known: str, other: str) -> None:
        def changed(self: EngineSession, sql: str, parameters: Any = None) -> list[Any]:
            found = rows(self, sql, parameters)
            if "json_serialize_sql" in sql and is_changed(self):
                return [tuple(text.replace(known, other) for text in row) for row in found]
            return found

        monkeypatch.setattr(EngineSession, "rows", changed)

    return change


@pytest.mark.parametrize(("known", "other"), TREES)
@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("abs(p) = 3", [3]),
        ("p + 1 BETWEEN 2 AND 3", [1, 2]),
        ("p IN (1, 5) AND abs(p) < 4", [1]),
        ("NOT p < 6", [6, 7]),
    ],
)
def test_a_predicate_that_is_described_otherwise_only_prunes_less(
    written, of_another_form, condition, rows, known, other
):
    of_another_form(lambda session: isinstance(session, Planner), known, other)
    with kartosql.connect(written) as connection:
        query = connection.sql(f"SELECT v FROM t WHERE {condition} ORDER BY v")
        assert [v for (v,) in query.rows()] == rows
        assert query.explain().to_dict()["scans"][0]["datasets"][0]["files_selected"] >= len(rows)


@pytest.mark.parametrize(("known", "other"), TREES)
def test_a_function_that_is_described_otherwise_is_refused_nevertheless(known, other):
    ((document,),) = duckdb.execute("SELECT json_serialize_sql('SELECT abs(getenv(''HOME''))')").fetchall()
    with pytest.raises(SqlError) as caught:
        check_parsed(document.replace(known, other), "SELECT abs(getenv('HOME'))")
    assert caught.value.code in ("not-allowed", "function-not-allowed", "several-statements")


@pytest.mark.parametrize(("known", "other"), [t for t in TREES if t[0] in ('"function_name"', '"statements":[', '{"')])
def test_a_statement_that_cannot_be_judged_does_not_run(written, of_another_form, monkeypatch, known, other):
    monkeypatch.setattr(statement, "checked", {})
    of_another_form(lambda session: not isinstance(session, Planner), known, other)
    with kartosql.connect(written) as connection, pytest.raises(SqlError):
        connection.sql("SELECT abs(v) AS x FROM t").rows()


# -- profiles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{}", '{"operator": 1}', '{"operator": [1]}', '{"operator": [{"type": "TABLE_SCAN"}]}'),
        *('{"operator": [{"name": "SCAN", "extra_info": "of a table"}], "io": 3}', '{"operator": {"a": {}}}'),
    ],
)
def test_a_profile_of_another_form_tells_nothing(text):
    class Connection:
        def get_profiling_information(self) -> str:
            return text

    found = DuckProfile(Connection())
    assert set(found.settle()) == {"bytes_read", "files_opened", "row_groups_read"}
    assert len(found.operators(dict)) <= 1
