"""Breaks one rule of the planner at a time and shows which test notices.

    python tests/mutation/run.py [--list] [--tests golden,plan,differential] [NAME ...]

Every mutation of ``mutations.py`` is applied to a copy of the package, over which the tests
run in a process of their own until the first one fails. A mutation that no test notices
survives; one whose text is no longer found exactly once is an error. Both make the run fail,
except for survivors that are known, with the reason why nothing can notice them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "golden": ["tests/golden/test_sql.py"],
    "plan": ["tests/plan", "tests/engines/test_statistics.py"],
    "differential": ["tests/test_differential.py"],
}
STATEMENTS = "12x120"
TIMEOUT = 900


def mutated(mutation: Mutation, source: Path) -> str | None:
    """Apply a mutation to the package below ``source``; return what is wrong with it."""
    path = source / "kartosql" / mutation.module
    text = path.read_text("utf-8")
    if text.count(mutation.old) != 1:
        return f"{mutation.module}: the text occurs {text.count(mutation.old)} times"
    path.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    return None


def noticed(source: Path, kinds: list[str], statements: str) -> tuple[str | None, str]:
    """Return the first test that fails over the package below ``source``, and the end of the output."""
    environment = {**os.environ, "PYTHONPATH": str(source), "KARTOSQL_DIFFERENTIAL": statements}
    check = [sys.executable, "-c", "import kartosql; print(kartosql.__file__)"]
    used = subprocess.run(check, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if not used.startswith(str(source)):
        raise SystemExit(f"the tests would run over {used.strip()}, not over the mutated copy")
    for kind in kinds:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *TESTS[kind]]
        try:
            done = subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{kind}: timeout", ""
        if done.returncode == 1:
            found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            return found[1] if found else kind, done.stdout[-2000:]
        if done.returncode != 0:
            return f"{kind}: pytest ended with {done.returncode}", done.stdout[-2000:] + done.stderr[-2000:]
    return None, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to try; all of them by default")
    parser.add_argument("--list", action="store_true", help="only check that every mutation still applies")
    parser.add_argument("--tests", default="golden,plan,differential", help="kinds of tests, in order")
    parser.add_argument("--statements", default=STATEMENTS, help="see tests/test_differential.py")
    parser.add_argument("--verbose", action="store_true", help="show how the test failed")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.names or m.name in options.names]
    unknown = set(options.names) - {m.name for m in MUTATIONS}
    if unknown:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    kinds = options.tests.split(",")
    bad: list[str] = []
    if not options.list and not options.names:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True)
            test, output = noticed(Path(folder), kinds, options.statements)
        if test is not None:
            print(f"without any mutation {test} fails\n{output}")
            return 2
    for mutation in chosen:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder)
            shutil.copytree(ROOT / "src", source, dirs_exist_ok=True)
            problem = mutated(mutation, source)
            test, output = (None, "") if problem or options.list else noticed(source, kinds, options.statements)
        if problem:
            verdict = f"DOES NOT APPLY: {problem}"
            bad.append(mutation.name)
        elif options.list:
            verdict = "applies"
        elif test is not None:
            verdict = f"noticed by {test}"
        elif mutation.survives:
            verdict = f"survives, as known: {mutation.survives}"
        else:
            verdict = "SURVIVES"
            bad.append(mutation.name)
        print(f"{mutation.name}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
        if options.verbose and output:
            print(output)
    print(f"{len(chosen)} mutations, {len(bad)} bad" + (f": {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
