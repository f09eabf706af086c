"""Pieces and beginnings of texts as skipping indexes: pruned and unpruned answers agree."""

from __future__ import annotations

import random
import warnings
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.xskipper.grams import PieceSet
from kartosql.formats.xskipper.kinds import KINDS, NGram
from kartosql.formats.xskipper.naming import OWN
from kartosql.formats.xskipper.store import MetadataStore
from skipping_data import make_table

WORDS = ["alpha", "Beta", "gam_ma", "del%ta", "épsilon", "ζeta", "漢字", "a+b", "K\u212a", "\u0130x", "ß", "x\\y", "😀"]
WORDS.append("")


def texts(choose: random.Random, own: str) -> list[str | None]:
    found = [" ".join(choose.choices(WORDS, k=choose.randrange(4))) for _ in range(8)]
    return [None, own, f"{own} {choose.choice(WORDS)}", *found]


def conditions(choose: random.Random) -> str:
    word, own = choose.choice(WORDS), f"own {choose.randrange(6)}"
    part = choose.choice([word, own, own.upper(), word[1:4], f"{own} {word}"])
    regex = "".join(f"\\{c}" if c in "+%\\" else c for c in part)
    escaped = "".join(f"\\{c}" if c in "_%\\" else c for c in part)
    return choose.choice(
        [
            f"s LIKE '%{part}%'",
            f"s LIKE '{part}%'",
            f"s LIKE '%{part}'",
            f"s LIKE '{part}'",
            f"s NOT LIKE '%{part}%'",
            f"s ILIKE '%{part}%'",
            f"s ILIKE '{part}_%'",
            f"s LIKE '%{escaped}%' ESCAPE '\\'",
            f"contains(s, '{part}')",
            f"starts_with(s, '{part}')",
            f"strpos(s, '{part}') > 0",
            f"lower(s) LIKE '%{part.lower()}%'",
            f"regexp_matches(s, '{regex}')",
            f"regexp_matches(s, '^{regex}.*', 'i')",
            f"s SIMILAR TO '.*{regex}(a|b)?.*'",
            f"s = '{part}'",
            f"s IN ('{part}', '{own}')",
            f"s > '{part}'",
            f"s BETWEEN '{part}' AND '{own}'",
            f"s COLLATE NOCASE LIKE '%{part}%'",
            f"s LIKE '%{part}%' OR k = {choose.randrange(60)}",
        ]
    )


@pytest.mark.parametrize("kind", ["dataset", "cube", "parquet", "csv"])
def test_pruned_and_unpruned_answers_agree(kind, tmp_path):
    (tmp_path / "store").mkdir()
    choose = random.Random(kind)
    rows = []
    for p in range(6):
        found = texts(choose, f"own {p}")
        rows.append(pa.table({"k": [100 * p + i for i in range(len(found))], "p": [p] * len(found), "s": found}))
    pruned: Counter[str] = Counter()
    with kartosql.connect(tmp_path / "store") as con:
        make_table(con, kind, tmp_path, rows)
        con.sql("CREATE SKIPPING INDEX ON t (MINMAX(k))")
        con.sql("CREATE SKIPPING INDEX ON t (NGRAM(s), PREFIX(s) WITH (length = 5))")
        shown = con.sql("SHOW SKIPPING INDEXES FROM t").rows()
        assert {(r[1], r[2], r[3], r[4]) for r in shown} == {
            ("minmax", "k", "", 6),
            ("ngram", "s", "form = 2", 6),
            ("prefix", "s", "length = 5", 6),
        }
        for _ in range(250):
            where = conditions(choose)
            found = con.sql(f"SELECT k FROM t WHERE {where} ORDER BY k")
            whole = con.sql(f"SELECT k FROM t WHERE CASE WHEN random() >= 0 THEN {where} END ORDER BY k").rows()
            assert found.rows() == whole, (where, str(found.report))
            for step in found.report.to_dict()["scans"][0]["datasets"][0]["steps"]:
                pruned[step["by"]] += step["files_before"] > step["files_after"]
        assert pruned["ngram"] > 40, pruned
        assert pruned["prefix"] > 15, pruned
        con.sql("DROP SKIPPING INDEX ON t")
        assert con.sql("SHOW SKIPPING INDEXES FROM t").rows() == []
    assert not list(tmp_path.glob(f"**/{OWN}*"))


def test_the_original_sees_the_kinds_that_it_knows_alone(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("t", pa.table({"p": [0, 1, 2], "s": ["one", "two", "three"]}), partition_on=["p"])
        con.create_skipping_index("t", ngram=["s"], prefix={"s": {"length": 2}}, valuelist=["s"])
        con.append_to_dataset("t", pa.table({"p": [3], "s": ["four"]}))
        assert con.refresh_skipping_index("t") == {"indexes": 3, "added": 0, "removed": 0, "kept": 4, "unindexed": 0}
    parts = [path for path in tmp_path.glob(".kartosql/skipping/**/*.parquet") if "/.commit/" not in str(path)]
    known = {"ngram", "prefix"}
    for path in parts:
        text = pq.read_metadata(path).metadata[b"org.apache.spark.sql.parquet.row.metadata"].decode()
        is_hidden = path.name.startswith("_")  # Spark reads no such file
        assert {kind for kind in KINDS if f'"name":"{kind}"' in text} == (known if is_hidden else {"valuelist"})
    assert {path.name.startswith("_") for path in parts} == {True, False}


def test_what_an_index_has_not_seen_is_read(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "store").mkdir()
    for at in range(4):
        pq.write_table(pa.table({"s": [f"text of {at}"]}), tmp_path / "f" / f"{at}.parquet")
    with warnings.catch_warnings(), kartosql.connect(tmp_path / "store", attach=True) as con:
        warnings.simplefilter("ignore", KartosqlWarning)
        con.attach(tmp_path / "f", "t", type="parquet", metadata=tmp_path / "meta")
        con.create_skipping_index("t", ngram="s", minmax="s")
        pq.write_table(pa.table({"s": ["text of 9, and more"]}), tmp_path / "f" / "0.parquet")
        pq.write_table(pa.table({"s": ["text of 9"]}), tmp_path / "f" / "7.parquet")
        found = con.sql("SELECT count(*) FROM t WHERE s LIKE '%of 9%'")
        assert found.rows() == [(2,)]
        assert found.report.files_selected == 2


def test_a_new_index_is_used_by_connections_that_know_the_table(tmp_path):
    rows = pa.table({"p": [*range(5)], "s": [f"text of {p}" for p in range(5)]})
    with kartosql.connect(tmp_path) as con, kartosql.connect(tmp_path) as other:
        con.create_dataset("t", rows, partition_on=["p"])
        con.create_skipping_index("t", minmax=["s"])
        sql = "SELECT p FROM t WHERE s LIKE '%of 3%'"
        assert [c.sql(sql).report.files_selected for c in (con, other)] == [5, 5]
        con.create_skipping_index("t", ngram=["s"])
        assert [c.sql(sql).report.files_selected for c in (con, other)] == [1, 1]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("NGRAM(p)", "unsupported-type"),
        ("PREFIX(s) WITH (length = 0)", "invalid-argument"),
        ("PREFIX(s) WITH (size = 3)", "syntax-error"),
        ("NGRAM(s) WITH (size = 3)", "syntax-error"),
        ("NGRAM(b)", "unsupported-type"),
    ],
)
def test_indexes_that_cannot_be_are_refused(given, code, tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("t", pa.table({"p": [0], "s": ["a"], "b": [b"a"]}))
        with pytest.raises(KartosqlError) as found:
            con.sql(f"CREATE SKIPPING INDEX ON t ({given})")
        assert found.value.code == code


def test_damaged_metadata_leave_out_nothing(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("t", pa.table({"p": [*range(3)], "s": ["one", "two", "three"]}), partition_on=["p"])
        con.create_skipping_index("t", ngram=["s"], prefix=["s"])
    (part,) = tmp_path.glob(f".kartosql/skipping/**/{OWN}*")
    table, about = pq.read_table(part), pq.read_metadata(part).metadata
    names = table.schema.names
    for column, type_ in (("s_ngram_1", pa.string()), ("s_prefix_1", pa.list_(pa.int64()))):
        odd = table.set_column(names.index(column), column, pa.nulls(3, type_))
        with pq.ParquetWriter(part, odd.schema, store_schema=False) as writer:
            writer.write_table(odd)
            writer.add_key_value_metadata({k: v for k, v in about.items() if k != b"ARROW:schema"})
        found = MetadataStore.open(part.parent)
        listing = [(path.rpartition("#")[0], int(path.rpartition("#")[2])) for path in found.objects]
        assert len(found.select("s LIKE 'thr%'", listing)) < 3  # by the other index
        assert any(column in problem for problem in found.problems)


def test_texts_with_the_same_beginning_may_match(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("t", pa.table({"p": [0, 1, 2], "s": ["abcd", "abce", "b"]}), partition_on=["p"])
        con.create_skipping_index("t", prefix={"s": {"length": 3}})
        for where, rows in {
            "s = 'abcd'": [0],
            "s IN ('abcd', 'c')": [0],
            "s > 'abcd'": [1, 2],
            "s < 'abce'": [0],
            "s <> 'abc'": [0, 1, 2],
            "s <= 'abd'": [0, 1],
        }.items():
            assert con.sql(f"SELECT p FROM t WHERE {where} ORDER BY p").rows() == [(p,) for p in rows], where


def test_pieces_of_the_first_form_are_asked_and_become_those_of_the_newest_one(tmp_path, monkeypatch):
    def rows(n: int) -> pa.Table:
        return pa.table({"p": [n], "s": [f"some text {n} of {chr(97 + n) * 4}"]})

    def left() -> tuple[int, list[str]]:
        found = con.explain("SELECT * FROM t WHERE s LIKE '%cccc%'").files_selected
        return found, [row[3] for row in con.sql("SHOW SKIPPING INDEXES FROM t").rows() if row[1] == "ngram"]

    with kartosql.connect(tmp_path, keep_answers=False) as con:
        con.create_dataset("t", pa.concat_tables([rows(n) for n in range(12)]), partition_on=["p"])
        with monkeypatch.context() as before:
            before.setattr(NGram, "_FORM", NGram._FIRST)
            cell = PieceSet.cell
            before.setattr(PieceSet, "cell", lambda self: cell(self)[:-1])
            con.create_skipping_index("t", ngram="s")
            assert left() == (1, ["form = 1"])
        assert left() == (1, ["form = 1"])
        con.append_to_dataset("t", rows(12))
        con.refresh_skipping_index("t")
        assert left()[0] == 1
        con.create_skipping_index("t", prefix="s")  # for which entries are written anew
        assert left() == (1, ["form = 2"])
        assert con.sql("SELECT p FROM t WHERE s LIKE '%cccc%'").rows() == [(2,)]
