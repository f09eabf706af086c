"""What is read where sqlglot is compiled, as by the package sqlglotc: no class inherits from its parser."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa

import kartosql
from kartosql.sql.interpreted import DuckDBParser, interpreted

# Modules that look compiled, with a class that nothing may inherit from; their sources are beside them.
AS_IF_COMPILED = """
import json, sys
from sqlglot import parser
from sqlglot.parsers import duckdb

def refuse(cls, **options):
    raise TypeError("interpreted classes cannot inherit from compiled")

for module in (parser, duckdb):
    module.__file__ = module.__file__.replace(".py", ".cpython-311-x86_64-linux-gnu.so")
parser.Parser.__init_subclass__ = classmethod(refuse)

import kartosql

with kartosql.connect(sys.argv[1]) as con:
    query = con.sql("SELECT sum(a) FROM t WHERE p = 3 AND a < 40")
    (scan,) = query.explain().to_dict()["scans"][0]["datasets"]
    print(json.dumps([query.rows()[0][0], scan["files_selected"], scan["files_total"]]))
print(json.dumps([duckdb.DuckDBParser.__mro__[1] is parser.Parser, parser.Parser.__module__]))
"""


def test_a_compiled_parser_leaves_out_the_same_files(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("t", pa.table({"a": range(100), "p": [n % 5 for n in range(100)]}), partition_on=["p"])
    command = [sys.executable, "-c", AS_IF_COMPILED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer, others = map(json.loads, done.stdout.splitlines())
    assert answer == [sum(n for n in range(40) if n % 5 == 3), 1, 5]
    assert others == [True, "sqlglot.parser"], "others see the modules as they were"


def test_what_is_not_compiled_is_sqlglots_own():
    from sqlglot import parser
    from sqlglot.parsers import duckdb

    if parser.__file__.endswith(".py"):  # else sqlglotc is here, and all tests go through what is read anew
        assert interpreted("sqlglot.parser", {}) is parser
        assert DuckDBParser is duckdb.DuckDBParser
