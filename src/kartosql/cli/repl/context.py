"""Where the cursor stands in a statement: what was written before it, and which tables it may speak about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kartosql.sql.lexemes import Lexeme, lexemes, statement_end

_WORD = re.compile(r"\w+\Z")
_OPEN_NAME = re.compile(r'"[^"]*\Z')
_CLAUSES = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "QUALIFY",
    "LIMIT",
    "ON",
    "USING",
    "JOIN",
    "SET",
    "VALUES",
)
_NO_ALIAS = (
    "ON",
    "USING",
    "WHERE",
    "GROUP",
    "ORDER",
    "JOIN",
    "LEFT",
    "RIGHT",
    "FULL",
    "INNER",
    "CROSS",
    "HAVING",
    "LIMIT",
)


@dataclass(frozen=True)
class Ref:
    """A table in FROM or JOIN: its name as it is written, its alias, and the parentheses it stands in."""

    name: str
    alias: str
    group: int
    at: int


@dataclass(frozen=True)
class Context:
    """The statement around the cursor. ``start`` is where what is being typed begins, ``typed`` is that."""

    statement: str
    first: str
    before: tuple[Lexeme, ...]
    after: tuple[Lexeme, ...]
    start: int
    typed: str
    in_string: bool
    in_comment: bool
    closed: bool  # whether the string that the cursor is in ends behind it
    refs: tuple[Ref, ...]
    scope: tuple[Ref, ...]  # those that the cursor sees, the nearest first
    ctes: tuple[str, ...] = field(default=())

    def back(self, count: int = 1) -> Lexeme | None:
        """Return the piece so many before the cursor."""
        return self.before[-count] if len(self.before) >= count else None

    def word(self, count: int = 1) -> str:
        """Return its text in upper case, empty for strings and where there is none."""
        found = self.back(count)
        return found.word if found is not None else ""

    @property
    def clause(self) -> str:
        """The clause that the cursor is in, as its first word; empty outside of them."""
        depth = 0
        for lexeme in reversed(self.before):
            depth += (lexeme.text == ")") - (lexeme.text == "(")
            if depth < 0:
                depth = 0  # the parentheses around the cursor belong to their clause
            elif depth == 0 and lexeme.kind in ("keyword", "name") and lexeme.word in _CLAUSES:
                return lexeme.word
        return ""


def context(text: str, cursor: int) -> Context:
    """Return the context of the cursor in a text of one statement or several."""
    begin = 0
    while (end := statement_end(text[:cursor], begin)) is not None:
        begin = end
    end = statement_end(text, begin)
    statement = text[begin : len(text) if end is None else end]
    at = cursor - begin
    pieces = lexemes(statement)
    start, in_string, in_comment = _typed(statement, at, pieces)
    before = tuple(p for p in pieces if p.end <= start and p.kind != "comment")
    after = tuple(p for p in pieces if p.start >= at and p.kind != "comment")
    groups = _groups(pieces)
    refs = tuple(_refs([p for p in pieces if p.kind != "comment"], groups))
    first = next((p.word for p in pieces if p.kind != "comment"), "")
    return Context(
        statement,
        first if before else "",
        before,
        after,
        begin + start,
        statement[start:at],
        in_string,
        in_comment,
        in_string and any(p.start == start and p.end > at and not _is_open(p) for p in pieces),
        refs,
        tuple(_scope(refs, _group_at(pieces, groups, start))),
        tuple(_ctes(pieces)),
    )


def _typed(statement: str, at: int, pieces: Sequence[Lexeme]) -> tuple[int, bool, bool]:
    """Return where what is typed begins, and whether it is a string or a comment."""
    for piece in pieces:
        inside = piece.start < at < piece.end or (at == piece.end and at > piece.start and _is_open(piece))
        if inside and piece.kind in ("string", "comment", "quoted"):
            return piece.start, piece.kind == "string", piece.kind == "comment"
        if at == piece.end and piece.kind == "comment" and piece.text.startswith("--"):
            return piece.start, False, True
    for pattern in (_WORD, _OPEN_NAME):
        match = pattern.search(statement, 0, at)
        if match:
            return match.start(), False, False
    return at, False, False


def _is_open(piece: Lexeme) -> bool:
    mark = piece.text[:1]
    if piece.kind == "comment":
        return piece.text.startswith("/*") and not piece.text.endswith("*/")
    return piece.kind in ("string", "quoted") and (len(piece.text) < 2 or not piece.text.endswith(mark))


def _groups(pieces: Sequence[Lexeme]) -> list[tuple[int, ...]]:
    """Return for each piece the parentheses around it, by the positions of their beginnings."""
    found: list[tuple[int, ...]] = []
    chain: tuple[int, ...] = (-1,)
    for piece in pieces:
        if piece.text == ")" and len(chain) > 1:
            chain = chain[:-1]
        found.append(chain)
        if piece.text == "(":
            chain = (*chain, piece.start)
    return found


def _group_at(pieces: Sequence[Lexeme], groups: Sequence[tuple[int, ...]], at: int) -> tuple[int, ...]:
    chain: tuple[int, ...] = (-1,)
    for piece, group in zip(pieces, groups, strict=True):
        if piece.end > at:
            break
        chain = (*group, piece.start) if piece.text == "(" else group
    return chain


def _scope(refs: Sequence[Ref], chain: tuple[int, ...]) -> list[Ref]:
    return [ref for group in reversed(chain) for ref in refs if ref.group == group]


def _refs(pieces: Sequence[Lexeme], groups: Sequence[tuple[int, ...]]) -> list[Ref]:
    """Return the tables behind FROM, JOIN and the commas between them."""
    place = {p.start: group[-1] for p, group in zip(pieces, _groups(pieces), strict=True)}
    found: list[Ref] = []
    lists: set[int] = set()  # groups that are in a FROM
    for i, piece in enumerate(pieces):
        group = place[piece.start]
        word = piece.word
        if word in ("FROM", "JOIN", "INTO"):
            lists.add(group)
        elif word in _CLAUSES and word not in ("ON", "USING"):
            lists.discard(group)
        elif piece.text != "," or group not in lists:
            continue
        if word in ("FROM", "JOIN", "INTO") or piece.text == ",":
            ref = _ref(pieces, i + 1, group)
            if ref is not None:
                found.append(ref)
    return found


def _ref(pieces: Sequence[Lexeme], i: int, group: int) -> Ref | None:
    name, at = "", pieces[i].start if i < len(pieces) else 0
    while i < len(pieces) and (pieces[i].kind in ("name", "quoted") or (not name and pieces[i].kind == "keyword")):
        if not name and pieces[i].word in (*_CLAUSES, *_NO_ALIAS, "LATERAL"):
            return None
        name += pieces[i].text
        i += 1
        if i >= len(pieces) or pieces[i].text != ".":
            break
        name += "."
        i += 1
    if not name:
        return None
    if i < len(pieces) and pieces[i].word == "AS":
        i += 1
    alias = ""
    if i < len(pieces) and pieces[i].kind in ("name", "quoted") and pieces[i].word not in _NO_ALIAS:
        alias = pieces[i].text
    return Ref(name, alias or name, group, at)


def _ctes(pieces: Sequence[Lexeme]) -> list[str]:
    """Return the names of WITH."""
    if not any(p.word == "WITH" for p in pieces):
        return []
    triples = zip(pieces, pieces[1:], pieces[2:], strict=False)
    return [a.text for a, b, c in triples if a.kind in ("name", "quoted") and b.word == "AS" and c.text == "("]
