"""Deep and huge statements end in an error of ours, never in the end of the process; run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from kartosql.store import Store
from written import write_dataset

pytestmark = pytest.mark.timeout(900)  # all bombs explode in one process

# Statement by name, with the code of its error.
BOMBS = {
    "parentheses": ("'SELECT ' + '(' * n + '1' + ')' * n", "statement-too-deep"),
    "where": ("'SELECT x FROM d WHERE ' + '(' * n + 'x = 1' + ')' * n", "statement-too-deep"),
    "lists": ("'SELECT ' + '[' * n + '1' + ']' * n", "statement-too-deep"),
    "structs": ("'SELECT ' + \"{'a':\" * n + '1' + '}' * n", "statement-too-deep"),
    "case": ("'SELECT ' + 'CASE WHEN ' * (n // 2) + 'true'", "statement-too-deep"),
    "not": ("'SELECT ' + 'NOT ' * n + 'true'", "statement-too-deep"),
    "minus": ("'SELECT ' + '- ' * n + '1'", "statement-too-deep"),
    "casts": ("'SELECT 1' + '::INT' * n", "statement-too-deep"),
    "concatenations": ("\"SELECT 'a'\" + \"||'a'\" * n", "statement-too-deep"),
    "additions": ("'SELECT 1' + '+1' * n", "statement-too-deep"),
    "functions": ("'SELECT ' + 'abs(' * n + '1' + ')' * n", "statement-too-deep"),
    "methods": ("'SELECT x' + '.abs()' * n + ' FROM d'", "statement-too-deep"),
    "fields": ("'SELECT d' + '.x' * n + ' FROM d'", "statement-too-deep"),
    "elements": ("'SELECT x' + '[1]' * n + ' FROM d'", "statement-too-deep"),
    "types": ("'SELECT 1::INT' + '[]' * n", "statement-too-deep"),
    "subqueries": ("'SELECT ' + '(SELECT ' * n + '1' + ')' * n", "statement-too-deep"),
    "derived tables": ("'FROM ' + '(FROM ' * n + 'd' + ')' * n", "statement-too-deep"),
    "joins in parentheses": ("'FROM ' + '(' * n + 'd' + ')' * n", "statement-too-deep"),
    "unions": ("'FROM d' + ' UNION FROM d' * n", "statement-too-deep"),
    "lambdas": ("'SELECT ' + 'list_transform([1], lambda x: ' * 20 + '1' + ')' * 20", "statement-too-deep"),
    "comprehensions": ("'SELECT ' + '[' * 20 + '1' + ' FOR x IN [1]]' * 20", "statement-too-deep"),
    "doubling": (
        "'WITH c0 AS (SELECT 1 AS a), '"
        " + ', '.join(f'c{i + 1} AS (FROM c{i}, c{i} AS z)' for i in range(30)) + ' FROM c30'",
        "statement-too-deep",
    ),
    "or": ("'SELECT x FROM d WHERE x=1' + ' OR x=1' * 100_000", "statement-too-long"),
    "and": ("'SELECT x FROM d WHERE x=1' + ' AND x=1' * 100_000", "statement-too-long"),
    "text": ("'SELECT ' + '1' * 5_000_000", "statement-too-long"),
    "list of 400,000 values": ("'SELECT x FROM d WHERE x IN (' + '1,' * 400_000 + '1)'", "statement-too-long"),
    "a list of 5 MB": ("'SELECT x FROM d WHERE x IN (' + '1234567890,' * 450_000 + '1)'", "statement-too-long"),
    "number": ("'SELECT ' + '9' * n", None),
    "name": ("'SELECT 1 AS \"' + 'a' * n + '\"'", None),
    "semicolons": ("'SELECT 1' + ';' * n", None),
    "comments": ("'/*' * n + '*/' * n + 'SELECT 1'", None),
    "open comments": ("'SELECT 1 ' + '/*' * n", "syntax-error"),
    "tags": ("'SELECT ' + '$a$' * (2 * n + 1)", "syntax-error"),
    "parameters": ("'SELECT ' + ', '.join([':a'] * n)", "invalid-parameters"),
    "100 levels": ("'SELECT ' + '(' * 95 + '1' + ')' * 95", None),
    "250 operators": ("'SELECT x FROM d WHERE x = 0' + '+1' * 240", None),
    "1,000 disjunctions": ("'SELECT x FROM d WHERE x=1' + ' OR x=1' * 1_000", None),
    "100,000 values": ("'SELECT x FROM d WHERE x IN (' + '1234567,' * 99_999 + '1)'", None),
}
SCRIPT = """
import json, resource, sys, time
import kartosql
n = 60_000
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
with kartosql.connect(sys.argv[1], timeout=250, threads=2) as connection:
    for name, expression in json.loads(sys.stdin.read()).items():
        try:
            connection.sql(eval(expression)).rows()
            code = None
        except kartosql.KartosqlError as e:
            assert len(str(e)) < 3_000
            code = e.code
        print(json.dumps([name, code]), flush=True)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    folder: Path = tmp_path_factory.mktemp("store")
    write_dataset(Store(str(folder)), "d", pa.table({"x": [1, 2], "p": [0, 1]}), partition_on="p")
    given = json.dumps({name: expression for name, (expression, _) in BOMBS.items()})
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], input=given, capture_output=True, text=True, timeout=800
    )
    assert run.returncode == 0, (run.stdout[-300:], run.stderr[-2000:])
    assert run.stderr == ""
    return dict(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_in_its_error(found, name):
    assert found[name] == BOMBS[name][1]
