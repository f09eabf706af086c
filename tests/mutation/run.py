"""Breaks one rule of the planner at a time and shows which test notices.

    python tests/mutation/run.py [--list] [--tests golden,plan,engines,differential] [NAME ...]

Every mutation of ``mutations.py`` is applied to a copy of the package, over which the tests
run in a process of their own until the first one fails: the test that is known to notice it,
then the others. A mutation that no test notices survives; one whose text is no longer found
exactly once, or over which the tests do not run, is an error. All of these make the run fail,
except for survivors that are known, with the reason why nothing can notice them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutations import MUTATIONS, Mutation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutated import broken, copied, run_over

TESTS = {
    "golden": ["tests/golden/test_sql.py"],
    "plan": ["tests/plan/test_rules.py", "tests/plan/test_extract.py", "tests/plan"],
    "engines": [
        f"tests/engines/test_{name}.py"
        for name in ("shared_cells", "statistics", "lookups", "planner_tables", "footers")
    ],
    "differential": ["tests/test_differential.py"],
}
STATEMENTS = "12x120"
TIMEOUT = 1800


@dataclass(frozen=True)
class Outcome:
    """The first test that failed, or why the tests did not run to their end."""

    test: str = ""
    problem: str = ""
    output: str = ""


def first_failure(source: Path, tests: Sequence[str], statements: str) -> Outcome:
    """Run some tests over the package below ``source`` until one fails."""
    command = ["-m", "pytest", "-q", "-x", "-rfE", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        done = run_over(source, command, timeout=TIMEOUT, KARTOSQL_DIFFERENTIAL=statements)
    except subprocess.TimeoutExpired:
        return Outcome(problem=f"no end after {TIMEOUT} s")
    output = done.stdout[-2000:] + done.stderr[-2000:]
    if done.returncode == 0:
        return Outcome()
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode == 1 and found:
        return Outcome(test=found[1], output=output)
    return Outcome(problem=f"pytest ended with {done.returncode}", output=output)


def noticed(source: Path, known: str, kinds: Sequence[str], statements: str) -> Outcome:
    """Run the test that is known to notice a mutation, and then those of all kinds."""
    outcome = first_failure(source, [known], statements) if known else Outcome()
    if outcome.test:
        return outcome
    # A known test that does not run may have gone, or its data may not be there.
    for kind in kinds:
        outcome = first_failure(source, TESTS[kind], statements)
        if outcome != Outcome():
            break
    return outcome


def verdict(mutation: Mutation, outcome: Outcome) -> tuple[str, bool]:
    """Return what came of a mutation, and whether that is as it should be."""
    if outcome.problem:
        return f"ERROR: {outcome.problem}", False
    if outcome.test and mutation.survives:
        return f"SHOULD SURVIVE, noticed by {outcome.test}", False
    if outcome.test:
        return f"noticed by {outcome.test}", True
    return (f"survives, as known: {mutation.survives}", True) if mutation.survives else ("SURVIVES", False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to try; all of them by default")
    parser.add_argument("--list", action="store_true", help="only check that every mutation still applies")
    parser.add_argument("--tests", default=",".join(TESTS), help="kinds of tests, in order")
    parser.add_argument("--statements", default=STATEMENTS, help="see tests/test_differential.py")
    parser.add_argument("--verbose", action="store_true", help="show how the test failed")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.names or m.name in options.names]
    unknown = set(options.names) - {m.name for m in MUTATIONS}
    if unknown:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    kinds = [k for k in options.tests.split(",") if k]
    began = time.monotonic()
    rows: list[tuple[str, str, float]] = []
    bad: list[str] = []
    with copied() as source:
        if not options.list and not options.names:
            outcome = noticed(source, "", kinds, options.statements)
            if outcome != Outcome():
                print(f"without any mutation: {outcome.test or outcome.problem}\n{outcome.output}")
                return 2
        for mutation in chosen:
            started = time.monotonic()
            with broken(mutation, source) as problem:
                if problem or options.list:
                    outcome = Outcome(problem=problem)
                else:
                    outcome = noticed(source, mutation.by, kinds, options.statements)
            text, good = verdict(mutation, outcome)
            if not problem and (options.list or not (kinds or mutation.by)):
                text, good = "applies" if options.list else "not tried, as no test is noted", True
            rows.append((mutation.name, text, time.monotonic() - started))
            bad += [] if good else [mutation.name]
            print(f"{mutation.name}: {text} ({rows[-1][2]:.0f} s)", flush=True)
            if outcome.output and (options.verbose or outcome.problem):
                print(outcome.output)
    print()
    for name, text, seconds in rows:
        print(f"{seconds:5.0f} s  {name:<60}  {text}")
    passed = time.monotonic() - began
    print(f"{len(rows)} mutations in {passed:.0f} s, {len(bad)} bad" + (f": {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
