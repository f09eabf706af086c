"""Text to the statements that write."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.cursor import QUERY_WORDS, TokenCursor
from kartosql.sql.statements import Select, Write
from kartosql.sql.tree import span_of
from kartosql.sql.write_statements import (
    AddDataset,
    Check,
    Cleanup,
    Columns,
    Compact,
    CopyCube,
    CopyDataset,
    CreateCube,
    CreateDataset,
    CreateIndex,
    CreateSkipping,
    Delete,
    DropCube,
    DropDataset,
    DropIndex,
    DropSkipping,
    ExportHistory,
    ExportOdf,
    Insert,
    Literal,
    Named,
    RecordSchema,
    RefreshSkipping,
    SetMetadata,
    Skip,
)

# What each first word can begin, as it is shown in hints.
FORMS = {
    "CREATE CUBE": "CREATE CUBE c DIMENSIONS (a, b) PARTITION BY (p) [SEED s] [INDEX (i)] AS SELECT ...",
    "CREATE DATASET": "CREATE DATASET d [PARTITION BY (p)] [INDEX (i)] AS SELECT ...",
    "CREATE INDEX": "CREATE INDEX ON c.d (column)",
    "CREATE SKIPPING INDEX": "CREATE SKIPPING INDEX ON c.d (MINMAX(a), VALUELIST(b), BLOOMFILTER(c) WITH (fpp = 0.01))",
    "REFRESH SKIPPING INDEX": "REFRESH SKIPPING INDEX ON c.d",
    "ALTER CUBE": "ALTER CUBE c ADD DATASET d [PARTITION BY (p)] [INDEX (i)] AS SELECT ...",
    "ALTER DATASET": "ALTER DATASET c.d SET METADATA (key = 'value')",
    "INSERT INTO": "INSERT INTO c.d [(a, b)] SELECT ...",
    "INSERT OVERWRITE": "INSERT OVERWRITE c.d [PARTITION (p)] [(a, b)] SELECT ...",
    "DELETE FROM": "DELETE FROM c [DATASETS (d)] WHERE p = 1",
    "DROP CUBE": "DROP CUBE [IF EXISTS] c",
    "DROP DATASET": "DROP DATASET [IF EXISTS] c.d",
    "DROP INDEX": "DROP INDEX ON c.d (column)",
    "DROP SKIPPING INDEX": "DROP SKIPPING INDEX ON c.d",
    "COPY CUBE": "COPY CUBE c [DATASETS (d)] TO 'url' [AS name]",
    "COPY DATASET": "COPY DATASET c.d TO 'url' [AS name]",
    "COMPACT": "COMPACT c",
    "CLEANUP": "CLEANUP c [DRY RUN]",
    "CHECK": "CHECK c [FULL] [REPAIR]",
}
_TYPED = ("DATE", "TIMESTAMP")
_CONDITION = {"expressions", "from_", "where"}


def parse_write(text: str, tokens: list[Token]) -> Write:
    """Return the statement that writes; raises ``syntax-error``, ``not-supported`` and what a query must not do."""
    return _WriteCursor(text, tokens).write()


class _WriteCursor(TokenCursor):
    """A position in the tokens of a statement that writes."""

    form = ""

    def write(self) -> Write:
        first = self.keyword()
        self.at += 1
        replace = first == "CREATE" and self.phrase("OR", "REPLACE")
        if first not in FORMS:
            self.form = f"{first} {self.keyword()}"
            if self.form.endswith(" SKIPPING"):
                self.at += 1
                self.form += f" {self.keyword()}"
            if self.form not in FORMS or (replace and self.form.endswith("INDEX")):
                raise self.foreign(first)
            self.at += 1
        else:
            self.form = first
        parse: dict[str, Callable[[], Write]] = {
            "CREATE CUBE": lambda: self.create_cube(replace),
            "CREATE DATASET": lambda: self.create_dataset(replace),
            "CREATE INDEX": lambda: CreateIndex(self.text, *self.indexed()),
            "CREATE SKIPPING INDEX": lambda: CreateSkipping(self.text, self.on(), skips(self)),
            "REFRESH SKIPPING INDEX": lambda: RefreshSkipping(self.text, self.on()),
            "DROP SKIPPING INDEX": lambda: DropSkipping(self.text, self.on()),
            "ALTER CUBE": self.add_dataset,
            "ALTER DATASET": self.set_metadata,
            "INSERT INTO": lambda: self.insert(overwrite=False),
            "INSERT OVERWRITE": lambda: self.insert(overwrite=True),
            "DELETE FROM": self.delete,
            "DROP CUBE": lambda: DropCube(self.text, if_exists=self.phrase("IF", "EXISTS"), cube=self.single()),
            "DROP DATASET": lambda: DropDataset(self.text, if_exists=self.phrase("IF", "EXISTS"), dataset=self.named()),
            "DROP INDEX": lambda: DropIndex(self.text, *self.indexed()),
            "COPY CUBE": self.copy_cube,
            "COPY DATASET": lambda: CopyDataset(self.text, self.named(), *self.place()),
            "COMPACT": lambda: Compact(self.text, self.named()),
            "CLEANUP": self.cleanup,
            "CHECK": self.check,
        }
        statement = parse[self.form]()
        if not hasattr(statement, "query"):
            self.end()
        return statement

    # -- words -------------------------------------------------------------------------------

    def fail(self, message: str, hint: str | None = None) -> SqlError:
        """Return the error about the current token; the hint is the form of the statement unless given."""
        return super().fail(message, hint or FORMS.get(self.form))

    def foreign(self, first: str) -> SqlError:
        """Return the error about a statement of other databases."""
        word = self.keyword()
        known = [form for form in FORMS if form.startswith(f"{first} ")]
        seconds = [form.rpartition(" ")[2] for form in known]
        close = difflib.get_close_matches(word, seconds, 1, cutoff=0.7)
        if close and word not in seconds:
            return self.fail(f"There is no {first} {word}.", f"Did you mean {first} {close[0]}?")
        self.at = 0
        error = self.fail(
            f"This form of {first} is not supported.",
            f"Supported are SELECT, SHOW, DESCRIBE, EXPLAIN, SET and RESET, and of {first}: {', '.join(known)}.",
        )
        error.code = "not-supported"
        return error

    # -- names and values --------------------------------------------------------------------

    def named(self) -> Named:
        if self.at < len(self.tokens) and self.tokens[self.at].token_type == TokenType.STRING:
            raise self.fail("Expected a name, not a text.", "Names are quoted with double quotes.")
        return Named(*self.name())

    def single(self) -> Named:
        """Read a name without dots."""
        named = self.named()
        if len(named.parts) > 1:
            raise self.at_span(f"Expected a name without dots, not {'.'.join(named.parts)!r}.", named.span)
        return named

    def at_span(self, message: str, span: Span, hint: str | None = None) -> SqlError:
        error = self.fail(message, hint)
        error.span = span
        return error

    def columns(self) -> Columns:
        """Read a list of names in parentheses."""
        return tuple(name for name, _ in self.listed(lambda: None))

    def listed(self, value: Callable[[], Literal | None]) -> tuple[tuple[Named, Literal | None], ...]:
        """Read names in parentheses, with ``value`` behind each."""
        self.expect("(")
        found: list[tuple[Named, Literal | None]] = []
        while not self.take(")"):
            if found and not self.take(","):
                raise self.fail("Expected , or ).")
            name = self.single()
            if any(name.parts == other.parts for other, _ in found):
                raise self.at_span(f"{name.last!r} occurs twice.", name.span)
            found.append((name, value()))
        return tuple(found)

    def some_columns(self) -> Columns:
        start = self.at
        found = self.columns()
        if not found:
            self.at = start
            raise self.fail("At least one column is needed.")
        return found

    def constant(self) -> Literal | None:
        """Read ``= constant``, if it comes next."""
        if not self.take("="):
            return None
        if not self.take(*_TYPED) and self.at_number():
            return self.number()
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is not None and token.token_type == TokenType.STRING:
            self.at += 1
            return token.text
        if self.keyword() in ("TRUE", "FALSE"):
            self.at += 1
            return self.tokens[self.at - 1].text.upper() == "TRUE"
        hint = "NULL is no partition value." if self.keyword() == "NULL" else None
        raise self.fail("Expected a number, a text, a date, TRUE or FALSE.", hint)

    def query(self) -> Select:
        if self.keyword() not in QUERY_WORDS:
            raise self.fail("Expected a query.")
        start = self.tokens[self.at].start
        return self.aligned(_blank(self.text[:start]) + self.text[start:])

    # -- statements --------------------------------------------------------------------------

    def create_cube(self, replace: bool) -> CreateCube:
        cube = self.single()
        dimensions: Columns = ()
        partition_by: Columns | None = None
        index: Columns = ()
        seed = None
        while not self.take("AS"):
            if not dimensions and self.take("DIMENSIONS"):
                dimensions = self.some_columns()
            elif partition_by is None and self.phrase("PARTITION", "BY"):
                partition_by = self.some_columns()
            elif seed is None and self.take("SEED"):
                seed = self.single()
            elif not index and self.take("INDEX"):
                index = self.some_columns()
            else:
                raise self.fail("Expected DIMENSIONS, PARTITION BY, SEED, INDEX or AS, each of them once.")
        if not dimensions or partition_by is None:
            missing = "PARTITION BY" if dimensions else "DIMENSIONS"
            raise self.at_span(f"The cube {cube.last!r} has no {missing}.", cube.span)
        return CreateCube(self.text, cube, dimensions, partition_by, seed, index, replace, self.query())

    def dataset_clauses(self) -> tuple[Columns | None, Columns]:
        partition_by: Columns | None = None
        index: Columns = ()
        while not self.take("AS"):
            if partition_by is None and self.phrase("PARTITION", "BY"):
                partition_by = self.columns()
            elif not index and self.take("INDEX"):
                index = self.some_columns()
            else:
                raise self.fail("Expected PARTITION BY, INDEX or AS, each of them once.")
        return partition_by, index

    def create_dataset(self, replace: bool) -> CreateDataset:
        dataset = self.single()
        partition_by, index = self.dataset_clauses()
        return CreateDataset(self.text, dataset, partition_by or (), index, replace, self.query())

    def add_dataset(self) -> AddDataset:
        cube = self.single()
        self.expect("ADD", "DATASET")
        dataset = self.single()
        partition_by, index = self.dataset_clauses()
        return AddDataset(self.text, cube, dataset, partition_by, index, self.query())

    def set_metadata(self) -> SetMetadata:
        target = self.named()
        self.expect("SET", "METADATA")
        found = self.listed(self.metadata_value)
        if not found:
            raise self.fail("At least one key is needed.")
        return SetMetadata(self.text, target, tuple((key.last, value) for key, value in found))

    def metadata_value(self) -> Literal | None:
        if self.phrase("=", "NULL"):
            return None
        found = self.constant()
        if found is None:
            raise self.fail("Expected = and a value.")
        return found

    def insert(self, *, overwrite: bool) -> Insert:
        if overwrite:
            self.take("INTO", "TABLE")
        target = self.named()
        partition = None
        if overwrite and self.take("PARTITION"):
            partition = self.listed(self.constant)
        columns: Columns | None = None
        if self.phrase("BY", "POSITION"):
            columns = ()
        elif not self.phrase("BY", "NAME") and self.word() == "(" and not self._query_in_brackets():
            columns = self.some_columns()
        if columns is None and self.keyword() == "VALUES":
            columns = ()
        return Insert(self.text, target, overwrite, partition, columns, self.query())

    def _query_in_brackets(self) -> bool:
        self.at += 1
        inside = self.keyword()
        self.at -= 1
        return inside in QUERY_WORDS

    def delete(self) -> Delete:
        start = self.tokens[self.at - 1].start
        target = self.named()
        datasets = self.some_columns() if self.take("DATASETS") else None
        if self.keyword() != "WHERE":
            raise self.fail("Expected WHERE and a condition.", "WHERE true deletes all rows.")
        where = self.tokens[self.at].start
        pieces = [_blank(self.text[:start]), self.text[start : target.span[1]]]
        text = "".join([*pieces, _blank(self.text[target.span[1] : where]), self.text[where:]])
        query = self.aligned(text)
        _check_condition(query, self.text)
        return Delete(self.text, target, datasets, query)

    def on(self) -> Named:
        self.expect("ON")
        return self.named()

    def indexed(self) -> tuple[Named, Columns]:
        return self.on(), self.some_columns()

    def copy_cube(self) -> CopyCube:
        cube = self.single()
        datasets = self.some_columns() if self.take("DATASETS") else None
        return CopyCube(self.text, cube, datasets, *self.place())

    def place(self) -> tuple[str, Named | None]:
        """Read where a copy goes, and its name there."""
        self.expect("TO")
        url = self.string("Expected the URL of a store, as a text.")
        return url, self.single() if self.take("AS") else None

    def cleanup(self) -> Cleanup:
        return Cleanup(self.text, self.named(), self.phrase("DRY", "RUN"))

    def check(self) -> Check:
        target = self.named()
        found: set[str] = set()
        while (word := self.keyword()) in ("FULL", "REPAIR") and word not in found:
            found.add(word)
            self.at += 1
        return Check(self.text, target, "FULL" in found, "REPAIR" in found)


def _blank(text: str) -> str:
    return "".join(c if c in "\r\n" else " " for c in text)


def _check_condition(query: Select, text: str) -> None:
    """Refuse what is more than a condition; what could not be read is left to the engine to explain."""
    if query.tree is None:
        return
    if not isinstance(query.tree, exp.Select) or {k for k, v in query.tree.args.items() if v} - _CONDITION:
        raise SqlError(
            "DELETE ends with the condition of its WHERE.",
            code="syntax-error",
            hint=FORMS["DELETE FROM"],
            span=span_of(query.tree),
            sql=text,
        )
    inner = query.tree.args["where"].find(exp.Query)
    if inner is not None:
        raise SqlError(
            "The WHERE of DELETE names partition columns and nothing else, it holds no query.",
            code="invalid-condition",
            hint="Ask for the values first, and hand them over as a parameter: WHERE p IN $values.",
            span=span_of(inner),
            sql=text,
        )


KINDS = {"MINMAX": (), "VALUELIST": (), "BLOOMFILTER": ("FPP", "NDV"), "REGEXVALUELIST": ("PATTERN",)}


def skips(cursor: _WriteCursor) -> tuple[Skip, ...]:
    """Read ``(MINMAX(a), VALUELIST(b.c), BLOOMFILTER(d) WITH (fpp = 0.01))``."""
    cursor.expect("(")
    found: list[Skip] = []
    while not found or cursor.take(","):
        kind = cursor.keyword()
        if kind not in KINDS:
            raise cursor.fail("Expected a kind of skipping index.", f"There are {', '.join(KINDS)}.")
        cursor.at += 1
        cursor.expect("(")
        names = [cursor.named()]
        while cursor.take(","):
            names.append(cursor.named())
        cursor.expect(")")
        parameters = _parameters(cursor, kind) if cursor.phrase("WITH") else ()
        if kind == "REGEXVALUELIST" and not parameters:
            raise cursor.fail("Expected WITH (pattern = '...'), once or several times.")
        found += [Skip(kind, name.parts, parameters) for name in names]
    cursor.expect(")")
    return tuple(found)


def _parameters(cursor: _WriteCursor, kind: str) -> tuple[tuple[str, int | float | str], ...]:
    cursor.expect("(")
    found: list[tuple[str, int | float | str]] = []
    while not found or cursor.take(","):
        name = cursor.keyword()
        if name not in KINDS[kind] or (name in dict(found) and name != "PATTERN"):
            known = ", ".join(KINDS[kind]).lower() or "none"
            raise cursor.fail(f"Expected a parameter of {kind}, each once.", f"There are: {known}.")
        cursor.at += 1
        cursor.expect("=")
        is_text = name == "PATTERN"
        found.append((name, cursor.string("Expected a pattern in single quotes.") if is_text else cursor.number()))
    cursor.expect(")")
    return tuple(found)


EXPORT_FORMS = {
    "RECORD": "RECORD SCHEMA FOR t",
    "EXPORT SCHEMA": "EXPORT SCHEMA HISTORY OF t TO 'folder or URL'",
    "EXPORT": "EXPORT (SELECT ...) TO 'folder or URL' (TYPE odf [, PRIMARY_KEY (a, b)] [, EVENT_TIME column])",
}
_BRACKETS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def parse_export(text: str, tokens: list[Token]) -> Write:
    """Return the statement; raises ``syntax-error`` and what a query must not do."""
    return _ExportCursor(text, tokens).parse()


class _ExportCursor(_WriteCursor):
    """A position in the tokens of RECORD or EXPORT."""

    form = "EXPORT"

    def fail(self, message: str, hint: str | None = None) -> SqlError:
        """Return the error about the current token; the hint is the form of the statement unless given."""
        return super().fail(message, hint or EXPORT_FORMS[self.form])

    def parse(self) -> Write:
        if self.take("RECORD"):
            self.form = "RECORD"
            self.expect("SCHEMA")
            self.expect("FOR")
            record = RecordSchema(self.text, self.named())
            self.end()
            return record
        self.expect("EXPORT")
        if self.take("SCHEMA"):
            self.form = "EXPORT SCHEMA"
            self.expect("HISTORY")
            self.expect("OF")
            target = self.named()
            self.expect("TO")
            history = ExportHistory(self.text, target, self.string("Expected a folder or URL in single quotes."))
            self.end()
            return history
        query = self.bracketed()
        self.expect("TO")
        url = self.string("Expected a folder or URL in single quotes.")
        key, event_time = self.options()
        self.end()
        return ExportOdf(self.text, url, key, event_time, query)

    # -- pieces ------------------------------------------------------------------------------

    def named(self) -> Named:
        return Named(*self.name())

    def bracketed(self) -> Select:
        """Parse the query in brackets; every character of it stands where it stands in the statement."""
        if self.word() != "(":
            error = self.fail("Expected a query in brackets.")
            if self.word() == "DATABASE":
                error.code = "not-supported"  # DuckDB has this form
            raise error
        first = self.at
        depth = 0
        while self.at < len(self.tokens):
            depth += _BRACKETS.get(self.tokens[self.at].token_type, 0)
            self.at += 1
            if depth == 0:
                break
        if depth or self.at == first + 2:
            raise self.fail("Expected a query, and the bracket that ends it.")
        start, end = self.tokens[first].end + 1, self.tokens[self.at - 1].start
        return self.aligned(_blank(self.text[:start]) + self.text[start:end])

    def options(self) -> tuple[Columns, Named | None]:
        """Parse the options, of which TYPE odf is one."""
        if not self.take("("):
            raise self.fail("Expected (TYPE odf).")
        seen: set[str] = set()
        key: Columns = ()
        event_time: Named | None = None
        while not self.take(")"):
            name = self.word()
            if name in seen:
                raise self.fail(f"{name} stands there twice.")
            seen.add(name)
            if self.take("TYPE"):
                if not self.take("ODF"):
                    raise self.fail("Expected the type odf.")
            elif self.take("PRIMARY_KEY"):
                key = self.columns()
            elif self.take("EVENT_TIME"):
                event_time = self.named()
            else:
                raise self.fail("Expected TYPE, PRIMARY_KEY or EVENT_TIME.")
            if not self.take(",") and self.word() != ")":
                raise self.fail("Expected , or ).")
        if "TYPE" not in seen:
            raise self.fail("Expected TYPE odf among the options.")
        return key, event_time

    def columns(self) -> Columns:
        if not self.take("("):
            return (self.named(),)
        found = [self.named()]
        while self.take(","):
            found.append(self.named())
        if not self.take(")"):
            raise self.fail("Expected , or ).")
        return tuple(found)
