from __future__ import annotations

import random
import warnings

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlWarning
from kartosql.store import Store
from kartosql.write.change import GRACE, Change
from kartosql.write.check import check, repair
from kartosql.write.commit import commit
from kartosql.write.compact import compact
from kartosql.write.operation import Operation
from write.rivals import adding, content, in_partition, values, watched


@pytest.fixture
def made(local):
    commit(local, adding(local, "d", {1: "a", 2: "b"}, "create", create=True))
    return local


def mend(store):
    with kartosql.connect(store.url) as con, warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        found = con.check("d", repair=True)
        left = [f for f in con.check("d") if f.severity != "info"]
    return found, left


def blind(store, stale, value=None):
    """Write a document as an original does that read it before: its own partition, and an index of what it knows."""
    if value is not None:
        key = f"d/table/p=3/{value}.parquet"
        store.put(key, builders.parquet({"i": [value], "x": [3]}))
        stale["partitions"][f"p=3/{value}"] = {"files": {"table": key}}
    rows: dict[str, list[str]] = {}
    for label, entry in stale["partitions"].items():
        rows.setdefault(builders.read_parquet(store, entry["files"]["table"])["i"][0].as_py(), []).append(label)
    index = f"d/indices/i/{random.random()}.by-dataset-index.parquet"
    store.put(index, builders.parquet({"i": list(rows), "partition": list(rows.values())}))
    stale["indices"] = {"i": index}
    builders.write_document(store, stale)


def stale_document(store):
    return builders.read_document(store, "d")


def test_what_a_blind_overwrite_dropped_is_brought_back(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {1: "c"}))
    commit(made, adding(made, "d", {2: "e"}))
    blind(made, stale, "foreign")
    assert values(made, "d") == ["a", "b", "foreign"]
    found, left = mend(made)
    assert {f.check for f in found if f.repaired} == {"foreign-write", "lost-commit"}
    assert left == []
    assert values(made, "d") == ["a", "b", "c", "e", "foreign"]


def test_it_comes_before_what_was_committed_after_it(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {1: "old"}))
    blind(made, stale)
    with pytest.warns(KartosqlWarning):
        commit(made, adding(made, "d", {1: "new"}))
    mend(made)
    assert content(made, "d") == [("p=1", "a"), ("p=2", "b"), ("p=1", "old"), ("p=1", "new")]


def test_a_dropped_replacement_takes_the_old_rows_away_again(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {1: "c"}, "replace", removed=in_partition(1)))
    blind(made, stale)
    assert values(made, "d") == ["a", "b"]
    mend(made)
    assert values(made, "d") == ["b", "c"]


def test_a_dropped_removal_is_carried_out_again(made):
    stale = stale_document(made)
    commit(made, Change("d", "remove", removed=in_partition(2)))
    blind(made, stale)
    assert values(made, "d") == ["a", "b"]
    assert mend(made)[1] == []
    assert values(made, "d") == ["a"]


def test_what_a_later_dropped_commit_removed_stays_away(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {3: "x"}))
    commit(made, Change("d", "remove", removed=in_partition(3)))
    commit(made, adding(made, "d", {1: "y"}))
    blind(made, stale)
    mend(made)
    assert values(made, "d") == ["a", "b", "y"]


def test_what_was_removed_after_the_repair_stays_away(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {3: "x"}))
    blind(made, stale)
    mend(made)
    assert values(made, "d") == ["a", "b", "x"]
    commit(made, Change("d", "remove", removed=in_partition(3)))
    found, left = mend(made)
    assert [f for f in found if f.severity != "info"] == left == []
    document = stale_document(made)
    document["partitions"] = {k: v for k, v in document["partitions"].items() if k.startswith("p=1")}
    blind(made, document)
    mend(made)
    assert values(made, "d") == ["a"]


def test_rows_that_a_later_commit_replaced_are_not_brought_back_by_a_dropped_one(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {1: "lost"}, "replace", removed=in_partition(1)))
    blind(made, stale)
    with pytest.warns(KartosqlWarning):
        commit(made, adding(made, "d", {1: "newest"}, "replace", removed=in_partition(1)))
    found, _ = mend(made)
    assert [f.repairable for f in found if f.check == "lost-commit"] == [False]
    assert values(made, "d") == ["b", "newest"]


def test_a_dropped_compaction_is_done_again_in_its_place(tmp_path):
    with kartosql.connect(tmp_path) as con:
        for n in range(3):
            rows = pa.table({"p": [1, 2], "i": [f"u{n}", f"v{n}"], "x": [n, n]})
            con.create_dataset("d", rows, partition_on="p", index_columns="i") if not n else con.append_to_dataset(
                "d", rows
            )
        stale = stale_document(con.store)
        before = con.sql("SELECT * FROM d ORDER BY ALL").rows()
        compact(Operation(con.store, "compact"), "d")
        builders.write_document(con.store, stale)
        found, left = mend(con.store)
        assert left == []
        assert any(f.repaired for f in found)
        assert con.sql("SELECT * FROM d ORDER BY ALL").rows() == before
        assert len(stale_document(con.store)["partitions"]) == 2


def test_wrong_and_missing_indices_are_built_again(made):
    document = stale_document(made)
    made.put(document["indices"]["i"], builders.parquet({"i": ["a"], "partition": [["nowhere"]]}))
    found, left = mend(made)
    assert ([f.check for f in found if f.repaired], left) == (["index"], [])
    assert values(made, "d") == ["a", "b"]
    made.delete([stale_document(made)["indices"]["i"]])
    assert mend(made)[1] == []
    assert values(made, "d") == ["a", "b"]


def test_a_missing_index_does_not_keep_lost_commits_away(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {1: "c"}))
    blind(made, stale)
    made.delete([stale_document(made)["indices"]["i"]])
    assert mend(made)[1] == []
    assert values(made, "d") == ["a", "b", "c"]


def test_a_foreign_state_is_adopted(made):
    document = stale_document(made)
    document["metadata"].pop("kartosql_commit")
    blind(made, document, "foreign")
    found, left = mend(made)
    assert ([f.check for f in found if f.repaired], left) == (["foreign-write"], [])
    assert values(made, "d") == ["a", "b", "foreign"]


def test_a_check_alone_changes_nothing(made):
    stale = stale_document(made)
    commit(made, adding(made, "d", {1: "c"}))
    blind(made, stale)
    before = {k: made.read(k) for k in [*made.list_below("d/"), "d.by-dataset-metadata.json"]}
    with kartosql.connect(made.url) as con:
        assert any(f.repairable for f in con.check("d"))
    assert {k: made.read(k) for k in [*made.list_below("d/"), "d.by-dataset-metadata.json"]} == before


@pytest.mark.parametrize("seed", range(12))
def test_after_a_repair_everything_is_there_that_was_committed_and_not_removed(made, seed):
    """Appends and removals by kartosql, and overwrites by a program that read the document some time before."""
    rng = random.Random(seed)
    expected = {"a": 1, "b": 2}
    read: list[dict] = [stale_document(made)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        for round_ in range(3):
            for n in range(rng.randint(1, 5)):
                if rng.random() < 0.75:
                    p, value = rng.randint(1, 3), f"{round_}.{n}"
                    commit(made, adding(made, "d", {p: value}))
                    expected[value] = p
                else:
                    p = rng.randint(1, 3)
                    commit(made, Change("d", "remove", removed=in_partition(p)))
                    expected = {v: q for v, q in expected.items() if q != p}
                read.append(stale_document(made))
            blind(made, rng.choice(read[-4:]), f"foreign{round_}")
            expected[f"foreign{round_}"] = 3
            assert mend(made)[1] == []
            assert values(made, "d") == sorted(expected)
            read = [stale_document(made)]


def test_a_store_in_memory_is_mended_as_well():
    store = Store("memory://mended")
    commit(store, adding(store, "d", {1: "a"}, "create", create=True))
    stale = stale_document(store)
    commit(store, adding(store, "d", {1: "c"}))
    blind(store, stale)
    assert mend(store)[1] == []
    assert values(store, "d") == ["a", "c"]


def at_each_call(local, act, meanwhile, start):
    """Act once for each call of the store, before which somebody else commits; yield the answers with the store."""
    for at in range(1000):
        place = Store(f"{local.url}/{act.__name__}-{at}", create=True)
        start(place)
        other, reached = watched(place), False

        def hook(number, when, name, key, at=at, place=place):
            nonlocal reached
            if when == "before" and number == at:
                reached = True
                meanwhile(Store(place.url))

        other.hook = hook
        answer = act(other)
        if not reached:
            return
        yield answer, place
    raise AssertionError("it does not end")


def replace_twice(store):
    commit(store, adding(store, "d", {1: "later"}))
    commit(store, adding(store, "d", {1: "last"}, removed=in_partition(1)))


def test_a_check_takes_no_commit_that_comes_meanwhile_for_a_lost_one(local):
    def start(store):
        commit(store, adding(store, "d", {1: "a", 2: "b"}, "create", create=True))

    def checked(store):
        return [f for f in check(store, ["d"], None, GRACE, full=False) if f.severity != "info"]

    answers = [found for found, _ in at_each_call(local, checked, replace_twice, start)]
    assert len(answers) > 5
    assert not any(f.check == "lost-commit" for found in answers for f in found), answers


@pytest.mark.filterwarnings("ignore::kartosql.errors.KartosqlWarning")
def test_a_repair_brings_nothing_back_that_was_removed_meanwhile(local):
    def start(store):
        commit(store, adding(store, "d", {1: "a", 2: "b"}, "create", create=True))
        stale = stale_document(store)
        commit(store, adding(store, "d", {2: "lost"}))
        blind(store, stale, "foreign")

    def repaired(store):
        found = check(Store(store.url), ["d"], None, GRACE, full=False)
        return repair(store, "d", found, GRACE)

    left = [values(store, "d") for _, store in at_each_call(local, repaired, replace_twice, start)]
    assert len(left) > 5
    assert all(found == ["b", "foreign", "last", "lost"] for found in left), left
