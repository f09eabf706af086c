"""Operations that end in the middle: readers see the old or the new state, and writing goes on."""

from __future__ import annotations

import datetime as dt
import os
import uuid
import warnings
from functools import cache
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write import cubes, datasets
from kartosql.write.check import check
from kartosql.write.operation import Operation
from kartosql.write.removal import Removal

pytestmark = pytest.mark.usefixtures("impatient")

CUBE = Cube("c", "x", "p", index_columns="i")
SEED = pa.table({"x": [1, 2], "p": ["a", "b"], "i": ["u", "v"], "v": [10, 20]})
EN = pa.table({"x": [1, 2], "p": ["a", "b"], "w": [0.5, None]})
PLAIN = pa.table({"p": ["a", "b"], "s": ["k", "l"]})
MUTATING = ("put", "put_if", "delete", "delete_if", "output")


class Crash(BaseException):
    """The end of the process."""


def dying(store, number, *, done):
    """Let the ``number``-th call that changes the store be the last one, carried out (``done``) or not."""
    calls = 0

    def wrap(function):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls > number or (calls == number and not done):
                raise Crash
            result = function(*args, **options)
            if calls == number:
                raise Crash
            return result

        return call

    for name in MUTATING:
        setattr(store, name, wrap(getattr(store, name)))
    return lambda: calls


def rows_of(store, table):
    found = []
    for at, key in enumerate(table.files):
        values = table.partitions.tuples[table.partitions.part_of_file[at]] if table.partition_keys else ()
        keys = dict(zip(table.partition_keys, values, strict=True))
        found += [repr(sorted((row | keys).items())) for row in pq.read_table(_file(store, key)).to_pylist()]
    return sorted(found)


def _file(store, key):
    return pa.BufferReader(store.read(key))


def check_indices(store, table):
    for column, index in table.indices.items():
        stored = {r[column]: set(r["partition"]) for r in pq.read_table(_file(store, index.key)).to_pylist()}
        real = {}
        for label, key in zip(table.labels, table.files, strict=True):
            for value in pq.read_table(_file(store, key))[column].to_pylist():
                if value is not None:
                    real.setdefault(value, set()).add(label)
        assert stored == real


def state_of(store):
    """Return all that a reader sees: rows, columns and indices by dataset."""
    snapshot = Snapshot(store)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = {f"c++{n}" for n in snapshot.cube("c").members} if "c" in snapshot.cubes() else set()
    for uuid_ in sorted(names | ({"d"} & set(snapshot.keys))):
        table = snapshot.dataset(uuid_).tables["table"]
        check_indices(store, table)
        found[uuid_] = (rows_of(store, table), tuple(table.schema.names), sorted(table.indices))
    return found


def errors_of(store):
    """Return what is said to be wrong with datasets that are there; what is under way is no error."""
    snapshot = Snapshot(store)
    names = [f"c++{n}" for n in snapshot.cube("c").members] if "c" in snapshot.cubes() else []
    names += {"d"} & set(snapshot.keys)
    found = check(store, names, None, dt.timedelta(days=7), full=False)
    return [f for f in found if f.severity == "error" or f.check in ("foreign-write", "lost-commit")]


def prepare(store):
    cubes.build_cube(Operation(store, "build_cube"), CUBE, {"seed": SEED, "en": EN})
    datasets.create_dataset(Operation(store, "create_dataset"), "d", PLAIN, partition_on="p", index_columns="s")


@cache
def prepared():
    """Return a prepared store as files by their keys, and what readers see of it."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    prepare(store)
    return {key: store.read(key) for key in store.details()}, state_of(store)


def stored(name):
    """Return a new store in which an operation can be carried out."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    if name != "build":
        for key, data in prepared()[0].items():
            store.put(key, data)
    return store


def at(store):
    return Operation(store, "test")


def of_a(table):
    return [label for label in table.labels if label.startswith("p=a/")]


REMOVAL = Removal(frozenset("p"), of_a)
OTHER_SEED = pa.table({"x": ["1"], "p": [7], "i": [3]})
OPERATIONS = {
    "build": lambda s: cubes.build_cube(at(s), Cube("c", "x", "p"), {"seed": SEED, "en": EN}),
    "rebuild": lambda s: cubes.build_cube(
        at(s), CUBE, {"seed": OTHER_SEED, "en": pa.table({"x": ["1"], "p": [7], "new": [1]})}, overwrite=True
    ),
    "extend": lambda s: cubes.extend_cube(at(s), CUBE, {"k": EN.rename_columns(["x", "p", "k"])}),
    "extend by two": lambda s: cubes.extend_cube(
        at(s), CUBE, {name: EN.rename_columns(["x", "p", name]) for name in ("k", "l")}
    ),
    "append": lambda s: cubes.update_cube(at(s), CUBE, {"seed": SEED}),
    "append to two": lambda s: cubes.update_cube(at(s), CUBE, {"seed": SEED, "en": EN}),
    "update": lambda s: cubes.update_cube(at(s), CUBE, {"seed": SEED, "en": EN}, removal=REMOVAL),
    "remove": lambda s: cubes.remove_partitions(at(s), CUBE, REMOVAL),
    "delete": lambda s: cubes.delete_cube(at(s), CUBE),
    "delete one": lambda s: cubes.delete_cube(at(s), CUBE, "en"),
    "create dataset": lambda s: datasets.create_dataset(
        at(s), "d", pa.table({"s": [1], "z": [2]}), index_columns="s", overwrite=True
    ),
    "append to dataset": lambda s: datasets.append_to_dataset(at(s), "d", PLAIN),
    "replace": lambda s: datasets.append_to_dataset(at(s), "d", PLAIN, replace_partitions=True),
    "delete from dataset": lambda s: datasets.delete_from_dataset(at(s), "d", REMOVAL),
    "delete dataset": lambda s: datasets.delete_dataset(at(s), "d"),
    "create index": lambda s: datasets.create_index(at(s), "c.en", "w"),
    "drop index": lambda s: datasets.drop_index(at(s), "d", "s"),
}


def at_each_step(name, done):
    """Yield the store after an end of the operation at each of its steps, with the states before and after.

    Unless KARTOSQL_CRASHES is all, every second step is tried: what is there after one step is there before the next.
    """
    for number in count(1, 1 if os.environ.get("KARTOSQL_CRASHES") == "all" else 2):
        store = stored(name)
        steps = dying(store, number, done=done)
        try:
            OPERATIONS[name](store)
        except Crash:
            yield number, Store(store.url), {} if name == "build" else prepared()[1]
            continue
        assert steps() < number
        return


def after(name):
    store = stored(name)
    OPERATIONS[name](store)
    return state_of(store)


@pytest.mark.filterwarnings("ignore:.*holds NULL, which its index leaves out")
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_ends_at_any_step_shows_the_old_or_the_new_state(name, done):
    new = after(name)
    seen = []
    for number, store, old in at_each_step(name, done):
        found = state_of(store)
        assert found in (old, new), f"step {number}"
        seen.append(found == new)
        assert errors_of(store) == [], f"step {number}"
        rerun(name, store, found == new)
        if found != new:
            assert state_of(store) == new, f"after step {number}"
    assert seen, "the operation took no step"
    # Once it is visible, no later step takes it back.
    assert seen == sorted(seen)


def rerun(name, store, is_done):
    """Write again: the operation itself where it has not been done, else all of the cube anew."""
    if not is_done:
        OPERATIONS[name](store)
        return
    operation = at(store)
    others = {n: EN.rename_columns(["x", "p", n]) for n in cubes.begin(operation, CUBE) if n != "seed"}
    cubes.build_cube(operation, CUBE, {"seed": SEED, **others}, overwrite=True)
