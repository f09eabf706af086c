"""Views: as if their text stood in the place of their name, with the errors of what cannot be read."""

from __future__ import annotations

import json
import random

import pytest

import kartosql
from kartosql.errors import KartosqlError

NAME = "v.kartosql-view.json"


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.sql("CREATE DATASET t PARTITION BY (p) INDEX (k) AS SELECT i % 4 p, i k, i * 2 v FROM range(40) r(i)")
        con.sql("CREATE DATASET u AS SELECT i AS k, i % 3 AS g FROM range(0, 40, 2) r(i)")
        con.sql("CREATE VIEW v AS SELECT k, v + 1 AS w, p FROM t WHERE v > 6 -- a comment ends it\n")
        con.sql("CREATE VIEW named (a, b) AS SELECT v.w, u.g, u.k FROM v JOIN u USING (k)")
        yield con


TEXTS = {
    "v": "(SELECT k, v + 1 AS w, p FROM t WHERE v > 6) AS v",
    "named": "(SELECT * FROM (SELECT w, g, u.k FROM (SELECT k, v + 1 AS w, p FROM t WHERE v > 6) AS v JOIN u USING (k))"
    " AS named(a, b)) AS named",
}
QUERIES = [
    "SELECT * FROM {v} WHERE p = %d",
    "SELECT v.w FROM {v} WHERE v.k IN (%d, 7)",
    "SELECT count(*), sum(w) FROM {v} JOIN u USING (k) WHERE u.g < %d",
    "SELECT * FROM {named} WHERE b = %d",
    "FROM {named} SELECT max(a) WHERE k > %d",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM {v} WHERE v.k = t.k + %d)",
    "WITH v AS (SELECT * FROM {v} WHERE p = %d) SELECT count(*) FROM v",
    "SELECT p, count(*) FROM {v} GROUP BY ALL HAVING p < %d",
    "SELECT * FROM {v} UNION ALL SELECT k, v, p FROM t WHERE k < %d",
    "PIVOT {v} ON p USING sum(w) GROUP BY k ORDER BY k LIMIT %d",
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_view_answers_and_reads_as_its_text_does_in_its_place(con, query):
    for number in random.Random(query).sample(range(12), 4):
        mine = con.sql(query.format(v="v", named="named") % number)
        text = con.sql(query.format(**TEXTS) % number)
        assert sorted(mine.rows()) == sorted(text.rows())
        assert mine.report.files_selected == text.report.files_selected


def test_conditions_prune_through_views(con):
    report = con.explain("SELECT * FROM v WHERE p = 1 AND k = 9")
    assert (report.files_selected, report.files_total) == (1, 4)


def test_a_view_is_resolved_for_each_statement(con):
    assert con.sql("SELECT count(*) FROM v").rows() == [(36,)]
    con.sql("INSERT INTO t VALUES (0, 100, 200)")
    assert con.sql("SELECT count(*) FROM v").rows() == [(37,)]
    con.sql("CREATE OR REPLACE VIEW v AS SELECT k, 0 AS w, p FROM t LIMIT 1")
    assert con.sql("SELECT count(*) FROM v").rows() == [(1,)]


def test_a_view_is_described_listed_summarized_and_read_by_statements_that_write(con):
    assert con.sql("SHOW COLUMNS FROM v").rows() == con.sql("DESCRIBE v").rows() != []
    assert ("v", "view") in con.sql("SHOW TABLES").rows()
    assert con.sql("SUMMARIZE v").arrow()["column_name"].to_pylist() == ["k", "w", "p"]
    con.sql("CREATE DATASET copy AS SELECT * FROM v")
    assert con.sql("SELECT count(*) FROM copy").rows() == [(36,)]
    con.sql("MERGE INTO copy USING v ON (k) WHEN MATCHED THEN DELETE")
    assert con.sql("SELECT count(*) FROM copy").rows() == [(0,)]


def test_views_are_read_on_spark(con, spark):
    assert sorted(con.sql("SELECT k FROM v WHERE p = 1 AND k < 12", engine="spark").rows()) == [(5,), (9,)]


def _failure(con, sql, code):
    with pytest.raises(KartosqlError) as caught:
        con.sql(sql).rows()
    assert caught.value.code == code
    return caught.value


def test_errors_beside_a_view_have_the_places_of_the_statement(con):
    sql = "SELECT v.nope FROM t JOIN v USING (k) WHERE zz = 20"
    error = _failure(con, sql, "unknown-column")
    assert [sql[start:end] for start, end in error.places] == ["v.nope", "zz"]
    assert error.sql == sql


def test_a_broken_view_is_named(con):
    con.delete_dataset("u")
    error = _failure(con, "SELECT 1 FROM named", "view-broken")
    assert error.message == "The view 'named': There is no table 'u'."
    assert error.span == (14, 19)
    con.sql("CREATE DATASET u AS SELECT 1 AS other, 1 AS k")
    assert "'u.g'" in _failure(con, "SELECT 1 FROM named", "view-broken").message


def test_columns_around_a_view_do_not_explain_names_that_it_lacks(con):
    con.sql("CREATE DATASET w AS SELECT 1 AS a")
    con.sql("CREATE VIEW x AS SELECT a FROM w")
    con.sql("CREATE OR REPLACE DATASET w AS SELECT 1 AS b")
    _failure(con, "SELECT x.a FROM (SELECT 5 AS a) AS o, x", "view-broken")


def test_names_of_with_do_not_enter_a_view(con):
    error = _failure(con, "WITH t AS (SELECT 1 AS k) SELECT * FROM t, v", "not-supported")
    assert "WITH gives this name" in error.message


def test_views_that_read_themselves_are_refused(con):
    con.sql("CREATE VIEW w AS SELECT * FROM v")
    error = _failure(con, "CREATE OR REPLACE VIEW v AS SELECT * FROM w", "view-broken")
    assert error.message.endswith("It reads itself: v -> w -> v.")
    assert con.sql("SELECT count(*) FROM w").rows() == [(36,)]


def test_views_that_read_each_other_are_refused_where_documents_say_so(con, tmp_path):
    for name, other in (("v", "w"), ("w", "v")):
        document = _DOCUMENT | {"name": name, "sql": f"SELECT * FROM {other}"}
        (tmp_path / f"{name}.kartosql-view.json").write_text(json.dumps(document))
    _failure(con, "SELECT * FROM v", "view-broken")


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE VIEW v AS SELECT 1", "name-taken"),
        ("CREATE VIEW t AS SELECT 1", "name-taken"),
        ("CREATE OR REPLACE VIEW t AS SELECT 1", "name-taken"),
        ("CREATE DATASET v AS SELECT 1 AS a", "name-taken"),
        ("CREATE CUBE V DIMENSIONS (a) PARTITION BY (b) AS SELECT 1 AS a, 2 AS b", "name-taken"),
        ('CREATE VIEW "a/b" AS SELECT 1', "invalid-argument"),
        ("CREATE VIEW n (a, b) AS SELECT 1", "invalid-argument"),
        ("CREATE VIEW n AS SELECT ? AS a", "invalid-parameters"),
        ("CREATE VIEW n AS SELECT nope FROM t", "unknown-column"),
        ("CREATE VIEW n AS DELETE FROM t", "syntax-error"),
        ("CREATE VIEW n AS SELECT 5!", "not-supported"),
        (f"CREATE VIEW n AS SELECT {'(' * 97}1{')' * 97} AS a", "not-supported"),
        ("INSERT INTO v SELECT * FROM v", "unknown-table"),
        ("SELECT * FROM v AT (VERSION => 1)", "no-versions"),
        ("TABLE v", "not-supported"),
        ("DROP VIEW t", "unknown-table"),
        ("DROP DATASET v", "unknown-table"),
    ],
)
def test_what_views_cannot_be_is_refused_and_nothing_changes(con, sql, code):
    before = con.sql("SHOW TABLES").rows()
    _failure(con, sql, code)
    assert con.sql("SHOW TABLES").rows() == before


def test_a_view_of_registered_data_is_refused(con):
    con.register("mine", con.sql("SELECT 1 AS a").arrow())
    _failure(con, "CREATE VIEW n AS SELECT * FROM mine", "not-supported")


def test_a_view_is_dropped(con):
    con.sql("DROP VIEW v")
    _failure(con, "SELECT * FROM v", "unknown-table")
    assert con.sql("DROP VIEW IF EXISTS v").rows() == []


def test_a_dataset_of_another_program_hides_a_view(con, tmp_path):
    (tmp_path / NAME).rename(tmp_path / "u.kartosql-view.json")
    assert con.sql("SELECT count(*) FROM u").rows() == [(20,)]


_DOCUMENT = {"format": "kartosql-view-1", "name": "v", "sql": "SELECT 1 AS a", "columns": []}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sql": "SELECT * FROM read_text('/etc/passwd')"}, "view-broken"),
        ({"sql": "DELETE FROM t"}, "view-broken"),
        ({"sql": "SELECT 1; SELECT 2"}, "view-broken"),
        ({"sql": "SELECT 1) AS v; DROP VIEW v; (SELECT 1"}, "view-broken"),
        ({"sql": "SELECT 1) AS a, (SELECT 2"}, "view-broken"),
        ({"sql": "SELECT 1 /*"}, "view-broken"),
        ({"sql": "SELECT $1"}, "view-broken"),
        ({"sql": 7}, "view-broken"),
        ({"columns": [1]}, "view-broken"),
        ({"format": "kartosql-view-2"}, "view-broken"),
        ({"sql": "SELECT 1 AS a " + "-" * 2_000_000}, "view-broken"),
    ],
)
def test_hostile_documents_are_errors_of_their_view_alone(con, tmp_path, change, code):
    (tmp_path / NAME).write_text(json.dumps(_DOCUMENT | change))
    _failure(con, "SELECT * FROM v", code)
    assert con.sql("SELECT count(*) FROM t").rows() == [(40,)]
    con.sql("CREATE OR REPLACE VIEW v AS SELECT 1 AS one")
    assert con.sql("SELECT * FROM v").rows() == [(1,)]


def test_a_document_that_is_no_json_is_an_error_of_its_view(con, tmp_path):
    (tmp_path / NAME).write_bytes(b"\xff\x00[")
    assert "damaged" in _failure(con, "SELECT * FROM v", "view-broken").message
