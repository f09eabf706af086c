"""Stores whose answers get lost: the old or the new state, an error that says which, no file deleted that is needed.

The store has no conditional writes, so what was sent may arrive at any time. CI loses each answer of a few
operations; KARTOSQL_LOST=all does so of all of them.
"""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any, NamedTuple

import pytest

import kartosql
from kartosql.errors import KartosqlError, StoreError
from kartosql.formats.kartothek.naming import place_in
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.odf.chain import check_data, read_chain
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store
from kartosql.write import commit as commits
from kartosql.write import recovery
from lossy_files import FATES, WRITES, Fault, LossyFiles, copy_store
from write.test_crashes import check_indices, rows_of
from writing import operations
from writing.operations import OPERATIONS

FEW = ("append", "append to two")
UNCHANGED = ("compact dataset", "clean up")
DOCUMENT_PUT = ("pipe_file", "lost/c++seed.by-dataset-metadata.json")
MANY = os.environ.get("KARTOSQL_LOST") == "all"

pytestmark = pytest.mark.timeout(7200 if MANY else 600)


class State(NamedTuple):
    """What readers see of a dataset."""

    rows: list[str]
    columns: tuple[str, ...]
    indices: list[str]
    skipping: list[str]
    history: bool


def connect(url: str) -> kartosql.Connection:
    return kartosql.connect(url, single_writer=True)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    # Others that stand still are not waited for: they have ended.
    monkeypatch.setattr(recovery, "INTENT_SECONDS", 0.001)


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    with connect("lossy://prepared") as con:
        operations.fill(con)
    yield
    LossyFiles.fault = Fault()
    LossyFiles.stores.clear()


def state_of(url: str) -> dict[str, State]:
    """Return all that readers of a store see: rows, columns, indices and skipping indexes by dataset, and exports."""
    store = Store(url)
    snapshot = Snapshot(store)
    members = [f"{name}++{member}" for name in snapshot.cubes() for member in snapshot.cube(name).members]
    found: dict[str, State] = {}
    for uuid in [*members, *(key for key in snapshot.keys if "++" not in key)]:
        dataset = snapshot.dataset(uuid)
        for table in dataset.tables.values():
            check_indices(store, table)
            place = place_in(table.metadata, uuid)
            below = MetadataStore.below(store, place.folder).indexes if place is not None else ()
            skipping = [index.column for index in below]
            history = bool(dataset.document.metadata.get("kartosql_schema_history"))
            columns = tuple(table.schema.names)
            found[uuid] = State(rows_of(store, table), columns, sorted(table.indices), skipping, history)
    if (chain := exported_chain(f"{url}-odf")) is not None:
        found["export"] = State(
            [str(s.rows) for s in chain.slices], (), [link.block.kind for link in chain.links], [], True
        )
    return found


def exported_chain(url: str) -> Any:
    """Return the chain that an export wrote, with every block and file of data checked; None without a head."""
    store = Store(url)
    try:
        store.size("refs/head")
    except KeyError:
        return None
    chain = read_chain(store.read)
    for one in chain.slices:
        check_data(store.read(one.key), one)
    return chain


def run(name: str, fault: Fault) -> str | None:
    """Carry an operation out on a copy of the store, and return the code of its error."""
    LossyFiles.stores.pop("lost-odf", None)
    with connect(copy_store("prepared", "lost")) as con:
        LossyFiles.fault = fault
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", kartosql.KartosqlWarning)
                OPERATIONS[name](con)
        except KartosqlError as e:
            return e.code
        finally:
            LossyFiles.fault = Fault()
    return None


@pytest.mark.parametrize("name", OPERATIONS if MANY else FEW)
def test_a_lost_answer_leaves_the_old_or_the_new_state_and_the_error_says_which(name):
    old = state_of("lossy://prepared")
    assert run(name, Fault()) is None
    new = state_of("lossy://lost")
    assert (new == old) == (name in UNCHANGED)
    seen = set()
    for fate in FATES:
        for at in itertools.count():
            fault = Fault(at, fate)
            code = run(name, fault)
            if not fault.was_met:
                break
            if fate in FATES[2:] and fault.calls[at][0] not in WRITES:
                continue  # nothing could come late
            where = f"{fate} call {at}, {' '.join(fault.calls[at])}: {code}"
            if fate != "overdue":
                fault.arrive()
            found = state_of("lossy://lost")
            assert found in (old, new), where
            assert code in (None, "store-failed", "commit-unknown"), where
            if code != "commit-unknown":
                assert found == (new if code is None else old), where
            seen.add(found == new)
            write_on("lossy://lost", found, where)
            if name.startswith("export"):
                write_export("lossy://lost", name, found == new)
            fault.arrive()
            state_of("lossy://lost")  # every file that is named is there, whatever comes how late
    assert seen == {True, False} or name in UNCHANGED


def write_export(url: str, name: str, is_there: bool) -> None:
    """Export again, which is refused only where an export came to its end."""
    with connect(url) as con:
        if not is_there:
            OPERATIONS[name](con)
        with pytest.raises(KartosqlError) as e:
            OPERATIONS[name](con)
        assert e.value.code == "dataset-exists"


def write_on(url: str, before: dict[str, State], where: str) -> None:
    """Commit to what is there, or make it, and see it."""
    with connect(url) as con, warnings.catch_warnings():
        warnings.simplefilter("ignore", kartosql.KartosqlWarning)
        if "c++seed" not in before:
            con.build_cube(operations.CUBE, {"seed": operations.seed(9), "en": operations.en(9)})
        else:
            is_old = "v" in before["c++seed"].columns
            con.append_to_cube("c", {"seed": operations.seed(9) if is_old else operations.OTHER_SEED})
        if "d" not in before:
            con.create_dataset("d", operations.plain(9), partition_on="q")
        else:
            is_old = before["d"].columns == ("q", "s")
            con.append_to_dataset("d", operations.plain(9) if is_old else operations.en(9))
    after = state_of(url)
    for uuid in ("c++seed", "d"):
        assert len(after[uuid].rows) > (len(before[uuid].rows) if uuid in before else 0), where


def test_a_commit_that_a_late_write_undid_is_found_and_brought_back():
    at = next(n for n, call in enumerate(calls_of("append")) if call == DOCUMENT_PUT)
    fault = Fault(at, "overdue")
    assert run("append", fault) is None
    with connect("lossy://lost") as con:
        con.append_to_cube("c", {"seed": operations.seed(9)})
        both = state_of("lossy://lost")["c++seed"].rows
        fault.arrive()
        assert len(state_of("lossy://lost")["c++seed"].rows) == len(both) - 1
        assert "lost-commit" in {f.check for f in con.check("c")}
        con.check("c", repair=True)
    assert state_of("lossy://lost")["c++seed"].rows == both


def test_a_single_writer_carries_out_first_what_was_left_behind(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(commits, "finish", failing)
        assert run("append to two", Fault()) is None
    before = state_of("lossy://lost")
    with connect("lossy://lost") as con:
        con.append_to_cube("c", {"en": operations.en(9)})
    assert len(state_of("lossy://lost")["c++en"].rows) == len(before["c++en"].rows) + 1


def failing(*args):
    raise StoreError("no answer")


def test_a_store_that_never_answers_ends_in_commit_unknown_and_keeps_the_files():
    class Silent(Fault):
        def meet(self, name, path, carry_out):
            if (name, path) == DOCUMENT_PUT:
                raise TimeoutError("no answer")
            return super().meet(name, path, carry_out)

    fault = Silent()
    assert run("append", fault) == "commit-unknown"
    assert not any(name == "rm_file" and path.endswith(".parquet") for name, path in fault.calls)


def calls_of(name: str) -> list[tuple[str, str]]:
    fault = Fault()
    run(name, fault)
    return fault.calls
