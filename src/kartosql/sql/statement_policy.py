"""What a statement of a stranger may do, judged twice: at its tokens and our tree, and at the parse of the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.statements import Name
from kartosql.sql.tree import CONSTANTS, span_of

MAX_TOKENS = 300_000  # an IN list of 100,000 values has 200,000 and takes DuckDB 3 s and 0.5 GB
MAX_NESTING = 100  # DuckDB's parser ends the process at some 60,000 subqueries
MAX_LAMBDAS = 8  # one inside of another: each doubles time and memory, 16 take DuckDB 1 s, 20 take 3 GB
MAX_CHAIN = 250  # operators of which each makes the tree deeper; DuckDB ends at 1,000
MAX_SET_OPERATIONS = 1_000  # 5,000 take DuckDB 4 s, 20,000 minutes, whatever the timeout
MAX_EXPANSION = 1_000  # 13 common table expressions that each name the one before twice take DuckDB 4 s, 22 hours

# What settings max_... cap: characters that one of it takes at least, and the error.
_CAPPED = {
    "columns": (2, partial(SqlError, code="too-many-columns")),
    "conditions": (3, partial(SqlError, code="too-many-conditions")),
    "subqueries": (6, partial(SqlError, code="too-many-subqueries")),
    "constants": (2, partial(SqlError, code="too-many-constants")),
    "nesting": (2, partial(SqlError, code="statement-too-deep")),
}


def words(*texts: str) -> frozenset[str]:
    """Return the words of texts."""
    return frozenset(word for text in texts for word in text.split())


# Names of sqlglot's token types: single operators make a tree deeper by one each,
_DEEPENS = words(
    "DCOLON DPIPE PLUS DASH STAR SLASH DIV MOD NOT TILDE IS COLLATE ARROW DARROW DOT L_BRACKET CARET DSTAR AMP PIPE",
    "EQ NEQ LT LTE GT GTE BETWEEN LIKE ILIKE INTERVAL",
)
# and these end such a chain.
_ENDS = words("COMMA AND OR WHEN THEN ELSE SELECT FROM WHERE ON JOIN USING UNION EXCEPT INTERSECT ALIAS")
_ENDS_COLUMNS = words("FROM WHERE GROUP_BY HAVING ORDER_BY LIMIT")
_SETS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)
OPEN = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
CLOSE = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
_NO_NAMES = (TokenType.STRING, TokenType.NUMBER, TokenType.HEREDOC_STRING, CONSTANTS)
_NO_WORDS = (*_NO_NAMES, TokenType.IDENTIFIER)
# A name behind one of these, with a parenthesis behind it, is an alias with columns.
_NAMING = (TokenType.ALIAS, TokenType.WITH, TokenType.RECURSIVE)
_STATEMENTS = words(
    "COPY INSERT UPDATE DELETE MERGE CREATE DROP ALTER ATTACH DETACH PRAGMA CALL SET RESET LOAD INSTALL EXPORT IMPORT",
    "SHOW CHECKPOINT EXECUTE PREPARE VACUUM",
)
# What changes something; DDL is also the base of queries in sqlglot, so the kinds are named.
_WRITES = (
    *(exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Copy, exp.Attach, exp.Detach),
    *(exp.Command, exp.Pragma, exp.Set, exp.Into),
)


def check_tokens(tokens: Sequence[Token], text: str) -> None:
    """Raise ``statement-too-long``, ``statement-too-deep``, ``function-not-allowed`` or ``not-allowed``."""
    count = len(tokens) + sum(2 * t.text.count(",") for t in tokens if t.token_type == CONSTANTS)
    if count > MAX_TOKENS:
        raise SqlError(
            f"The statement has {count:,} words and signs, the limit is {MAX_TOKENS:,}.",
            code="statement-too-long",
            hint="Hand long lists over as a registered table, or as a list parameter.",
        )
    _check_depth(tokens, text)
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if before is not None and before.token_type == TokenType.L_PAREN:
            _check_word(token, after, text)
        if (
            after.token_type == TokenType.L_PAREN
            and token.token_type not in _NO_NAMES
            and is_refused(token.text.lower())
            and (before is None or before.token_type not in _NAMING)
        ):
            raise refused_function(token.text, (token.start, token.end + 1), text)


def caps_on(text: str, caps: Mapping[str, int]) -> dict[str, int]:
    """Return those of the caps that a text is long enough to exceed."""
    return {what: most for what, most in caps.items() if len(text) >= most * _CAPPED[what][0]}


def check_caps(tokens: Sequence[Token], text: str, caps: Mapping[str, int]) -> None:
    """Raise ``too-many-columns``, -conditions, -subqueries or -constants, or ``statement-too-deep``."""
    counts = dict.fromkeys(_CAPPED, 0)
    lists = [False]  # whether the columns of a SELECT stand at this place of each open bracket
    for before, token in zip([None, *tokens], tokens, strict=False):
        kind = token.token_type
        if kind in OPEN:
            lists.append(False)
        elif kind in CLOSE and len(lists) > 1:
            lists.pop()
        elif kind == TokenType.SELECT or kind.name in _ENDS_COLUMNS:
            lists[-1] = kind == TokenType.SELECT
        inside = before is not None and before.token_type == TokenType.L_PAREN
        counts["columns"] += kind == TokenType.SELECT or (lists[-1] and kind == TokenType.COMMA)
        counts["conditions"] += kind.name in ("AND", "OR")
        counts["subqueries"] += inside and kind.name in ("SELECT", "FROM", "WITH", "VALUES")
        counts["constants"] += token.text.count(",") + 1 if kind == CONSTANTS else kind in _NO_NAMES
        counts["nesting"] = len(lists) - 1
        if what := next((name for name, most in caps.items() if counts[name] > most), None):
            told = "deeper brackets and CASE than" if what == "nesting" else f"more {what} than"
            raise _CAPPED[what][1](
                f"The statement has {told} {caps[what]:,}, the setting max_{what}.",
                hint="Ask in several statements, or hand long lists over as a list parameter.",
                span=(token.start, token.end + 1),
                sql=text,
            )


def refused_function(name: str, span: Span | None, text: str) -> SqlError:
    """Return the error about a function that no query may call."""
    hint = (
        "Functions that reach files, settings, variables or the catalog are switched off; "
        "a query reads the tables that SHOW TABLES lists."
    )
    if name.lower().startswith("read_") or name.lower().endswith("_scan"):
        hint += " Files become one by ATTACH '...' AS x (TYPE parquet), or TYPE csv."
    message = f"The function {name} is not allowed in queries."
    return SqlError(message, code="function-not-allowed", hint=hint, span=span, sql=text)


def _not_allowed(message: str, text: str, hint: str | None = None, span: Span | None = None) -> SqlError:
    return SqlError(message, code="not-allowed", hint=hint, span=span, sql=text)


def _check_word(token: Token, after: Token, text: str) -> None:
    """Refuse a statement in parentheses; the second word distinguishes it from a column of that name."""
    if token.text.upper() in _STATEMENTS and token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER):
        named = after.token_type in (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING)
        keyword = after.text.upper() in ("FROM", "INTO", "OR", "ALL", "TABLE", "TABLES", "VIEW", "MACRO", "DATABASES")
        if named or keyword or (token.text.upper() == "COPY" and after.token_type == TokenType.L_PAREN):
            message = f"{token.text.upper()} cannot stand inside of a query."
            hint = "A query reads tables and changes nothing."
            raise _not_allowed(message, text, hint, (token.start, token.end + 1))


def _check_depth(tokens: Sequence[Token], text: str) -> None:
    """Refuse what would make a parser's tree too deep for the engine, or for its binder's patience."""
    # Per open bracket: operators in a row, whether it holds a lambda, how deep lambdas are nested inside.
    levels: list[list[int]] = [[0, 0, 0]]
    sets = 0
    for token in tokens:
        kind = token.token_type
        level = levels[-1]
        what = None
        if kind.name in _ENDS:
            level[0] = 0
            sets += kind in _SETS
        elif kind.name in _DEEPENS:
            level[0] += 1
        if kind in OPEN:
            levels.append([0, 0, 0])
            if len(levels) > MAX_NESTING:
                what = f"brackets and CASE more than {MAX_NESTING} levels deep"
        elif kind in CLOSE and len(levels) > 1:
            levels.pop()
            levels[-1][2] = max(levels[-1][2], level[1] + level[2])
            if levels[-1][2] > MAX_LAMBDAS:
                what = f"lambdas more than {MAX_LAMBDAS} levels deep"
        elif kind not in _NO_WORDS and token.text.upper() in ("LAMBDA", "FOR"):
            # FOR is that of [x FOR x IN list], which is a lambda as well.
            level[1] = 1
        if level[0] > MAX_CHAIN:
            what = f"more than {MAX_CHAIN} operators in a row"
        if sets > MAX_SET_OPERATIONS:
            what = f"more than {MAX_SET_OPERATIONS:,} set operations"
        if what:
            raise too_deep(what, (token.start, token.end + 1), text)


def too_deep(what: str, span: Span | None, text: str) -> SqlError:
    """Return the error about a statement that is nested too deeply."""
    hint = "Compute parts of it in WITH, or split the statement."
    message = f"The statement has {what}."
    return SqlError(message, code="statement-too-deep", hint=hint, span=span, sql=text)


def check_tree(tree: exp.Expression, text: str) -> None:
    """Raise ``not-allowed``, ``function-not-allowed`` or ``statement-too-deep``."""
    expansion: dict[str, int] = {}
    for node in tree.walk():
        if isinstance(node, _WRITES):
            hint = "Only SELECT can be run; WITH holds queries."
            raise _not_allowed("A query must not change anything.", text, hint, span_of(node))
        if isinstance(node, (exp.Table, exp.Lateral)) and isinstance(node.this, exp.Func):
            function: Any = node.this
            is_known = not isinstance(function, exp.Anonymous)
            names = [n.lower() for n in function.sql_names()] if is_known else [function.name]
            if TABLE_FUNCTIONS.isdisjoint(map(str.lower, names)):
                raise refused_function(names[0], span_of(function), text)
        if isinstance(node, exp.With):
            _count_expansion(node, expansion, text)


def _count_expansion(node: exp.With, known: dict[str, int], text: str) -> None:
    """Refuse common table expressions that name each other so often that the query explodes."""
    for cte in node.expressions:
        name = cte.alias.lower()
        named = [t.name.lower() for t in cte.this.find_all(exp.Table)]
        known[name] = 1 + sum(known.get(n, 0) for n in named if n != name)
        if known[name] > MAX_EXPANSION:
            what = f"common table expressions that stand for more than {MAX_EXPANSION:,} others"
            raise too_deep(what, span_of(cte.args["alias"].this), text)


# What reading DuckDB's documents raises where another release of it writes them in another form.
UNKNOWN_FORM = (KeyError, IndexError, TypeError, AttributeError, ValueError)
_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})


def check_parsed(document: str, text: str) -> set[Name]:
    """Return the tables of a query, common table expressions left out.

    ``document`` is what DuckDB's ``json_serialize_sql`` says of ``text``. Raises ``syntax-error``,
    ``several-statements``, ``not-allowed``, ``function-not-allowed`` and ``statement-too-deep``.
    """
    try:
        return _tables(json.loads(document), text)
    except RecursionError:
        raise too_deep("expressions that are nested too deeply", None, text) from None
    except UNKNOWN_FORM as e:  # what cannot be judged does not run
        raise _not_allowed(f"DuckDB describes the query in a form that is not known: {e!r}", text) from None


def _tables(parsed: dict[str, Any], text: str) -> set[Name]:
    if parsed.get("error"):
        raise SqlError(str(parsed.get("error_message")), code="syntax-error", sql=text)
    if len(parsed["statements"]) != 1:
        raise SqlError("One statement at a time, please.", code="several-statements", sql=text)
    tables: set[Name] = set()
    # Not recursive, as what strangers write may be deep. Each item has the expressions that it can name.
    pending: list[tuple[Any, frozenset[str]]] = [(parsed["statements"][0], frozenset())]
    while pending:
        value, known = pending.pop()
        if isinstance(value, list):
            pending += [(item, known) for item in value]
        elif isinstance(value, dict):
            _check(value, text)
            if value.get("type") == "BASE_TABLE":
                name = tuple(n for n in (value["catalog_name"], value["schema_name"], value["table_name"]) if n)
                if len(name) > 1 or name[0].lower() not in known:
                    tables.add(name)
            known = _expressions(value, known, pending)
            pending += [(item, known) for key, item in value.items() if key != "cte_map"]
    return tables


def _expressions(
    node: dict[str, Any], known: frozenset[str], pending: list[tuple[Any, frozenset[str]]]
) -> frozenset[str]:
    """Queue the common table expressions of a node, and return the names known below it."""
    for entry in (node.get("cte_map") or {}).get("map", ()):
        name = frozenset({str(entry["key"]).lower()})
        query = entry["value"].get("query_node") or entry["value"].get("query") or {}
        inside = query.get("node", query).get("type") == "RECURSIVE_CTE_NODE"
        pending.append((entry["value"], known | name if inside else known))
        known |= name
    return known


def _check(node: dict[str, Any], text: str) -> None:
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and kind not in _QUERIES:
        raise _not_allowed("A query must not change anything.", text)
    if kind == "SHOW_REF" and not node.get("query"):
        raise _not_allowed("SHOW cannot stand inside of a query.", text)
    if kind == "TABLE_FUNCTION":
        name = str(node["function"]["function_name"])
        if name.lower() not in TABLE_FUNCTIONS:
            raise refused_function(name, None, text)
    elif ("function_name" in node or node.get("class") == "FUNCTION") and not node.get("is_operator"):
        name = str(node["function_name"])
        if is_refused(name.lower()):
            raise refused_function(name, None, text)


# -- functions ---------------------------------------------------------------------------------------

# Functions that may stand in FROM. All others read files, settings or the catalog, or take tables by name.
TABLE_FUNCTIONS = words(
    "unnest range generate_series repeat repeat_row json_each json_tree icu_calendar_names pg_timezone_names",
    "explode",  # what the parser calls unnest of a column
)

# Functions that are refused wherever they stand.
REFUSED_FUNCTIONS = words(
    # the engine's variables, settings, sequences, environment
    "getvariable current_setting getenv nextval currval setval setseed get_block_size",
    # the statement as the engine sees it, its plan, its catalog and its transactions
    "current_query current_query_id current_transaction_id current_connection_id txid_current json_serialize_plan",
    "stats vector_type index_key pg_get_viewdef pg_get_constraintdef pg_get_expr format_type in_search_path",
    # text that is run as a statement, and tables by name
    "query query_table json_execute_serialized_sql copy_database import_database",
    # files, secrets, logs, foreign memory
    "glob sniff_csv which_secret write_log truncate_duckdb_logs enable_logging disable_logging enable_profiling",
    "disable_profiling checkpoint force_checkpoint seq_scan arrow_scan arrow_scan_dumb pandas_scan",
    "python_arrow_scan python_map_function add_parquet_key create_external_resource register_external_resource",
    "deregister_external_resource destroy_external_resource register_external_resource_type load_aws_credentials",
    # holds a thread
    "sleep_ms pg_sleep",
)

# Functions that read the clock, age where it is given one argument, although DuckDB 2.0.0 calls them consistent.
READS_CLOCK = frozenset({"age", "current_localtime", "current_localtimestamp"})

# Families of them: what is the engine's own, and what a format or another database brings along.
_REFUSED_FAMILIES = re.compile(
    r"__|duckdb_|pragma_|read_|parquet_(?!normalize)|(?:sqlite|postgres|mysql|iceberg|delta|excel|st_read|shapefile)_"
    r"|st_read|st_drivers|from_substrait|.*_scan$"
)


def is_refused(name: str) -> bool:
    """Return whether no query may call the function ``name``, given in lower case."""
    return name in REFUSED_FUNCTIONS or _REFUSED_FAMILIES.match(name) is not None
