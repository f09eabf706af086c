"""What the site has beyond the pages of this folder: examples, HTML reports and references, made from the source."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

CHECKOUT = Path(__file__).parent.parent
_OUTSIDE = re.compile(r"\]\(\.\./(README\.md|sql_examples|\.github/CONTRIBUTING\.md)(#[\w-]+)?\)")

_ON_SITE = {
    "README.md": "index.md",
    "sql_examples": "examples.md",
    ".github/CONTRIBUTING.md": "architecture.md#where-to-add-what",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that leave this folder lead to pages of the site; the first page has all others in its text."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return _OUTSIDE.sub(lambda m: f"]({_ON_SITE[m[1]]})", markdown)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    pages = (("examples.md", examples), ("engines.md", engines), ("reference.md", reference), ("reports.md", reports))
    for name, make in pages:
        files.append(File.generated(config, name, content=make()))
    return files


def examples() -> str:
    """Return a page with every statement of sql_examples and its result."""
    parts = ["# Examples\n\nEach of these runs on the demo cube; `.tour` plays them in the shell.\n"]
    for path in sorted((CHECKOUT / "sql_examples").glob("*.sql")):
        text, result = path.read_text("utf-8").rstrip(), path.with_suffix(".expected").read_text("utf-8").rstrip()
        title = path.stem.partition("_")[2].replace("_", " ").capitalize()
        parts.append(f"## {title}\n\n```sql\n{text}\n```\n\n```text\n{result}\n```\n")
    return "\n".join(parts)


def reference() -> str:
    """Return a page with the options of the command, the settings and the error codes."""
    from kartosql.cli.options import command_parser
    from kartosql.settings import SETTINGS

    settings = "\n".join(
        f"| `{name}` | {s.default if s.default is not None else ''} | {'yes' if s.in_sql else 'connect() only'} |"
        for name, s in sorted(SETTINGS.items())
    )
    sections = re.findall(r"^## `([a-z-]+)`$", (CHECKOUT / "docs" / "errors.md").read_text("utf-8"), re.MULTILINE)
    codes = ", ".join(f"[`{code}`](errors.md#{code})" for code in sorted(sections))
    return (
        f"# Reference\n\n## Options of the command\n\n```text\n{command_parser().format_help().rstrip()}\n```\n\n"
        f"## Settings\n\n[python.md](python.md) tells what they do.\n\n| setting | default | SET |\n|---|---|---|\n"
        f"{settings}\n\n## Error codes\n\n{codes}\n"
    )


# What both engines answer, and what is left to DuckDB; the rest of SQL follows from its functions.
_MATRIX = (
    ("cubes, datasets, several tables, joins of them, registered data", True),
    ("attached Parquet folders, datasets of Open Data Fabric, other stores", True),
    ("attached CSV files", False),
    ("WHERE, GROUP BY, ROLLUP, CUBE, GROUPING SETS, HAVING, ORDER BY, LIMIT, DISTINCT, DISTINCT ON", True),
    ("INNER, LEFT, RIGHT, FULL, SEMI, ANTI and CROSS JOIN, USING, NATURAL", True),
    ("inner and left ASOF JOIN", True),
    ("other ASOF JOIN, POSITIONAL JOIN", False),
    ("WITH, derived tables, set operations, EXISTS, IN, correlated subqueries", True),
    ("PIVOT, UNPIVOT, and WITH RECURSIVE from Spark 4.1 on", True),
    ("windows with ROWS frames, and RANGE without an offset; QUALIFY", True),
    ("RANGE frames with an offset that is a constant", True),
    ("parameters, SET TimeZone, now() and current_date", True),
    ("quantiles, lists in an order, numbers as text, random numbers", True),
)


def engines() -> str:
    """Return a page with what each engine answers, of functions those that have a rule for Spark."""
    from kartosql.engines.spark.portable import aggregates, functions

    rows = "\n".join(f"| {what} | yes | {'yes' if both else 'refused'} |" for what, both in _MATRIX)
    scalars = sorted(n for n in functions.RULES if n.isidentifier())
    operators = sorted(n for n in functions.RULES if not n.isidentifier())
    groups = sorted({name for name, _, _ in aggregates._RULES})
    over = sorted(k.removeprefix("WINDOW_").lower() for k in (*aggregates._RANKS, *aggregates._VALUES))
    listed = {"Functions": scalars, "Operators": operators, "Aggregates": groups, "Window functions": over}
    parts = [f"## {head}\n\n{', '.join(f'`` {n} ``' for n in names)}\n" for head, names in listed.items()]
    return (
        "# Engines\n\nDuckDB answers everything that [sql.md](sql.md) has. Spark answers what follows, with the same "
        "rows; what it would answer differently is refused with [`not-portable`](errors.md#not-portable), some "
        "functions for some types only.\n\n| | DuckDB | Spark |\n|---|---|---|\n" + rows + "\n\n" + "\n".join(parts)
    )


def reports() -> str:
    """Return a page with reports over the demo cube as notebooks and FORMAT HTML show them."""
    import kartosql
    from kartosql.demo import build_flights

    statements = {
        "Files and why": "EXPLAIN SELECT carrier, dest, dep_delay\nFROM flights\n"
        "WHERE tailnum = 'N375JB' AND dep_delay > 70",
        "With what was read": "EXPLAIN ANALYZE SELECT dest, count(*) AS n\nFROM flights\n"
        "WHERE month = 7 AND origin = 'JFK'\nGROUP BY dest",
        "Cells of a cube": "SHOW COVERAGE OF flights BY month, origin",
        "Rows": "SELECT carrier, count(*) AS flights\nFROM flights\nWHERE month = 7\n"
        "GROUP BY carrier\nORDER BY 2 DESC\nLIMIT 5",
    }
    parts = [
        "# Reports as HTML\n\nNotebooks show these, `EXPLAIN (FORMAT HTML)` and `--format html` write them; "
        "they need nothing from elsewhere.\n"
    ]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        build_flights(folder)
        with kartosql.connect(folder, read_only=True) as con:
            for title, sql in statements.items():
                html = con.sql(sql)._repr_html_().replace("\n\n", "\n")
                parts.append(f'## {title}\n\n```sql\n{sql}\n```\n\n<div class="report">\n{html}\n</div>\n')
    return "\n".join(parts)
