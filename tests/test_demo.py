from __future__ import annotations

import datetime as dt
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kartosql import demo
from kartosql.errors import UsageError
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from written import write_dataset


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The shipped tables with every thousandth row."""
    for name in ("flights", "weather", "planes", "airports"):
        table = pq.read_table(f"{demo.DATA}/{name}.parquet")
        pq.write_table(table.take(pa.array(range(0, table.num_rows, 1000))), tmp_path / f"{name}.parquet")
    monkeypatch.setattr(demo, "DATA", str(tmp_path))


def frame(store: Store, uuid: str) -> pa.Table:
    table = Snapshot(store).dataset(uuid).tables["table"]
    return pa.concat_tables([pq.read_table(pa.BufferReader(store.read(key))) for key in table.files])


def test_the_demo_is_a_cube_and_two_datasets(small, tmp_path):
    said: list[str] = []
    written = demo.build_flights(tmp_path / "demo", said.append)
    rows = {"flights": 337, "delays": 325, "weather": 27, "planes": 4, "airports": 2}
    assert {name: s["rows"] for name, s in written.items()} == rows
    assert said == ["writing the cube flights", "writing the dataset planes", "writing the dataset airports"]
    snapshot = Snapshot(Store(str(tmp_path / "demo")))
    assert snapshot.cube("flights").cube == demo.FLIGHTS
    assert set(snapshot.keys) == {"flights++flights", "flights++delays", "flights++weather", "planes", "airports"}


def test_the_shipped_tables_are_small():
    files = [entry for entry in os.scandir(demo.DATA) if entry.name.endswith(".parquet")]
    assert len(files) == 4
    assert sum(entry.stat().st_size for entry in files) < 3_500_000


@pytest.mark.parametrize(("uuid", "named"), [("planes", "planes"), ("flights++other", "flights")])
def test_nothing_is_written_into_a_store_that_has_such_names(small, local, uuid, named):
    write_dataset(local, uuid, pa.table({"x": [1]}))
    before = local.counter.writes
    with pytest.raises(UsageError, match=f"already holds {named}") as e:
        demo.build_flights(local)
    assert e.value.code == "dataset-exists"
    assert local.counter.writes == before


def test_overwrite_builds_the_demo_again(small, local):
    first, second = demo.build_flights(local), demo.build_flights(local, overwrite=True)
    # Names of files are random, so what is compressed with them has not always the same size.
    assert [(n, w["files"], w["rows"]) for n, w in second.items()] == [
        (n, w["files"], w["rows"]) for n, w in first.items()
    ]
    assert frame(local, "flights++flights").num_rows == 337


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("demo")))
    demo.build_flights(store)
    return store


def months_and_hours(store: Store, name: str, *more: str) -> list[tuple[object, ...]]:
    table = Snapshot(store).dataset(f"flights++{name}").tables["table"]
    found = []
    for i, file in enumerate(table.files):
        rows = pq.read_table(pa.BufferReader(store.read(file)), columns=["time_hour", *more])
        month = table.partitions.tuples[table.partitions.part_of_file[i]][0]
        found += [(month, *row) for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)]
    return found


def test_flights_and_weather_of_the_last_evening_share_the_local_month(whole):
    last_evening = dt.datetime(2013, 2, 1, 2)
    for name in ("flights", "weather"):
        assert {month for month, hour in months_and_hours(whole, name) if hour == last_evening} == {1}


def test_the_hour_that_comes_twice_when_summer_time_ends_is_two_cells(whole):
    hours = {(hour, origin) for _, hour, origin in months_and_hours(whole, "weather", "origin")}
    assert {(dt.datetime(2013, 11, 3, hour), "JFK") for hour in (5, 6)} <= hours


def test_a_missing_tail_number_is_called_unknown(whole):
    tails = [tail for *_, tail in months_and_hours(whole, "flights", "tailnum")]
    assert (tails.count("unknown"), tails.count(None)) == (2512, 0)


def test_whole_numbers_are_integers_unless_they_have_gaps(whole):
    delays = Snapshot(whole).cube("flights").members["delays"].table.types
    assert (delays["dep_delay"], delays["arr_delay"]) == (pa.int64(), pa.float64())


def test_every_departed_flight_and_nearly_every_hour_finds_its_partner(whole):
    key = ["month", "time_hour", "origin"]
    tables = {}
    for name in ("flights", "delays", "weather"):
        table = Snapshot(whole).dataset(f"flights++{name}").tables["table"]
        parts = []
        for i, file in enumerate(table.files):
            rows = pq.read_table(pa.BufferReader(whole.read(file)))
            month = table.partitions.tuples[table.partitions.part_of_file[i]][0]
            parts.append(rows.append_column("month", pa.array([month] * rows.num_rows)))
        tables[name] = pa.concat_tables(parts)
    assert [t.num_rows for t in tables.values()] == [336_776, 328_521, 26_115]
    cells = [*key, "carrier", "flight"]
    assert tables["delays"].join(tables["flights"].select(cells), cells, join_type="left semi").num_rows == 328_521
    by_hour = tables["flights"].join(tables["weather"].select(key[1:]), key[1:], join_type="left semi").num_rows
    # The month in the join key loses no partner, not even at the borders of months.
    assert tables["flights"].join(tables["weather"].select(key), key, join_type="left semi").num_rows == by_hour
    assert by_hour == 335_220


def test_the_title_of_the_first_demo_query_tells_the_truth(whole):
    title, sql = demo.DEMO_QUERIES[0]
    table = Snapshot(whole).cube("flights").seed.table
    index = pq.read_table(pa.BufferReader(whole.read(table.indices["tailnum"].key)))
    tail = sql.split("tailnum = '")[1].split("'")[0]
    labels = index.filter(pc.equal(index["tailnum"], tail))["partition"].to_pylist()
    assert [len(names) for names in labels] == [2]
    assert len(table.files) == 12
    assert "2 of 12" in title


@pytest.mark.parametrize(("title", "sql"), demo.DEMO_QUERIES)
def test_the_demo_queries_have_answers(whole, title, sql):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as con:
        for name in ("flights", "delays", "weather"):
            con.execute(f"CREATE VIEW {name}_ AS FROM read_parquet('{whole.root}/flights++{name}/table/*/*.parquet')")
        con.execute(
            "CREATE VIEW flights AS FROM flights_ LEFT JOIN delays_ USING (month, time_hour, origin, carrier, flight) "
            "LEFT JOIN weather_ USING (month, time_hour, origin)"
        )
        rows = con.execute(sql).fetchall()
    assert 1 < len(rows) < 100
