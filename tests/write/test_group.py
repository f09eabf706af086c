"""Appends that wait for their turn together: one document for all, a version for each, each exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from rivals import Died
from test_crashes import check_indices

import kartosql
from kartosql.errors import KartosqlWarning
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import OutcomeUnknown, Store, turns
from kartosql.write import commit, datasets
from kartosql.write.operation import Operation

pytest.importorskip("fcntl")
OWN, WAITING = 10, (20, 21, 22)
CALLS = ("read_versioned", "read_metadata", "put_if", "output", "delete", "list_below")


@pytest.fixture(autouse=True)
def folders(tmp_path_factory, monkeypatch) -> Path:
    """Let queue and offers lie in a folder of their own."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder / f"kartosql-{os.getuid()}.offers"


@pytest.fixture
def place(tmp_path) -> str:
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", rows(0), partition_on=["p"], index_columns=["i"])
    return str(tmp_path)


def rows(i: int) -> pa.Table:
    return pa.table({"p": [i % 2], "i": [i], "v": [str(i)]})


def append(store: Store, i: int, **more) -> dict:
    return datasets.append_to_dataset(Operation(store, "append_to_dataset"), "d", rows(i), **more)


@contextlib.contextmanager
def waiting(place: str, folder: Path, found: list[dict], **more: object) -> Iterator[None]:
    """Have the turn while others wait for theirs, which come when it ends."""

    def wait(i: int) -> None:
        try:
            found.append(append(Store(place), i, **more))
        except kartosql.KartosqlError as e:
            found.append({"error": e})

    threads = [threading.Thread(target=wait, args=(i,)) for i in WAITING]
    with Store(place).turn("d"):
        for thread in threads:
            thread.start()
        while not folder.exists() or len([n for n in os.listdir(folder) if "." not in n]) < len(threads):
            time.sleep(0.001)
        yield
    for thread in threads:
        thread.join()


def documents(monkeypatch) -> list[int]:
    """Return a list that gets an item for each document that is put."""
    found: list[int] = []
    plain = commit.swap
    monkeypatch.setattr(commit, "swap", lambda *given: (found.append(1), plain(*given))[1])
    return found


def check_all(place: str, expected: list[int]) -> None:
    store = Store(place)
    check_indices(store, Snapshot(store).dataset("d").tables["table"])
    with kartosql.connect(place) as con:
        assert sorted(con.sql("SELECT i FROM d").rows()) == [(i,) for i in expected]
        assert [found for found in con.sql("CHECK d FULL").rows() if found[2] != "info"] == []
        assert con.sql("SELECT i FROM d AT (VERSION => 1)").rows() == [(0,)]
        for i in (*WAITING, OWN):
            assert con.sql("SELECT i FROM d WHERE i = ?", [i]).rows() == [(i,)] * expected.count(i)


def test_appends_that_wait_become_one_document_and_a_version_each(place, folders, monkeypatch):
    put, found = documents(monkeypatch), []
    with waiting(place, folders, found):
        own = append(Store(place), OWN)
    assert len(put) == 1
    assert own["sequence"] == 2
    assert sorted(one["sequence"] for one in found) == [3, 4, 5]
    assert os.listdir(folders) == []
    check_all(place, [0, OWN, *WAITING])
    with kartosql.connect(place) as con:
        history = con.history("d").rows()
        assert [(h[0], *h[2:6]) for h in history[1:]] == [(n, "append_to_dataset", 1, 1, 0) for n in (2, 3, 4, 5)]
        ids = {one["sequence"]: one["id"] for one in [own, *found]}
        assert [h[6] for h in history[1:]] == [ids[n] for n in (2, 3, 4, 5)]
        came: list[int] = [0]
        for number in range(2, 6):
            came += [i for i, *_ in con.sql(f"SELECT i FROM changes('d', {number - 1}, {number})").rows()]
            at = f"d AT (VERSION => {number})"
            assert sorted(con.sql(f"SELECT i FROM {at}").rows()) == [(i,) for i in sorted(came)]
            # The index of this version names files of later ones.
            answers = con.sql(f"SELECT count(*), max(i), count(DISTINCT i) FROM {at} WHERE i >= 0").rows()
            assert answers == [(len(came), max(came), len(came))]
            for i in WAITING:
                assert con.sql(f"SELECT i FROM {at} WHERE i = {i}").rows() == [(i,)] * came.count(i)
        con.restore("d", 3)
        assert sorted(con.sql("SELECT i FROM d").rows()) == [(i,) for i in sorted(came[:3])]
        assert con.sql("CHECK d FULL").rows() == []


def steps(store: Store, monkeypatch, step: Callable[[str], None]) -> None:
    """Call ``step`` before and after each call of a store, and whenever others are told something."""

    def wrap(name: str, call: Callable) -> Callable:
        def called(*given, **named):
            step(name)
            result = call(*given, **named)
            step(name)
            return result

        return called

    for name in CALLS:
        setattr(store, name, wrap(name, getattr(store, name)))
    monkeypatch.setattr(turns.Taken, "say", wrap("say", turns.Taken.say))


def test_nothing_is_lost_or_doubled_where_the_writer_who_took_it_along_dies_anywhere(tmp_path, folders, monkeypatch):
    found: list[dict] = []
    number = ended = 0
    while not ended:
        folder = str(tmp_path / str(number))
        os.mkdir(folder)
        with kartosql.connect(folder) as con:
            con.create_dataset("d", rows(0), partition_on=["p"], index_columns=["i"])
        left = [number]
        found.clear()

        def step(name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise Died(name)

        with waiting(folder, folders, found), monkeypatch.context() as patched:
            store = Store(folder)
            own = datasets.append_to_dataset
            steps(store, patched, step)
            try:
                own(Operation(store, "append_to_dataset"), "d", rows(OWN))
                ended = 1
            except Died:
                pass
        assert [one for one in found if "error" in one] == [], number
        numbers = sorted(one["sequence"] for one in found)
        assert len(set(numbers)) == len(numbers), number
        with kartosql.connect(folder) as con:
            is_there = con.sql("SELECT count(*) FROM d WHERE i = ?", [OWN]).rows()[0][0]
        check_all(folder, [0, *[OWN] * is_there, *WAITING])
        number += 1
    assert number > 15


def test_a_writer_who_hangs_with_appends_of_others_does_not_commit_them_again(place, folders, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.05)
    found: list[dict] = []
    store = Store(place)
    plain = store.put_if

    def hang(*given):
        while len(found) < len(WAITING):
            time.sleep(0.001)
        return plain(*given)

    with waiting(place, folders, found):
        store.put_if = hang
        own = append(store, OWN)
    assert sorted([own["sequence"], *(one["sequence"] for one in found)]) == [2, 3, 4, 5]
    check_all(place, [0, OWN, *WAITING])


def test_a_put_for_one_that_happened_behind_a_lost_one_for_all_counts_for_its_writer_alone(place, folders, monkeypatch):
    plain, found, calls = commit.swap, [], []

    def swap(store, document, head):
        calls.append(document)
        if len(calls) == 1:
            raise OutcomeUnknown("it did not happen")
        done = plain(store, document, head)
        if len(calls) == 2:
            raise OutcomeUnknown("it happened")
        return done

    monkeypatch.setattr(commit, "swap", swap)
    with waiting(place, folders, found):
        own = append(Store(place), OWN)
        assert own["sequence"] == 2
        assert len(calls) == 2
    assert sorted(one["sequence"] for one in found) == [3, 4, 5]
    check_all(place, [0, OWN, *WAITING])
    with kartosql.connect(place) as con:
        assert con.sql("SELECT i FROM d AT (VERSION => 2)").rows() == [(0,), (OWN,)]


def test_a_writer_whose_wait_fails_asks_what_became_of_his_append(place, folders, monkeypatch):
    found: list[dict] = []
    real = turns.blocking

    def fails(*given: object) -> bool:
        real(*given)
        raise OSError("no locks available")

    monkeypatch.setattr(turns, "blocking", fails)
    with waiting(place, folders, found):
        puts = documents(monkeypatch)
        append(Store(place), OWN)
    assert puts == [1]
    assert sorted(one["sequence"] for one in found) == [3, 4, 5]
    check_all(place, [0, OWN, *WAITING])


def test_an_append_is_committed_by_itself_if_it_is_unlike_the_other(place, folders, monkeypatch):
    put, found = documents(monkeypatch), []
    with waiting(place, folders, found, metadata={"k": 1}):
        append(Store(place), OWN)
    assert len(put) == 2  # those that wait are alike
    check_all(place, [0, OWN, *WAITING])
    with kartosql.connect(place) as con:
        assert ("k", "1") in con.sql("SHOW METADATA FROM d").rows()


def test_appends_that_cannot_be_committed_leave_those_of_others(place, folders):
    found: list[dict] = []
    with waiting(place, folders, found):
        with kartosql.connect(place) as con, pytest.raises(kartosql.KartosqlError):
            con.append_to_dataset("d", pa.table({"p": [1], "i": [1], "w": [1]}))
        assert len(os.listdir(folders)) == len(WAITING)
    check_all(place, [0, *WAITING])


def test_errors_are_those_of_each_append(place, folders):
    found: list[dict] = []
    with waiting(place, folders, found), kartosql.connect(place) as con:
        con.delete_dataset("d")
    assert sorted(one["error"].code for one in found) == ["concurrent-commit"] * len(WAITING)


def test_what_another_program_wrote_last_is_met_by_each_alone(place, folders, monkeypatch):
    found: list[dict] = []
    put = documents(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        with waiting(place, folders, found):
            path = Path(place, "d.by-dataset-metadata.json")
            path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "indices"}))
            append(Store(place), OWN)
    assert len(put) > 1
    with kartosql.connect(place) as con:
        assert sorted(con.sql("SELECT i FROM d").rows()) == [(i,) for i in (0, OWN, *WAITING)]


# -- offers ----------------------------------------------------------------------------------------


def test_offers_of_the_dead_and_damaged_ones_are_left_out(place, folders, monkeypatch):
    found: list[dict] = []
    with waiting(place, folders, found):
        begin = turns._begin(f"{place}/d")
        Path(f"{begin}0-dead").write_bytes(b"{}")
        Path(f"{begin}0-dead.taken").write_bytes(b"{}")
        damaged = turns.OfferedWrite(f"{place}/d", b"{no")
        damaged.make()
        append(Store(place), OWN)
    assert damaged.withdrawn() is None
    assert os.listdir(folders) == []
    check_all(place, [0, OWN, *WAITING])


@pytest.mark.parametrize("harm", ["mode", "link", "file", "full"])
def test_without_a_place_for_offers_each_writer_commits_by_himself(place, folders, harm, monkeypatch, tmp_path):
    if harm == "mode":
        folders.mkdir()
        folders.chmod(0o777)
    elif harm == "link":
        folders.symlink_to(tmp_path)
    elif harm == "file":
        folders.write_text("")
    else:
        monkeypatch.setattr(os, "write", lambda fd, data: 0)
    offer = turns.OfferedWrite(f"{place}/d", b"x")
    offer.make()
    assert offer.withdrawn() is None
    assert list(turns.take(turns.offers(f"{place}/d"), 5)) == []


def test_an_offer_tells_what_became_of_it(place):
    offer, untaken = turns.OfferedWrite(f"{place}/d", b"x"), turns.OfferedWrite(f"{place}/d", b"y")
    offer.make()
    untaken.make()
    (taken,) = turns.take(turns.offers(f"{place}/d"), 1)
    assert taken.content == b"x"
    assert untaken.withdrawn() is None
    taken.say(7, is_done=False)
    taken.say(7, is_done=True)
    assert offer.withdrawn() == (True, 7)
    offer.make()
    (taken,) = turns.take(turns.offers(f"{place}/d"), 1)
    assert offer.withdrawn() == (False, 0)
    taken.say(8, is_done=True)  # too late, which does no harm
    taken.give_back()
    assert list(turns.take(turns.offers(f"{place}/d"), 1)) == []
