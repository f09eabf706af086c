"""Text to ATTACH and DETACH."""

from __future__ import annotations

from typing import Any

from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span
from kartosql.sql.cursor import TokenCursor
from kartosql.sql.statements import Attach, Detach

_FOLDER = ("hive_partitioning", "hive_types_autocast", "metadata", "metadata_type", "metadata_keys")
CSV_OPTIONS = (  # of DuckDB's reader
    *("delim", "quote", "escape", "header", "skip", "nullstr", "dateformat", "timestampformat", "comment"),
    *("decimal_separator", "thousands", "sample_size", "all_varchar", "null_padding", "strict_mode", "encoding"),
)
CSV_ALIASES = {"delimiter": "delim", "sep": "delim", "null": "nullstr", "nullvalue": "nullstr", "charset": "encoding"}
# Options by the type of a source.
TYPES: dict[str, tuple[str, ...]] = {
    "parquet": _FOLDER,
    "csv": (*CSV_OPTIONS, "types", *_FOLDER),
    "odf": ("as_of", "check_hashes"),
    "delta": ("version", "as_of", "metadata", "clone_of"),
    "iceberg": ("snapshot", "as_of", "table", "catalog", "data", "metadata"),
    "kartothek": (),
}
_SUFFIXES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
FORM = f"ATTACH 'folder or URL' AS name (TYPE {' | '.join(TYPES)}, option value, ...)"
MAX_DEPTH = 4  # of lists and maps in the value of an option


def type_of(url: str) -> str | None:
    """Return the type of source that the end of a URL names, if it names one."""
    plain = url.lower().removesuffix(".gz")
    return next((type_ for suffix, type_ in _SUFFIXES.items() if plain.endswith(suffix)), None)


def parse_attach(text: str, tokens: list[Token]) -> Attach | Detach:
    """Return the statement; raises ``syntax-error``, and ``not-supported`` where other databases attach files."""
    return _AttachCursor(text, tokens).parse()


class _AttachCursor(TokenCursor):
    def usage(self) -> str | None:
        return FORM

    def parse(self) -> Attach | Detach:
        if self.take("DETACH"):
            self.take("DATABASE")
            if_exists = self.phrase("IF", "EXISTS")
            name, span = self._single_name()
            self.end()
            return Detach(self.text, name, span, if_exists)
        self.take("ATTACH")
        replace = self.phrase("OR", "REPLACE")
        self.take("DATABASE")
        if_not_exists = self.phrase("IF", "NOT", "EXISTS")
        parameter = self._parameter()
        url = "" if parameter else self.string("Expected a folder or URL in single quotes.")
        name, span = self._single_name() if self.take("AS") else ("", (0, 0))
        options = self._options() if self.take("(") else {}
        self.end()
        if "type" not in options:
            options["type"] = type_of(url)
        if options["type"] is None:
            self.at = 0
            hint = f"Say what it is: {FORM}. The ends {', '.join(_SUFFIXES)} say it by themselves."
            raise self.fail("ATTACH without a TYPE is not supported here.", hint, code="not-supported")
        if not name:
            raise self.fail("Expected AS and a name.")
        return Attach(self.text, url, name, span, options, replace, if_not_exists, parameter)

    def _parameter(self) -> str | None:
        if self.take("?"):
            return "1"
        return ".".join(self.name()[0]) if self.take("$", ":") else None

    def _single_name(self) -> tuple[str, Span]:
        name, span = self.name()
        if len(name) != 1:
            raise self.fail("A name here has one part.")
        return name[0], span

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}

        def option() -> None:
            names, _ = self.name()
            key = names[0].lower()
            if key in options or len(names) > 1:
                raise self.fail(f"The option {'.'.join(names)!r} occurs twice or is none.")
            self.take("=", ":")
            options[key] = True if self.word() in (",", ")") else self._value(0)

        self.up_to(option, ")")
        return options

    def _value(self, depth: int) -> Any:
        token = self.token
        if token is None or depth > MAX_DEPTH:
            raise self.fail("Expected a value.")
        if self.take("[", "("):
            return self.up_to(lambda: self._value(depth + 1), "]", ")", wanted="the end of the list")
        if self.take("{"):
            return dict(self.up_to(lambda: self._entry(depth), "}"))
        if self.at_number():
            return self.number()
        if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            self.at += 1
            return token.text
        if not token.text.replace("_", "a").isalnum():
            raise self.fail(f"Expected a value, not {token.text!r}.")
        self.at += 1
        return {"TRUE": True, "FALSE": False}.get(token.text.upper(), token.text)

    def _entry(self, depth: int) -> tuple[str, Any]:
        token = self.token
        if token is None:
            raise self.fail("Expected }.")
        self.at += 1
        if not self.take(":", "="):
            raise self.fail("Expected : and a value.")
        return token.text, self._value(depth + 1)
