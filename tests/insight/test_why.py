from __future__ import annotations

import json

import pyarrow as pa
import pytest

from kartosql.errors import SqlError


def _why(con, file, sql):
    return con.sql(f"EXPLAIN WHY '{file}' {sql}").content


def _key(con, table, part):
    (key,) = [r["key"] for r in con.sql(f"SHOW FILES FROM {table}").arrow().to_pylist() if part in r["key"]]
    return key


def _only(con, file, sql):
    (verdict,) = _why(con, file, sql).verdicts
    return verdict


def test_a_file_left_out_names_the_first_step_that_did_it(con):
    sql = "SELECT v1 FROM c.seed WHERE p > 1 AND i1 = 3"
    verdict = _only(con, _key(con, "c.seed", "p=0"), sql)
    assert not verdict.is_read
    assert verdict.partition == "p = 0"
    assert verdict.because == ("its partition values rule it out: p > 1",)


def test_a_file_that_the_index_leaves_out(con):
    con.create_dataset("d", pa.table({"q": ["a", "b"], "k": [1, 2]}), partition_on=["q"], index_columns=["k"])
    verdict = _only(con, _key(con, "d", "q=a"), "SELECT * FROM d WHERE k = 2")
    assert verdict.because == ("the inverted index names it for no value that matches: k = 2",)
    assert verdict.partition == "q = 'a'"


def test_a_file_that_is_read_tells_what_could_not_rule_it_out(con):
    verdict = _only(con, _key(con, "c.seed", "p=3"), "SELECT v1 FROM c.seed WHERE p > 1 AND v1 > 0")
    assert verdict.is_read
    assert verdict.because[0] == "partition key does not rule it out: p > 1"
    assert verdict.because[1].startswith("v1 > 0 cannot rule it out: no partition key, index")


def test_a_query_without_conditions_says_so(con):
    verdict = _only(con, _key(con, "c.seed", "p=3"), "SELECT v1 FROM c.seed")
    assert verdict.because == ("the query has no condition that could rule it out",)


def test_a_dataset_of_which_no_column_is_used_is_not_read(con):
    verdict = _only(con, _key(con, "c.e", "p=4"), "SELECT v1 FROM c")
    assert (verdict.is_read, verdict.because) == (False, ("no column of its dataset is used",))


def test_a_file_without_partner_is_left_out_by_the_join(con):
    verdict = _only(con, _key(con, "c.e", "p=4"), "SELECT v1, v2 FROM c")
    assert verdict.because == ("it has no partner: partner in seed",)


def test_files_that_metadata_stand_for_are_not_opened(con):
    verdict = _only(con, _key(con, "c.seed", "p=1"), "SELECT count(*) FROM c")
    assert not verdict.is_read
    assert "not opened" in verdict.because[-1]


def test_files_behind_a_limit_are_not_read(con):
    verdict = _only(con, _key(con, "c.seed", "p=3"), "SELECT v1 FROM c LIMIT 1")
    assert verdict.because == ("files before it have rows enough: the first 1 rows suffice",)


def test_overlays_are_told(con):
    con.append_to_cube("c", {"seed": pa.table({"x": [0], "p": [0], "i1": [99], "v1": [1.0], "t": ["new"]})})
    files = [r["key"] for r in con.sql("SHOW FILES FROM c.seed").arrow().to_pylist() if "p=0" in r["key"]]
    newer = _only(con, files[-1], "SELECT v1 FROM c WHERE i1 = 0")
    assert newer.is_read
    assert any("newer versions of rows" in text for text in newer.because)
    assert any("the last one counts" in text for text in newer.because)


def test_each_occurrence_has_its_own_verdict(con):
    key = _key(con, "c.seed", "p=1")
    found = _why(con, key, "SELECT a.v1 FROM c a JOIN c b ON a.x = b.i1 WHERE a.p = 1 AND b.p = 2").verdicts
    assert [v.is_read for v in found] == [True, False]


def test_labels_and_ends_of_keys_are_names_too(con):
    (row,) = [r for r in con.sql("SHOW FILES FROM c.seed").arrow().to_pylist() if "p=1" in r["key"]]
    wanted = _why(con, row["key"], "SELECT v1 FROM c.seed").verdicts
    assert _why(con, row["label"], "SELECT v1 FROM c.seed").verdicts == wanted
    assert _why(con, row["key"].rsplit("table/", 1)[1], "SELECT v1 FROM c.seed").verdicts == wanted


@pytest.mark.parametrize("name", ["nope.parquet", "", "'' OR 1=1", "\x1b[31m"])
def test_a_file_that_is_not_there_is_an_error(con, name):
    with pytest.raises(SqlError) as e:
        con.sql(f"EXPLAIN WHY '{name}' SELECT v1 FROM c")
    assert e.value.code == "unknown-file"


def test_a_name_for_too_many_files_is_refused(con, monkeypatch):
    monkeypatch.setattr("kartosql.insight.explain.MAX_FOUND", 3)
    with pytest.raises(SqlError) as e:
        _why(con, ".parquet", "SELECT v1 FROM c")
    assert e.value.code == "ambiguous-name"


def test_why_in_every_format(con):
    key = _key(con, "c.seed", "p=0")
    sql = "SELECT v1 FROM c.seed WHERE p > 1"
    found = json.loads(con.sql(f"EXPLAIN WHY '{key}' (FORMAT JSON) {sql}").rows()[0][0])
    assert found["verdicts"] == con.sql(f"EXPLAIN WHY '{key}' (FORMAT TABLE) {sql}").arrow().to_pylist()
    query = con.sql(f"EXPLAIN WHY '{key}' {sql}")
    assert (
        repr(query) == f"{key}: not read by c.seed, seed\n  it holds p = 0\n  its partition values rule it out: p > 1"
    )
    assert f"<p><b>{key}: not read by c.seed, seed</b></p>" in query._repr_html_()


def test_the_verdict_agrees_with_the_plan_for_every_file(con):
    con.append_to_cube(
        "c", {"seed": pa.table({"x": [0, 39], "p": [0, 3], "i1": [5, 5], "v1": [1.0, 2], "t": ["", ""]})}
    )
    for where in ("i1 = 3", "p = 3 AND i1 = 3", "v2 > 0", "v2 IS NULL", "p IN (0, 3) AND v2 = 60", "x = 39"):
        sql = f"SELECT v1, v2 FROM c WHERE {where}"
        (scan,) = con.explain(sql).to_dict()["scans"]
        selected = {f for d in scan["datasets"] for f in d["files"]}
        for row in con.sql("SHOW FILES FROM c").arrow().to_pylist():
            verdict = _only(con, row["key"], sql)
            assert verdict.is_read == (row["key"] in selected), (where, row["key"])
            assert verdict.because
            assert "a step of the plan left it out" not in verdict.because
