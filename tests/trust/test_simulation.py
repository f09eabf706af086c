"""Some actors over one store, in orders that a seed chooses; ``python -m tests.trust`` tries more of them.

KARTOSQL_SIMULATIONS=0-9999 python -m pytest tests/trust/test_simulation.py --timeout 0
"""

from __future__ import annotations

import os

import pytest

import kartosql
from kartosql.store.keys import OutcomeUnknown
from mutated import misplaced
from trust import bugs, explorer, simulation
from trust.files import Place, simulated
from trust.model import START_D, Event, History
from trust.scheduler import FATES, Fault, NoEnd, Scheduler
from trust.simulation import Program

FIRST, _, LAST = os.environ.get("KARTOSQL_SIMULATIONS", "0-39").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
APART = 10


def shown(made: Program) -> None:
    if (error := simulation.failure(made)) is not None:
        raise AssertionError(
            f"{error}\n{simulation.shrunk(made, 100)}\npython -m tests.trust --seed {made.seed} --runs 1"
        )


@pytest.mark.parametrize("first", SEEDS[::APART])
def test_what_actors_do_at_once_is_as_if_they_did_it_one_after_the_other(first):
    for seed in range(first, min(first + APART, SEEDS.stop)):
        shown(simulation.program(seed))


def test_a_seed_leads_to_the_same_run_again():
    made = next(p for p in map(simulation.program, range(100)) if len(p.actors) > 2 and p.faults)
    first, second = simulation.run(made), simulation.run(made)
    assert [str(e) for e in first.events] == [str(e) for e in second.events]
    assert first.scheduler.steps == second.scheduler.steps


# -- it can fail ---------------------------------------------------------------------------------------


def event(name, *given, at, answer=None, outcome="ok", **more):
    return Event(0, name, given, *at, outcome, frozenset(answer) if answer is not None else None, **more)


ROW = ("a", "s1", 9)
HISTORIES = {
    "a row is there before it was appended": (
        [event("read_d", at=(1, 2), answer=[*START_D, ROW]), event("append_d", (ROW,), at=(3, 4))],
        False,
    ),
    "an acknowledged row is not there": (
        [event("append_d", (ROW,), at=(1, 2)), event("read_d", at=(3, 4), answer=START_D)],
        False,
    ),
    "a row is there and gone again": (
        [
            event("append_d", (ROW,), at=(1, 9)),
            event("read_d", at=(2, 3), answer=[*START_D, ROW]),
            event("read_d", at=(4, 5), answer=START_D),
        ],
        False,
    ),
    "what failed is there": (
        [event("append_d", (ROW,), at=(1, 2), outcome="failed"), event("read_d", at=(3, 4), answer=[*START_D, ROW])],
        False,
    ),
    "what is unknown may be there": (
        [
            event("append_d", (ROW,), at=(1, float("inf")), outcome="unknown"),
            event("read_d", at=(3, 4), answer=[*START_D, ROW]),
        ],
        True,
    ),
    "a row that was appended meanwhile stays": (
        [
            event("append_d", (ROW,), at=(2, 3)),
            event("delete_d", ("s", "s1"), at=(1, 6)),
            event("read_d", at=(4, 5), answer=[*START_D, ROW]),
            event("read_d", at=(7, 8), answer=[*(r for r in START_D if r[1] != "s1"), ROW]),
        ],
        True,
    ),
    "a row that was appended before stays": (
        [
            event("append_d", (ROW,), at=(1, 2)),
            event("delete_d", ("s", "s1"), at=(3, 4)),
            event("read_d", at=(7, 8), answer=[*(r for r in START_D if r[1] != "s1"), ROW]),
        ],
        False,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_the_model_tells_what_can_be_from_what_cannot(name):
    events, is_right = HISTORIES[name]
    assert History(START_D, events).is_sequential() == is_right


def test_versions_are_those_of_their_commits():
    events = [event("append_d", (ROW,), at=(1, 2), sequence=2)]
    assert History(START_D, events, {2: [START_D | {ROW}]}).is_sequential()
    assert not History(START_D, events, {2: [START_D]}).is_sequential()


def test_actors_that_do_not_end_are_told():
    scheduler = Scheduler(0)

    def act() -> None:
        while True:
            scheduler.pause()

    with pytest.raises(NoEnd):
        scheduler.run([act], [0.0])


@pytest.mark.parametrize("fate", FATES)
def test_each_fault_is_met(fate):
    at = 0 if fate == "days" else 9  # before it writes data
    made = Program("0", ((("append_d", (ROW,)), ("read_d",)), (("compact", "d"),)), (Fault(0, at, fate),), (0.0, 0.0))
    shown(made)
    assert simulation.run(made).met == 1


def test_who_hears_late_of_a_commit_is_told_its_version_and_not_that_of_a_later_one():
    put, answers = Place.put_if, []

    def lost(self, key, data, expected):  # the first answer, and another one commits before anybody looks again
        version = put(self, key, data, expected)
        if not answers and "by-dataset-metadata" in key:
            answers.append(key)
            other.append_to_dataset("d", simulation.table_d((("b", "s0", 51),)))
            raise OutcomeUnknown(key)
        return version

    with simulated(Scheduler(0), 0), kartosql.connect("sim://1/s") as con, kartosql.connect("sim://2/s") as other:
        con.create_dataset("d", simulation.table_d(START_D), partition_on=["q"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Place, "put_if", lost)
            version = con.append_to_dataset("d", simulation.table_d((ROW,)))["sequence"]
        rows = con.sql(f"SELECT q, s, n FROM d AT (VERSION => {version})").rows()
        assert {*rows} == START_D | {ROW}
    assert answers


# Programs that failed once.
FOUND = {
    "updates read what the other one changes": (
        Program("k0", ((("update_d", ("s", "s0"), "s2"),), (("update_d", ("s", "s2"), "s0"),)), (), (0.0, 0.0))
    )
}


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed_once(name):
    shown(FOUND[name])


def test_bugs_that_are_made_on_purpose_still_apply():
    assert misplaced(bugs.BUGS) == {}


def test_a_program_is_made_as_short_as_its_failure_lets_it(monkeypatch):
    def failing(made, done=None):
        return "found" if any(op[0] == "compact" for op in made.actors[0]) and made.faults else None

    made = Program(
        "0",
        ((("read_d",), ("compact", "d"), ("clean", "d")), (("read_d",),)),
        (Fault(0, 1, "late"), Fault(1, 1, "slow")),
        (5.0, 0.0),
        True,
    )
    monkeypatch.setattr(simulation, "failure", failing)
    assert simulation.shrunk(made) == Program("0", ((("compact", "d"),), ()), (Fault(1, 1, "slow"),), (0.0, 0.0), False)


LAKE = ("append_l", "delete_l", "compact_l", "read_l", "find_l")


@pytest.mark.parametrize("is_blind", [False, True])
def test_programs_that_write_a_delta_table_do_not_lose_what_others_write(is_blind, monkeypatch):
    if is_blind:  # one that looks whether it is the first overwrites nobody
        monkeypatch.setattr(Place, "put_if", lambda self, key, data, expected: self.put(key, data))
    failed = [seed for seed in range(8) if simulation.failure(simulation.program(seed, LAKE)) is not None]
    assert bool(failed) == is_blind


@pytest.mark.parametrize("is_blind", [False, True])
def test_all_orders_of_two_operations_are_explored(is_blind, monkeypatch, capsys):
    if is_blind:
        monkeypatch.setattr(Place, "put_if", lambda self, key, data, expected: self.put(key, data))
    found = explorer.Explorer(0, 0, most_failures=10**9)
    states, interleavings, is_all = found.explore(explorer.program("l", "append append"))
    assert states > 100
    assert is_all
    assert is_blind or interleavings > states
    assert bool(found.failures) == is_blind
    assert ("order: 0 " in capsys.readouterr().out) == is_blind


def test_orders_that_meet_in_a_state_are_counted_each():
    graph, (one, other) = explorer.Graph(0, 0), (explorer.Choice(0), explorer.Choice(1))
    graph.after.update({0: {one: 1, other: 2}, 1: {other: 3}, 2: {one: 3}, 3: {one: 4, other: 5}})
    assert [graph.interleavings(state) for state in (0, 1, 3, 5)] == [4, 2, 2, 1]
