"""Everything that writes, in any order, against a model: what SQL sees is what was committed, nothing else.

A failure prints the program that led to it, made as short as it gets, and its seed. More and longer
programs than in CI:

    KARTOSQL_SEEDS=0-999 KARTOSQL_STEPS=60 pytest tests/writing/test_stateful.py --timeout 0
"""

from __future__ import annotations

import os
import tempfile
import traceback
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from s3_server import BUCKET, serve
from writing.world import MEMBERS, Op, World

FIRST, _, LAST = os.environ.get("KARTOSQL_SEEDS", "0-8").partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
STEPS = int(os.environ.get("KARTOSQL_STEPS", "16"))
SHRINKS = 60  # runs to make a program shorter

PARTS = ("a", "b", "c/d")
NAMES = (*MEMBERS, "d")
INDEXED = [("seed", "i"), ("seed", "v"), ("en", "w"), ("en", "x"), ("k", "u"), ("d", "s"), ("d", "n")]


def cells(rng: Random) -> list[tuple[str, int, int]]:
    every = [(p, x, y) for p in PARTS for x in range(4) for y in range(2)]
    return rng.sample(every, rng.randint(1, 5))


def written(rng: Random) -> dict[str, Any]:
    return {name: cells(rng) for name in rng.sample(MEMBERS, rng.randint(1, 3))}


def addition(rng: Random) -> Op:
    return ("append", written(rng)) if rng.random() < 0.7 else ("append_d", cells(rng))


def with_data(rng: Random) -> Op:
    kind = rng.choice(["add", "update", "replace"])
    if kind == "update":
        return kind, rng.choice(PARTS), written(rng)
    return addition(rng) if kind == "add" else (kind, rng.choice(NAMES), cells(rng))


def change(rng: Random) -> Op:
    kind = rng.choice(["data", "data", "data", "remove", "remove_d", "compact", "index"])
    if kind == "data":
        return with_data(rng)
    if kind == "remove":
        part = rng.choice(PARTS) if rng.random() < 0.8 else None
        return kind, part, rng.choice([None, None, *MEMBERS])
    if kind == "remove_d":
        return kind, rng.choice(PARTS)
    return (kind, rng.choice("cd")) if kind == "compact" else (kind, *rng.choice(INDEXED))


def coming(rng: Random) -> Op:
    """Return an operation by which datasets come or go."""
    kind = rng.choice(["build", "extend", "extend", "create", "delete"])
    if kind == "build":
        return kind, written(rng)
    if kind == "extend":
        return kind, rng.choice(["en", "k"]), cells(rng)
    return (kind, cells(rng)) if kind == "create" else (kind, rng.choice(["cube", "en", "k", "d"]))


def by_originals(rng: Random) -> Op:
    kind = rng.choice(["appends", "drops_commits", "drops_commits", "wipes_metadata", "cleans_up"])
    name = f"original_{kind}"
    if kind == "appends":
        return name, rng.choice(NAMES), cells(rng)
    if kind == "drops_commits":
        between = [change(rng) for _ in range(rng.randint(1, 4))]
        after = [addition(rng) for _ in range(rng.randint(0, 2))]
        return name, rng.choice(NAMES), between, after, cells(rng)
    return (name,) if kind == "wipes_metadata" else (name, rng.choice(NAMES))


def within(rng: Random) -> Op:
    inner = rng.choice([change, change, change, coming, lambda r: ("original_appends", r.choice(NAMES), cells(r))])
    return "within", with_data(rng), inner(rng)


def upkeep(rng: Random) -> Op:
    kind = rng.choice(["clean", "clean", "hold", "readers_read_on", "repair"])
    if kind == "clean":
        return kind, rng.choice([0, 3, 4, 8])
    return (kind, rng.choice("cd")) if kind == "hold" else (kind,)


def refused(rng: Random) -> Op:
    return "refused", rng.choice(MEMBERS), rng.choice(["twice", "null", "missing", "type"])


KINDS: dict[Callable[[Random], Op], int] = {
    change: 8, within: 5, coming: 3, by_originals: 3, upkeep: 5, refused: 1
}  # fmt: skip


def program(seed: int) -> list[Op]:
    rng = Random(seed)
    start: list[Op] = [("build", {"seed": cells(rng), "en": cells(rng)}), ("create", cells(rng))]
    return [*start, *(rng.choices(list(KINDS), list(KINDS.values()))[0](rng) for _ in range(STEPS))]


def run(
    ops: list[Op], url: str | None, storage_options: dict[str, Any] | None = None
) -> tuple[int, BaseException | None]:
    """Carry out a program; return how far it came, and what went wrong."""
    at = 0
    with tempfile.TemporaryDirectory() as folder, World(url or folder, storage_options) as world:
        try:
            for at, op in enumerate(ops):
                world.do(op)
                world.sql_sees_the_model()
            world.end()
        except Exception as e:  # noqa: BLE001
            return at, e
    return at, None


def shortened(ops: list[Op], make_url: Callable[[], str | None], storage_options: dict[str, Any] | None) -> list[Op]:
    """Leave out operations that a failure does not need."""
    left = SHRINKS
    at = len(ops) - 1
    while at >= 0 and left > 0:
        left -= 1
        fewer = ops[:at] + ops[at + 1 :]
        reached, error = run(fewer, make_url(), storage_options)
        if error is not None:
            ops = fewer[: reached + 1]
        at = min(at, len(ops)) - 1
    return ops


def check(seed: int, make_url: Callable[[], str | None], storage_options: dict[str, Any] | None = None) -> None:
    ops = program(seed)
    at, error = run(ops, make_url(), storage_options)
    if error is None:
        return
    ops = shortened(ops[: at + 1], make_url, storage_options)
    error = run(ops, make_url(), storage_options)[1] or error
    lines = "".join(traceback.format_exception(error))
    text = "\n".join(f"    {op!r}," for op in ops)
    raise AssertionError(f"KARTOSQL_SEEDS={seed} KARTOSQL_STEPS={STEPS}\n{lines}\nrun([\n{text}\n], None)")


@pytest.mark.parametrize("seed", SEEDS)
def test_sql_sees_what_was_committed_on_a_local_disk(seed):
    check(seed, lambda: None)


@pytest.mark.parametrize("seed", SEEDS[: (len(SEEDS) + 2) // 3])
def test_sql_sees_what_was_committed_in_memory(seed):
    check(seed, lambda: f"memory://{uuid.uuid4().hex}")


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", SEEDS[: (len(SEEDS) + 8) // 9])
def test_sql_sees_what_was_committed_on_s3(seed):
    # Every other server loses answers to what it has carried out.
    with serve(seed=seed, lose=seed % 2 / 10) as server:
        check(seed, lambda: f"s3://{BUCKET}/{uuid.uuid4().hex}", server.storage_options)
        assert bool(server.lost) == bool(server.lose)


# Programs that failed once, made short.
FOUND: dict[str, list[Op]] = {
    "files of a deleted cube are left": [
        ("build", {"seed": [("b", 2, 1)], "en": [("b", 2, 0)]}),
        ("extend", "en", [("a", 1, 1)]),
        ("delete", "cube"),
        ("repair",),
    ],
    "what was removed before the metadata were wiped is not lost": [
        ("create", [("a", 2, 1), ("c/d", 1, 1)]),
        ("original_wipes_metadata",),
        ("replace", "d", [("c/d", 2, 1), ("b", 2, 0)]),
        ("remove_d", "b"),
        ("original_wipes_metadata",),
        ("repair",),
    ],
    "a deletion tells of another program": [
        ("build", {"seed": [("a", 3, 1)], "en": [("b", 3, 0)]}),
        ("original_appends", "seed", [("b", 0, 0)]),
        ("delete", "cube"),
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed_once(name):
    at, error = run(FOUND[name], None)
    if error is not None:
        raise AssertionError(f"operation {at} of {name!r}") from error


def test_a_deleted_dataset_leaves_no_folder(tmp_path):
    with World(str(tmp_path)) as world:
        world.do(("build", {"seed": [("b", 2, 1)], "en": [("b", 2, 0)]}))
        world.do(("create", [("a", 1, 1)]))
        world.do(("delete", "cube"))
        world.do(("delete", "d"))
    assert list(tmp_path.iterdir()) == []


def test_programs_meet_conflicts():
    """The seeds of CI do show both ends of changes that meet: joined, and refused."""
    refusals = 0
    for seed in range(12):
        with tempfile.TemporaryDirectory() as folder, World(folder) as world:
            for op in [o for o in program(seed) if o[0] in ("build", "create", "within", "append")]:
                world.do(op)
            refusals += world.refusals
    assert refusals
