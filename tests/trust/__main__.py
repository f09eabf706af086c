"""Run the programme that looks for what is wrong, as long as one likes.

    python -m tests.trust [--hours 1 | --runs 1000] [--seed 0] [--shrink] [--corpus FOLDER] [PART]

Without a part all of them share the time. Each failure is printed with its seed, with which ``PART --seed SEED
--runs 1`` shows it again. ``--shrink`` looks for the least program of the simulation that fails.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any


def _cpu() -> float:
    """Return the seconds of CPU time of this process and of those that it has started."""
    return sum(os.times()[:4])


class Clock:
    """Tells whether there is time for one more run."""

    def __init__(self, given: Any, share: float) -> None:
        self.seed, self.first = given.seed, given.seed
        queries = [] if given.queries is None else [str(given.queries)]
        chosen = {"--only": given.only, "--fates": given.fates, "--damage": given.damage, "--queries": queries}
        self.options = "".join(f" {name} {shlex.join(words)}" for name, words in chosen.items() if words)
        self._runs = given.runs if given.runs is not None or given.hours is not None else 100
        self.until = time.monotonic() + given.hours * share * 3600 if given.hours is not None else float("inf")
        self._began = _cpu()

    @property
    def runs(self) -> int:
        """How many there were."""
        return self.seed - self.first

    def goes_on(self) -> bool:
        """Return whether to run once more."""
        return (self._runs is None or self.runs < self._runs) and time.monotonic() < self.until

    def again(self, part: str) -> str:
        """Return how to see the present run once more."""
        return f"again: python -m tests.trust {part} --seed {self.seed} --runs 1{self.options}\n"

    def __str__(self) -> str:
        return f"from seed {self.first}, {_cpu() - self._began:.0f} s of CPU time"


def simulate(given: Any, clock: Clock) -> int:
    """Run programs of actors."""
    from trust import simulation

    counts: Counter[str] = Counter()
    failures = steps = 0
    while failures < given.failures and clock.goes_on():
        made, done = simulation.program(clock.seed, given.only, given.fates), []
        error = simulation.failure(made, done)
        if error is not None:
            failures += 1
            least = simulation.shrunk(made) if given.shrink else made
            print(f"{error}\n{least}\n{clock.again('simulation')}", flush=True)
        for one in done:
            counts.update(one.counts)
            steps += one.scheduler.steps
        clock.seed += 1
    for name, count in sorted(counts.items()):
        print(f"{count:>9,}  {name}")
    print(
        f"simulation: {clock.runs:,} interleavings {clock}, {counts.total():,} operations, "
        f"{steps:,} calls of the store, {failures} failures",
        flush=True,
    )
    return failures


def ask(given: Any, clock: Clock) -> int:
    """Ask for answers that have to agree, over one store for each seed."""
    import kartosql
    from differential.regimes import regime
    from differential.stores import make_world
    from trust.partitions import Partitions

    gc.set_threshold(20_000, 20, 50)  # an eighth of the time is else spent on trees of statements, which are cycles
    counts: Counter[str] = Counter()
    failures = 0
    while failures < given.failures and clock.goes_on():
        with tempfile.TemporaryDirectory() as folder, regime(clock.seed):
            world = make_world(clock.seed, folder)
            with kartosql.connect(world.store.url, **world.settings) as con:
                partitions = Partitions(world, con)
                for number in range(50):
                    try:
                        partitions.check(number)
                    except Exception:  # noqa: BLE001
                        failures += 1
                        print(f"{traceback.format_exc()}\n{clock.again('answers')}")
            world.plain.close()
        counts.update(partitions.counts)
        clock.seed += 1
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"answers: {clock.runs:,} stores {clock}: {told}, {failures} failures", flush=True)
    return failures + (ask_scripts(given, clock) if given.corpus else 0)


def ask_scripts(given: Any, clock: Clock) -> int:
    """Ask the queries of a corpus of sqllogictest."""
    from trust import logictest

    paths = logictest.scripts(given.corpus)[given.part_of :: given.parts]
    found = logictest.check_all(paths, given.seed, given.queries, clock.until)
    for code, text in found.examples.items():
        print(f"refused, {code}: {text}")
    refused = ", ".join(f"{n:,} {code}" for code, n in found.refused.items()) or "none"
    places = ", ".join(f"{n:,} {place}" for place, n in found.places.items())
    unwritten = ", ".join(f"{n:,} {why}" for why, n in found.unwritten.items()) or "none"
    print(
        f"sqllogictest: {found.scripts:,} scripts, tables as {places}, not written {unwritten}: "
        f"{found.alike:,} answers alike, {found.together:,} of them by statements of several queries, "
        f"{found.by_order:,} by the order of rows, {len(found.failures)} not, {clock}; "
        f"refused by both {found.refused_by_both:,}, by kartosql alone {refused}",
        flush=True,
    )
    return len(found.failures)


def damage(given: Any, clock: Clock) -> int:
    """Damage files, some hundred in each process, as one may be ended by what it reads."""
    if given.one_process:
        return _damage(given, clock)
    failures, counts = 0, Counter[str]()
    while failures < given.failures and clock.goes_on():
        runs = min(PER_PROCESS, (given.runs or PER_PROCESS) - clock.runs if given.runs else PER_PROCESS)
        command = [sys.executable, "-m", "tests.trust", "hostile", "--one-process"]
        command += ["--seed", str(clock.seed), "--runs", str(runs), "--failures", str(given.failures)]
        command += shlex.split(clock.options)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        *told, last = done.stdout.splitlines() or [""]
        if done.returncode not in (0, 1) or not last.startswith("{"):
            failures += 1
            print(f"the process ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
            print(f"again: {' '.join(command)}")
        else:
            failures += done.returncode and sum(line.startswith("again:") for line in told)
            print("".join(f"{line}\n" for line in told), end="", flush=True)
            counts.update(json.loads(last))
        clock.seed += runs
    for name, count in sorted(counts.items()):
        print(f"{count:>9,}  {name}")
    print(f"hostile: {clock.runs:,} cases {clock}, {failures} failures", flush=True)
    return failures


def _damage(given: Any, clock: Clock) -> int:
    from trust.hostile import Hostile, Untyped

    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        hostile = Hostile(folder)
        while failures < given.failures and clock.goes_on():
            try:
                hostile.check(clock.seed, given.damage, given.queries)
            except Untyped as e:
                failures += 1
                print(f"{e}\n{clock.again('hostile')}", flush=True)
            clock.seed += 1
    print(json.dumps(hostile.counts))
    return failures


def fuzz(given: Any) -> int:
    """Let decoders read what no writer wrote."""
    from trust import fuzz

    if given.one_process:
        fuzz.fuzz_here(**json.loads(given.corpus))
        return 0
    runs = given.runs if given.runs is not None or given.hours is not None else 1000
    names = given.only or [*fuzz.NAMES]
    cases, failures = fuzz.fuzz(names, runs, (given.hours or 0) * 3600, given.seed, given.corpus)
    print(f"fuzz: {cases:,} cases from seed {given.seed}, {failures} failures", flush=True)
    return failures


def explore(given: Any, clock: Clock) -> int:
    """Carry out all orders of the calls of some operations, and print how many states each program has."""
    from trust.explorer import Explorer, programs

    every = [p for p in programs() if not given.only or p.seed in given.only]
    explorer = Explorer(given.faults, given.wakes, given.most, given.failures, clock.until)
    states = orders = whole = 0
    for made in every[given.part_of :: given.parts]:
        if not explorer.goes_on():
            break
        found = explorer.explore(made)
        states, orders, whole = states + found.states, orders + found.interleavings, whole + found.is_all
        end = "" if found.is_all else ", not to its end"
        print(f"{found.states:>9,} states {found.interleavings:>20,} interleavings  {made.seed}{end}", flush=True)
    print(
        f"explore: {orders:,} interleavings through {states:,} states by {explorer.runs:,} runs, "
        f"{whole} of {len(every)} programs to their end, {clock}, {explorer.failures} failures",
        flush=True,
    )
    return explorer.failures


def soak(given: Any) -> int:
    """Let everything go on at once for a while."""
    from trust import soak

    seconds = (given.hours or 1 / 60) * 3600
    failures, counts, held = soak.soak(seconds)
    print("what each held: median of the second and of the last third of the time", held, sep="\n")
    for failure in failures:
        print(failure)
    told = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    print(f"soak: {seconds:,.0f} s, {told}, {len(failures)} failures", flush=True)
    return len(failures)


PARTS = {"simulation": simulate, "answers": ask, "hostile": damage}
PER_PROCESS = 1000
KINDS = ("flipped", "cut", "spliced", "replaced", "restructured")  # of damage


def main() -> int:
    """Print what was run, and what failed; return 1 if something did."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__.partition("\n\n")[0])
    parser.add_argument("part", nargs="?", choices=(*PARTS, "bugs", "fuzz", "explore", "soak"))
    parser.add_argument("--hours", type=float, help="for which to go on")
    parser.add_argument("--runs", type=int, help="of each part, after which to end")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; those that follow have the next ones")
    parser.add_argument("--shrink", action="store_true", help="make programs that fail as short as they get")
    parser.add_argument("--failures", type=int, default=5, help="after which to end")
    parser.add_argument("--only", nargs="+", default=[], help="kinds of operations, decoders, or programs of explore")
    parser.add_argument("--fates", nargs="+", default=[], help="kinds of faults of the simulation")
    parser.add_argument("--damage", nargs="+", default=[], choices=KINDS, help="of hostile files")
    parser.add_argument("--named", default="", help="part of the names of bugs to look for")
    parser.add_argument("--corpus", help="folder with scripts of sqllogictest, or for bytes of fuzz")
    parser.add_argument("--queries", type=int, help="of each script or damaged file, drawn by chance; all by default")
    parser.add_argument("--faults", type=int, default=0, help="of each order of explore")
    parser.add_argument("--wakes", type=int, default=0, help="waits that end early, of each order of explore")
    parser.add_argument("--most", type=int, default=10**9, help="runs of each program of explore")
    parser.add_argument("--parts", type=int, default=1, help="into which the scripts, or pairs, are divided")
    parser.add_argument("--part-of", type=int, default=0, help="which of these is asked")
    parser.add_argument("--one-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # on which the order of sets of names depends
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if given.part == "bugs":
        from trust import bugs

        return 1 if bugs.find_all(given.seed, given.runs or 400, given.named) else 0
    if given.part == "explore":
        return 1 if explore(given, Clock(given, 1.0)) else 0
    if given.part == "fuzz":
        return 1 if fuzz(given) else 0
    if given.part == "soak":
        return 1 if soak(given) else 0
    parts = [given.part] if given.part else list(PARTS)
    return 1 if sum(PARTS[part](given, Clock(given, 1 / len(parts))) for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
