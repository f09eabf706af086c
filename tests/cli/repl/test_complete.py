from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from kartosql import sources
from kartosql.cli.repl import registry
from kartosql.cli.repl.complete import FUNCTIONS, Candidate, candidates
from kartosql.cli.repl.known import load
from kartosql.cli.repl.options import OPTIONS
from kartosql.errors import KartosqlError
from kartosql.opening import connect
from kartosql.settings import SETTINGS
from kartosql.sql.attach_parse import CSV_OPTIONS, FORM, TYPES
from kartosql.sql.statement_policy import is_refused
from kartosql.sql.write_statements import FORMS
from kartosql.store import Store
from written import write_dataset


@pytest.fixture
def at(shell):
    """Return a function that completes at the sign | of a text."""
    known = load(shell.shell.connection)

    def at(text: str) -> list[Candidate]:
        cursor = text.index("|")
        text = text.replace("|", "", 1)
        candidates(text, cursor, shell.shell, known)
        while shell.shell.values.coming:
            time.sleep(0.001)
        return candidates(text, cursor, shell.shell, known)

    return at


def texts(found: list[Candidate]) -> list[str]:
    return [candidate.text for candidate in found]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("sel|", ["select"]),
        ("S|", ["SELECT", "SHOW", "SET", "SUMMARIZE"]),
        ("show c|", ["cubes"]),
        ("select * from |", ["sales", "sales.seed", "sales.weather", "shops"]),
        ("select * from sa|", ["sales", "sales.seed", "sales.weather"]),
        ("select * from hop|", ["shops"]),
        ("select * from sales.|", ["seed", "weather"]),
        ("describe sh|", ["shops"]),
        ("select * from shops, sal|", ["sales", "sales.seed", "sales.weather"]),
        ("with t as (select 1) select * from t|", ["t"]),
        ("create index on sh|", ["shops"]),
        ("drop cube sal|", ["sales", "sales.seed", "sales.weather"]),
        ("select pro| from sales", ["product"]),
        ("select s.am| from sales s", ["amount"]),
        ("select * from sales s where s.|", ["amount", "country", "day", "product", "rain", "shop"]),
        ("select * from sales where ra|", ["rain"]),
        ("select * from sales order by amo|", ["amount"]),
        ("select * from sales s join sales.weather w on s.shop = w.shop where rai|", ["s.rain", "w.rain"]),
        ("select (select max(na|) from shops) from sales", ["name"]),
        ("select coun|t from sales", ["country", "count("]),
        ("set eng|", ["engine = "]),
        ("set engine = |", ["'auto'", "'duckdb'", "'spark'"]),
        ("reset time|", ["timeout", "TimeZone"]),
        ("select 1 from sales where amount is |", ["NULL", "NOT NULL"]),
        ("select 1; select * from sh|", ["shops"]),
        ("with t as (select amount as money, rain from sales) select mo| from t", ["money"]),
        ("with t as (select * from sales), u as (select * from t) select u.ra| from u", ["rain"]),
        ("with t as (select s.* from sales s, shops) select na| from t", []),
        ("with recursive t as (select 1 as one union all select one from t) select o| from t", ["one"]),
        ('select d.| from (select sum(amount) total, product as "a b" from sales) d', ["total", '"a b"']),
        ("select tot| from (select sum(amount) as total from sales)", ["total"]),
        ("select d.|x from (select a + b, count(*), 1 one from sales) as d", ["one"]),
        ("select sum(amount) as total from sales group by product order by to|", ["total"]),
        ("select sum(amount) as total from sales group by product having tot|", ["total"]),
        ("select * from (select product from sales) d where d.product = '|", ["'apple'"]),
        ("select sum(amount) over (|", ["PARTITION BY", "ORDER BY"]),
        ("with t(a, b) as (select shop, 1 from sales) select | from t", ["a", "b"]),
        ("with s as (select 1 as q), t (a) as (select 1) select t.| from t, s", ["a"]),
        ("select d.| from (select shop, 1 from sales) as d(a, b)", ["a", "b"]),
        ("select d.| from (select shop as a from sales) d join shops using (shop)", ["a"]),
        ("select sum(amount) over w from sales window w as (|", ["PARTITION BY", "ORDER BY"]),
        ("select cast(amount as |", ["TINYINT", "SMALLINT"]),
        ("select try_cast(abs(amount) as var|", ["varchar"]),
        ("select amount::big| from sales", ["bigint"]),
        ("select * exc|", ["except", "exclude"]),
        ("select * from sales at |", ["(VERSION => ", "(TIMESTAMP => '"]),
        ("explain analyze |", ["SELECT", "WITH", "FROM"]),
        ("create view v as |", ["SELECT", "WITH", "FROM"]),
        ("create index on shops (|", ["name", "shop"]),
        ("create index on sales.seed (shop, am|", ["amount"]),
        ("drop index on shops (na|", ["name"]),
        ("create skipping index on shops (minmax(|", ["name", "shop"]),
        ("show coverage of sales by co|", ["country"]),
        ("show coverage (format svg) of sales by country, |", ["amount", "country"]),
        ("drop view |", ["sales"]),
        ("create cube c |", ["DIMENSIONS"]),
        ("create cube c dimensions (a, b) |", ["PARTITION BY"]),
        ("create cube c dimensions (a) partition by (p) |", ["SEED", "INDEX", "SUPPRESS INDEX ON", "METADATA", "AS"]),
        ("create or replace cube c dimensions (a) partition by (p) index (i) sup|", ["suppress index on"]),
        ("create cube c dimensions (a) partition by (p) suppress |", ["INDEX ON"]),
        ("create dataset d |", ["PARTITION BY", "INDEX", "AS"]),
        ("create dataset d index (a) |", ["PARTITION BY", "AS"]),
        ("create skipping |", ["INDEX ON"]),
        ("create skipping index on |", ["sales", "sales.seed", "sales.weather", "shops"]),
        ("create skipping index on sales.seed (|", ["MINMAX(", "VALUELIST(", "BLOOMFILTER("]),
        ("create skipping index on sales.seed (minmax(amount), blo|", ["bloomfilter("]),
        ("create skipping index on sales.seed (bloomfilter(shop) |", ["WITH"]),
        ("alter dataset shops |", ["ADD COLUMN", "SET METADATA"]),
        ("alter cube sales |", ["ADD DATASET"]),
        ("copy cube sales |", ["DATASETS", "TO"]),
        ("copy cube sales datasets (seed) |", ["TO"]),
        ("copy cube sales to 'x' |", ["AS"]),
        ("restore shops |", ["TO VERSION", "TO TIMESTAMP"]),
        ("restore shops to |", ["VERSION", "TIMESTAMP"]),
        ("publish shops |", ["TO"]),
        ("publish shops to 'x' |", ["(TYPE"]),
        ("publish shops to 'x' (type |", ["delta", "iceberg"]),
        ("publish shops to 'x' (type delta, |", ["FOLLOW"]),
        ("cleanup shops |", ["DRY RUN"]),
        ("check shops |", ["FULL", "REPAIR"]),
        ("check shops full |", ["REPAIR"]),
        ("record schema for |", ["sales", "sales.seed", "sales.weather", "shops"]),
        ("export (select 1 as a) |", ["TO"]),
        ("export (select 1 as a) to 'x' |", ["(TYPE"]),
        ("export (select 1 as a) to 'x' (type |", ["odf"]),
        ("export (select 1 as a) to 'x' (type odf, |", ["PRIMARY_KEY", "EVENT_TIME"]),
        ("export (select amo| from sales) to 'x'", ["amount"]),
        ("attach 'x' |", ["AS"]),
        ("attach 'x' as x |", ["(TYPE"]),
        ("attach 'x' as x (type |", ["parquet", "csv", "odf", "delta", "iceberg", "kartothek"]),
        ("attach 'x' as x (type delta, |", ["VERSION", "AS_OF", "METADATA", "CLONE_OF"]),
        ("attach 'x' as x (type csv, de|", ["delim", "decimal_separator"]),
        ("explain (|", ["ANALYZE", "COST", "FORMAT"]),
        ("explain (cost, format |", ["TEXT", "TABLE", "JSON", "HTML"]),
        ("show coverage (format s|", ["svg"]),
        ("create dataset d as select amo| from sales", ["amount"]),
        ("select sum(amount) over (order by day rows |) from sales", ["BETWEEN"]),
        ("select sum(amount) over (order by day rows between unbounded |) from sales", ["PRECEDING", "FOLLOWING"]),
        ("select sum(amount) over (partition by pro|) from sales", ["product"]),
        ("attach 'x' as y (type del|", ["delta"]),
        ("select * from sh|; select 1", ["shops"]),
        ("insert overwrite sa|", ["sales", "sales.seed", "sales.weather"]),
        ("insert into shops |", ["(", "VALUES", "SELECT", "BY NAME"]),
        ("insert into shops (|", ["name", "shop"]),
        ("insert into sales.seed (shop, am|", ["amount"]),
        ("insert overwrite shops |", ["(", "PARTITION ("]),
        ("update |", ["sales", "sales.seed", "sales.weather", "shops"]),
        ("update sales.|", ["seed", "weather"]),
        ("update shops |", ["SET"]),
        ("update shops set |", ["name", "shop"]),
        ("update shops set name |", ["="]),
        ("update shops set name = |", ["name", "shop"]),
        ("update shops set name = upper(name) |", ["WHERE"]),
        ("update shops set name = 'x', sh|", ["shop"]),
        ("update sales.seed set amount = 1 where product = '|", ["'apple'"]),
        ("delete from shops |", ["WHERE"]),
        ("delete from sales.seed where amo|", ["amount"]),
        ("merge |", ["INTO"]),
        ("merge into sh|", ["shops"]),
        ("merge into shops s |", ["USING"]),
        ("merge into shops using sa|", ["sales", "sales.seed", "sales.weather"]),
        ("merge into shops t using sales.seed as s |", ["ON"]),
        ("merge into shops t using sales.seed as s on |", ["t.shop = s.shop"]),
        ("merge into shops using sales s on (|", ["shop"]),
        ("merge into shops using sales s on (shop) |", ["WHEN MATCHED", "WHEN NOT MATCHED"]),
        ("merge into shops using sales s on (shop) when matched and s.|", ["amount", "country"]),
        ("merge into shops using sales s on (shop) when matched and rain > 1 |", ["THEN"]),
        ("merge into shops using sales s on (shop) when not |", ["MATCHED"]),
        ("merge into shops using sales s on (shop) when matched then |", ["UPDATE SET", "DELETE", "INSERT"]),
        ("merge into shops using sales s on (shop) when matched then update set |", ["name", "shop", "*"]),
        ("merge into shops using sales s on (shop) when matched then delete |", ["WHEN MATCHED"]),
        ("merge into shops using sales s on (shop) when not matched then insert (na|", ["name"]),
        ("merge into shops using sales s on (shop) when not matched then insert (name) |", ["VALUES"]),
        ("merge into shops using (select day as x from sales) d on shops.shop = d.|", ["x"]),
    ],
)
def test_what_fits_comes_first(at, text, first):
    assert texts(at(text))[: len(first)] == first


@pytest.mark.parametrize("form", [*FORMS.values(), FORM, "EXPLAIN (COST, FORMAT JSON) SELECT 1"])
def test_a_form_is_completed_from_each_of_its_beginnings_without_failing(at, form):
    plain = form.replace("[", "").replace("]", "")
    for end in range(len(plain) + 1):
        at(f"{plain[:end]}|")
        at(f"{plain[:end]} |")


def test_options_that_sources_take_are_those_that_are_completed_and_named_in_hints():
    text = "".join(path.read_text("utf-8") for path in Path(sources.__file__).parent.glob("*.py"))
    taken = set(re.findall(r"""options\.(?:take|text|truth|moment|version)\("(\w+)\"""", text))
    listed = {option for options in TYPES.values() for option in options}
    assert taken <= listed
    assert listed - taken == {*CSV_OPTIONS, "as_of", "catalog", "table", "data"} - taken
    assert set(TYPES) == set(sources.SOURCES)


@pytest.mark.parametrize(
    "text",
    ["select 'sal|'", "select -- sal|", "select /* sal|", "select 1 from nowhere where x = '|", ".mode box |", "|  "],
)
def test_where_nothing_is_known_nothing_is_offered(at, text):
    assert [c for c in at(text) if c.unasked] == []


def test_columns_before_from_bring_their_table(at):
    assert [(c.text, c.suffix) for c in at("select rai|")] == [("rain", " FROM sales")]
    assert [(c.text, c.suffix) for c in at("select shop, nam|")][:1] == [("name", " FROM shops")]
    assert [(c.text, c.suffix) for c in at("select rai|, shop from sales")] == [("rain", "")]
    # A column of several tables is offered with each of them.
    assert [c.suffix for c in at("select sho|")] == [" FROM sales", " FROM shops"]


def test_joins_come_from_shared_dimensions(at):
    assert texts(at("select * from sales s join sales.weather w on |"))[:4] == [
        "s.country = w.country AND s.day = w.day AND s.rain = w.rain AND s.shop = w.shop".replace(
            " AND s.rain = w.rain", ""
        ),
        "s.country = w.country",
        "s.day = w.day",
        "s.shop = w.shop",
    ]
    assert texts(at("select * from sales s join shops t on |"))[0] == "s.shop = t.shop"
    assert texts(at("select * from sales join shops using (|")) == ["shop"]
    assert texts(at("select * from sales join sales.weather using (|"))[0] == "country, day, shop)"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("select 1 from sales where product = |", [("'apple'", "3 of 3 files"), ("'o''ne'", "1 of 3 files")]),
        ("select 1 from sales where product = 'p|", [("'pear'", "1 of 3 files"), ("'plum'", "1 of 3 files")]),
        ("select 1 from sales where product = 'p|'", [("'pear", "1 of 3 files"), ("'plum", "1 of 3 files")]),
        ("select 1 from sales where product in ('apple', 'pe|", [("'pear'", "1 of 3 files")]),
        ("select 1 from sales where product not in (|", [("'apple'", "3 of 3 files")]),
        ("select 1 from sales where product = 'LU|", [("'plum'", "1 of 3 files")]),
        ("select 1 from sales s where s.country <> |", [("'DE'", "1 of 3 files"), ("'FR'", "1 of 3 files")]),
        ("select 1 from sales where shop = |", [("1", "1 of 3 files"), ("2", "1 of 3 files")]),
        ("select 1 from sales where shop >= 3|", [("3", "1 of 3 files")]),
        ("delete from sales where country = 'G|", [("'GB'", "1 of 3 files")]),
    ],
)
def test_values_of_indices_and_partitions_have_their_files(at, text, wanted):
    found = [(c.text, c.about) for c in at(text)]
    assert found[: len(wanted)] == wanted


def test_values_are_those_that_the_engine_finds(at, sales):
    con = connect(sales)
    for column in ("product", "country", "shop", "day"):
        rows = con.sql(f"SELECT DISTINCT {column} FROM sales ORDER BY 1").rows()
        offered = [c for c in at(f"select 1 from sales where {column} = |") if c.about.endswith("files")]
        assert len(offered) == len(rows)
        for candidate, (value,) in zip(offered, rows, strict=True):
            assert con.sql(f"SELECT DISTINCT {column} FROM sales WHERE {column} = {candidate.text}").rows() == [
                (value,)
            ]


def test_payload_columns_have_no_values(at):
    assert [c for c in at("select 1 from sales where amount = |") if c.about.endswith("files")] == []


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (".tab|", ".tables"),
        (r"\d|", r"\d "),
        (".schema sal|", "sales"),
        (".index shops na|", "name"),
        (".mode ver|", "vertical"),
        (".config ro|", "rows"),
        (".config theme l|", "light"),
        (".config thr|", "threads"),
        (".engine d|", "duckdb"),
        (".theme d|", "dark"),
        (".timing o|", "on"),
        (".help .mo|", ".mode"),
        (".explain select rai|", "rain"),
        (".watch 2 select * from sh|", "shops"),
        (".tour 2|", "2"),
    ],
)
def test_commands_and_their_arguments_are_completed(at, text, first):
    assert first in [t.strip() if not first.endswith(" ") else t for t in texts(at(text))][:12]


def test_files_are_completed(at, tmp_path, monkeypatch):
    (tmp_path / "report 1.sql").write_text("")
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path)
    assert texts(at(".read rep|")) == ["'report 1.sql'", "reports/"]
    assert texts(at(f".read {tmp_path}/rep|"))[1] == f"{tmp_path}/reports/"
    assert texts(at(".open rep|")) == ["reports/"]
    assert texts(at(".read |")) == ["'report 1.sql'", "reports/"]


def test_the_last_result_has_columns_for_a_chart(at, shell):
    shell("select 1 as label, 2 as value;")
    assert texts(at(".chart la|")) == ["label"]
    assert texts(at(".chart label va|")) == ["value"]


def test_files_of_the_last_statement_are_completed(at, shell, sales):
    assert texts(at(".why |")) == []
    shell("select count(amount) as n from sales where day > 0;")
    found = texts(at(".why sales++seed|"))
    assert len(found) == 3
    assert all(key.endswith(".parquet") for key in found)
    assert "error" not in shell(f".why {found[0]}")


def test_every_command_option_and_setting_is_completed(at):
    registry.load()
    for command in registry.COMMANDS.values():
        assert f".{command.name}" in [t.strip() for t in texts(at(f".{command.name}|"))]
        for alias in command.aliases:
            assert alias in [t.strip() for t in texts(at(f"{alias}|"))]
    for name in (*OPTIONS, *SETTINGS):
        assert name in texts(at(f".config {name}|"))
    for setting in SETTINGS.values():
        if setting.in_sql:
            assert f"{setting.name} = " in texts(at(f"set {setting.name}|"))


def test_every_function_that_is_offered_is_one(sales):
    con = connect(sales)
    with duckdb.connect() as engine:
        known = {name for (name,) in engine.execute("SELECT function_name FROM duckdb_functions()").fetchall()}
    assert [name for name in FUNCTIONS if is_refused(name)] == []
    unknown = []
    for name in sorted({*FUNCTIONS} - known):  # syntax that looks like a function
        try:
            con.sql(f"SELECT {name}()").arrow()
        except KartosqlError as e:
            # Without arguments many are called wrongly, but none is unknown.
            if "does not exist" in e.message:
                unknown.append((name, e.message))
    assert unknown == []


def test_names_that_need_quotes_get_them(shell_in, tmp_path):
    write_dataset(Store(str(tmp_path)), "odd", pa.table({"a b": [1], "select": [2]}))
    session = shell_in(str(tmp_path))
    known = load(session.shell.connection)
    found = candidates("select  from odd", 7, session.shell, known)
    assert {'"a b"', '"select"'} <= set(texts(found))
    assert texts(candidates('select "a from odd', 9, session.shell, known))[:1] == ['"a b"']


def test_damaged_datasets_are_left_out(shell_in, tmp_path, sales):
    place = shutil.copytree(sales, tmp_path / "copy")
    (place / "shops.by-dataset-metadata.json").write_text("{")
    session = shell_in(str(place))
    assert [t.name for t in load(session.shell.connection).tables][:1] == ["sales"]


@pytest.mark.parametrize(
    "before", ["attach '", "copy cube sales to '", "export schema history of sales to '", "publish shops to '"]
)
def test_paths_of_statements_are_completed(at, tmp_path, monkeypatch, before):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's here").mkdir()
    (tmp_path / "item.csv").write_text("")
    assert texts(at(f"{before}it|")) == ["'it''s here/", "'item.csv"]
    assert texts(at(f"{before}it|'")) == ["'it''s here/", "'item.csv"]
