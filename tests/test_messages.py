"""The whole texts of errors that people meet often, against a file of them.

``python tests/test_messages.py`` writes the file anew; look at what changed.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa

import kartosql
from kartosql.cli.output import described

EXPECTED = Path(__file__).with_name("messages.expected")
STATEMENTS = """\
SELEC 1
SELECT day dday frm sales
SELECT * FROM sales WHERE day =
SELECT (1
SELECT * FROM sale
SELECT turnovr FROM sales
SELECT dday, turnovr FROM sales
SELECT s.dday FROM sales s JOIN shps p ON p.country = s.country
SELECT s.day FROM sales
SELECT p.cty FROM sales s, shops p
SELECT day FROM sales ORDER BY dya
SELECT lenght(name) FROM sales
SELECT sum(name) FROM sales
SELECT name, count(*) FROM sales
SELECT day FROM sales WHERE sum(day) > 3
SELECT name::INT FROM sales
SELECT day FROM sales WHERE name = 5
SELECT day FROM sales WHERE name BETWEEN 1 AND 5
SELECT day FROM sales WHERE day = 'x'
SELECT name FROM sales WHERE turnover IN (1, 'many')
SELECT 1 WHERE DATE '2024-01-01' = 2024-01-01
SELECT 1 WHERE DATE '2024-01-01' = '31.01.2024'
SELECT 1 WHERE ['a'] = 'a'
SELECT 'a'::INT
SELECT day FROM sales WHERE name = %s
SELECT TOP 3 day FROM sales
SELECT nvl(name, country) FROM sales
SELECT day + name FROM sales
SELECT day FROM sales UNION SELECT country, city FROM shops
SELECT ?
SET timeout = -3
SHOW TABELS
SHOW FILES FROM nope
SHOW COVERAGE OF sales BY dya
EXPLAIN WHY 'x' SELECT day FROM sales
EXPLAIN (FORMAT XML) SELECT 1
ADVISE SHOW TABLES
SELECT * FROM read_parquet('x')
SELECT getenv('HOME')
SELECT 'abc FROM sales
SELECT (day + 1 FROM sales
SELECT * FORM sales
SELECT day name turnover FROM sales
SELECT * FROM sales WHERE country = "DE"
SELECT * FROM sales WHERE country = DE
SELECT date_trunc(day) FROM sales
EXPLAIN ANALYSE SELECT 1
SELECT * FROM 'x.csv'
SELECT 1; SELECT 2
"""


def _texts() -> str:
    found = []
    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as con:
        seed = pa.table({"day": [1], "country": ["DE"], "turnover": [2.0], "name": ["a"]})
        con.build_cube(kartosql.Cube("sales", ["day"], ["country"]), {"seed": seed})
        con.create_dataset("shops", pa.table({"country": ["DE"], "city": ["Bonn"]}))
        for statement in STATEMENTS.splitlines():
            try:
                con.sql(statement).rows()
            except kartosql.KartosqlError as e:
                found += [f"> {statement}", *described(e), ""]
            else:
                raise AssertionError(statement)
    return "\n".join(found)


def test_messages_are_those_of_the_file() -> None:
    assert _texts().splitlines() == EXPECTED.read_text("utf-8").splitlines()


if __name__ == "__main__":
    EXPECTED.write_text(_texts(), "utf-8")
