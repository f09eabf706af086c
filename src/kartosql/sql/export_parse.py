"""Text to RECORD SCHEMA and EXPORT."""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import SqlError
from kartosql.sql.parse import _Cursor
from kartosql.sql.statements import Select, Write
from kartosql.sql.tokens import tokens_of
from kartosql.sql.write_statements import Columns, ExportHistory, ExportOdf, Named, RecordSchema

FORMS = {
    "RECORD": "RECORD SCHEMA FOR t",
    "EXPORT SCHEMA": "EXPORT SCHEMA HISTORY OF t TO 'folder or URL'",
    "EXPORT": "EXPORT (SELECT ...) TO 'folder or URL' (TYPE odf [, PRIMARY_KEY (a, b)] [, EVENT_TIME column])",
}
_BRACKETS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def parse_export(text: str, tokens: list[Token]) -> Write:
    """Return the statement; raises ``syntax-error`` and what a query must not do."""
    return _ExportCursor(text, tokens).parse()


class _ExportCursor(_Cursor):
    """A position in the tokens of RECORD or EXPORT."""

    form = "EXPORT"

    def fail(self, message: str, hint: str | None = None) -> SqlError:
        """Return the error about the current token; the hint is the form of the statement unless given."""
        return super().fail(message, hint or FORMS[self.form])

    def parse(self) -> Write:
        if self.take("RECORD"):
            self.form = "RECORD"
            self.need("SCHEMA")
            self.need("FOR")
            record = RecordSchema(self.text, self.named())
            self.end()
            return record
        self.need("EXPORT")
        if self.take("SCHEMA"):
            self.form = "EXPORT SCHEMA"
            self.need("HISTORY")
            self.need("OF")
            target = self.named()
            self.need("TO")
            history = ExportHistory(self.text, target, self.string())
            self.end()
            return history
        query = self.bracketed()
        self.need("TO")
        url = self.string()
        key, event_time = self.options()
        self.end()
        return ExportOdf(self.text, url, key, event_time, query)

    # -- pieces ------------------------------------------------------------------------------

    def need(self, word: str) -> None:
        if not self.take(word):
            raise self.fail(f"Expected {word}.")

    def named(self) -> Named:
        return Named(*self.name())

    def string(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type != TokenType.STRING:
            raise self.fail("Expected a folder or URL in single quotes.")
        self.at += 1
        return self.tokens[self.at - 1].text

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
        text = "".join(c if c.isspace() else " " for c in self.text[:start]) + self.text[start:end]
        try:
            return _Cursor(text, tokens_of(text)).select()
        except SqlError as e:
            e.sql = self.text
            raise

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
