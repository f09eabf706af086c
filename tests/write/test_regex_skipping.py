"""Lists of what regular expressions find, made by SQL and Python: pruned and unpruned answers agree."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.formats.xskipper.java_patterns import extracted, of_java
from skipping_data import make_table

PATTERNS = ["db=(.*) end", r"db=(\d+).*end", "(?i)(x|Y)?=", "^(.)", "([a-c]+)$", r"(\w{2,3}?)-"]


def texts(p: int) -> list[str | None]:
    found = [
        f"x db={p} end",
        f"y db={p + 10}\rend",
        None,
        "",
        "nothing",
        f"ab.c-{p}\nq",
        f"X=é{p}",
        "k\u2028",
        "abc\r\n",
    ]
    return [*found, chr(97 + p)]


@pytest.mark.parametrize("kind", ["dataset", "cube", "parquet", "csv"])
def test_pruned_and_unpruned_answers_agree(kind, tmp_path):
    (tmp_path / "store").mkdir()
    rows = [pa.table({"k": [100 * p + i for i in range(10)], "p": [p] * 10, "s": texts(p)}) for p in range(4)]
    with kartosql.connect(tmp_path / "store") as con:
        name = "t"
        make_table(con, kind, tmp_path, rows)
        given = ", ".join(f"pattern = '{p}'" for p in PATTERNS)
        con.sql(f"CREATE SKIPPING INDEX ON {name} (REGEXVALUELIST(s) WITH ({given}), MINMAX(k))").rows()
        shown = {r[1]: r[3] for r in con.sql(f"SHOW SKIPPING INDEXES FROM {name}").rows()}
        assert [part.partition(" = ")[2] for part in shown["regexvaluelist"].split(", r")] == PATTERNS
        pruned: Counter[str] = Counter()
        for pattern in PATTERNS:
            found = con.sql(f"SELECT DISTINCT regexp_extract(s, '{pattern}', 1) FROM {name} WHERE s IS NOT NULL").rows()
            for value in sorted({v for (v,) in found} | {"", "zz", "3", "\r"}):
                extract = f"regexp_extract(s, '{pattern}', 1)"
                text = value.replace("'", "''")
                for where in (f"{extract} = '{text}'", f"{extract} IN ('{text}', 'zz')", f"{extract} <> '{text}'"):
                    query = con.sql(f"SELECT k FROM {name} WHERE {where}")
                    whole = con.sql(f"SELECT k FROM {name} WHERE CASE WHEN random() >= 0 THEN {where} END")
                    assert sorted(query.rows()) == sorted(whole.rows()), (pattern, value, where)
                    pruned[pattern] += query.report.files_selected < query.report.files_total
        assert set(pruned) == set(PATTERNS)
        assert con.refresh_skipping_index(name)
        assert con.drop_skipping_index(name)


def test_groups_are_those_of_the_first_match_here_and_of_all_in_java():
    found = extracted(pa.array(["a1 a2", "b", "a\r"]), "a(.)").to_pylist()
    assert sorted(found) == ["\r", "1", "2"]  # Java's dot is no end of a line
    assert sorted(extracted(pa.array(["x=a\n"]), "=(a)$").to_pylist()) == ["a"]


@pytest.mark.parametrize(
    "pattern", ["(", "a", "(?=a)(b)", r"(\pL)", "([[a]])", r"(a)\1", "(a*+)", "(?<n>a)", r"\b(a)", "(a{,3})", "(?s)(a)"]
)
def test_what_engines_may_read_in_different_ways_is_refused(pattern):
    with pytest.raises(KartosqlError) as e:
        of_java(pattern)
    assert e.value.code == "invalid-argument"


def test_patterns_are_needed_and_for_texts_alone(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"a": [1], "s": ["x"]}))
        for sql, code in (
            ("CREATE SKIPPING INDEX ON d (REGEXVALUELIST(s))", "syntax-error"),
            ("CREATE SKIPPING INDEX ON d (REGEXVALUELIST(s) WITH (pattern = 1))", "syntax-error"),
            ("CREATE SKIPPING INDEX ON d (MINMAX(s) WITH (pattern = '(a)'))", "syntax-error"),
            ("CREATE SKIPPING INDEX ON d (REGEXVALUELIST(a) WITH (pattern = '(a)'))", "unsupported-type"),
            ("CREATE SKIPPING INDEX ON d (REGEXVALUELIST(s) WITH (pattern = 'a'))", "invalid-argument"),
        ):
            with pytest.raises(KartosqlError) as e:
                con.sql(sql).rows()
            assert e.value.code == code, sql
        assert con.create_skipping_index("d", regexvaluelist={"s": "(x)"})["added"] == 1
        assert con.create_skipping_index("d", regexvaluelist={"s": ["(x)", "(y)"]})["added"] == 1
        assert con.sql("SHOW SKIPPING INDEXES FROM d").rows()[0][1:4] == ("regexvaluelist", "s", "r0 = (x), r1 = (y)")
