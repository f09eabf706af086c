"""What a statement that is no query may go on with, by the forms and options that its parser shows in hints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from kartosql.sql.attach_parse import TYPES
from kartosql.sql.incremental_lexer import Lexeme
from kartosql.sql.inspect_parse import OPTIONS as OF_REPORTS

_KINDS = ("CUBE", "DATASET", "VIEW", "SKIPPING INDEX")
_READ = {
    *(f"{word} {kind}" for word in ("CREATE", "ALTER", "COPY") for kind in _KINDS),
    *("RESTORE", "PUBLISH", "CLEANUP", "CHECK", "RECORD", "EXPORT", "EXPORT SCHEMA"),
}  # those whose forms say all, without conditions and rows
_PIECE = re.compile(r"(?P<phrase>[A-Z_]{2,}(?: [A-Z_]{2,})*)|(?P<mark>[][()])|\w+|\S")
_WHEN = ("WHEN MATCHED", "WHEN NOT MATCHED")
_ROWS = ("VALUES", "SELECT")
# What may follow a word of the statements that change rows, and what an operand behind it; all else is of a query.
# The empty word stands for the columns of the table.
_CHANGES: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "INSERT": {
        "INTO": ((), ("(", *_ROWS, "BY NAME")),
        "OVERWRITE": ((), ("(", "PARTITION (", *_ROWS, "BY NAME")),
        "PARTITION": (("(",), ("(", *_ROWS, "BY NAME")),
        "NAME": (("SELECT",), ()),
        **dict.fromkeys(("VALUES", "SELECT", "WITH", "FROM"), ((), ())),
    },
    "UPDATE": {"UPDATE": ((), ("SET",)), "SET": (("",), ("WHERE",)), "WHERE": ((), ())},
    "DELETE": {"FROM": ((), ("WHERE", "DATASETS (")), "DATASETS": (("(",), ("WHERE",)), "WHERE": ((), ())},
    "MERGE": {
        "MERGE": (("INTO",), ()),
        "INTO": ((), ("USING",)),
        "USING": ((), ("ON",)),
        "ON": ((), _WHEN),
        "WHEN": (("MATCHED", "NOT MATCHED"), ("MATCHED",)),
        "MATCHED": (("THEN", "AND"), ("THEN",)),
        "THEN": (("UPDATE SET", "DELETE", "INSERT"), ()),
        "UPDATE": (("SET",), ()),
        "SET": (("", "*"), _WHEN),
        "DELETE": (_WHEN, ()),
        "INSERT": (("(", "*"), ("VALUES",)),
        "VALUES": (("(",), _WHEN),
    },
}
_LISTS = ("INTO", "OVERWRITE", "PARTITION", "INSERT")  # words behind whose tables stand columns in parentheses
# Behind these an operand is not at its end, as behind signs.
_INSIDE = ("AND", "OR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "AS", "CASE", "WHEN", "THEN", "ELSE")
_END = re.compile(r"[\w)\]\0?$]")
_WORDS = ("keyword", "function", "name", "symbol", "parameter")


@dataclass(frozen=True)
class _Phrase:
    """Words of a form. ``depth`` tells how many parentheses are around them, ``group`` the word before these."""

    words: tuple[str, ...]
    depth: int
    group: str
    optional: bool
    has_other: bool  # whether another phrase may stand instead
    behind: str  # the character behind it: a kind of index is a call, other phrases end what is optional
    values: tuple[str, ...]  # the words in lower case behind it


@cache
def _phrases(key: str, form: str) -> tuple[_Phrase, ...]:
    found: list[_Phrase] = []
    optional, groups = 0, [""]
    text = re.sub("'[^']*'", "''", form.removeprefix(key).replace(f"or {key} ", "or ").replace("AS SELECT", "AS"))
    for match in _PIECE.finditer(text):
        rest = text[match.end() :]
        if match["phrase"]:
            words, other = tuple(match["phrase"].split()), re.match(r"[^][()|]*, or ", rest) is not None
            values = re.match(r" ([a-z]{3,}(?: \| [a-z]+)*) ?[][),]", rest) if words[0] in ("TYPE", "FOLLOW") else None
            listed = tuple(values[1].split(" | ")) if values else ()
            found.append(_Phrase(words, len(groups) - 1, groups[-1], optional > 0, other, rest[:1], listed))
        elif match["mark"] == "(":
            groups.append(found[-1].words[-1] if found else "")
        elif match["mark"] == ")":
            groups.pop()
        elif match["mark"] in ("[", "]"):
            optional += 1 if match["mark"] == "[" else -1
    return tuple(found)


def _form(words: Sequence[str]) -> tuple[tuple[_Phrase, ...], Sequence[str]]:
    """Return the phrases of the form that a statement has, and its words behind the name of that form."""
    from kartosql.sql.write_statements import FORMS

    said = [words[0], *words[3:]] if words[1:3] == ["OR", "REPLACE"] else words
    if " ".join(said) in ("CREATE SKIPPING", "DROP SKIPPING", "REFRESH", "REFRESH SKIPPING"):
        return _phrases("", "SKIPPING INDEX ON"), said
    for count in (3, 2, 1):
        key = " ".join(said[:count])
        if len(said) > count and key in _READ:
            return _phrases(key, FORMS[key]), said[count:]
    return (), ()


def following(before: Sequence[Lexeme]) -> Iterator[str]:
    """Yield what may follow the pieces of a statement, as far as its form says that; nothing of other statements.

    An empty word stands for the columns of the table that is changed.
    """
    # Names, texts and numbers are of no account but for being there.
    words = [word for p in before for word in (p.word.split() if p.kind in _WORDS and p.word else ["\0"])]
    if words[0] in ("EXPLAIN", "ADVISE", "VERIFY") or words[:2] == ["SHOW", "COVERAGE"]:
        yield from _of_report(words)
    elif words[0] in _CHANGES:
        yield from _of_change(_CHANGES[words[0]], words)
    elif words[0] == "ATTACH":
        yield from _of_attach(words, is_text=before[-1].kind == "string")
    else:
        yield from _of_form(*_form(words))


def _of_form(phrases: Sequence[_Phrase], words: Sequence[str]) -> Iterator[str]:
    opened: list[int] = []
    for at, word in enumerate(words):
        if word == "(":
            opened.append(at)
        elif word == ")" and opened:
            opened.pop()
    here = words[opened[-1] + 1 :] if opened else words
    lasts = {phrase.words[-1] for phrase in phrases}
    group = next((word for word in reversed(words[: opened[-1]]) if word in lasts), "") if opened else ""
    inside = [p for p in phrases if p.depth == len(opened) and p.group == group]
    rests = [p.words[n:] for p in inside for n in range(1, len(p.words)) if tuple(here[-n:]) == p.words[:n]]
    if rests or not inside:
        yield from map(" ".join, rests)
    elif values := next((p.values for p in inside if p.values and here[-1:] == list(p.words)), ()):
        yield from values
    elif opened:
        yield from _of_options(inside, here)
    elif here and (here[-1] not in lasts or any(p.behind in ("", "]") and p.words[-1] == here[-1] for p in inside)):
        yield from _of_clauses(inside, here)
        if any(p.depth == 1 and p.words == ("TYPE",) for p in phrases) and "TO" in here and "(" not in here[-3:]:
            yield "(TYPE"


def _of_options(inside: Sequence[_Phrase], here: Sequence[str]) -> Iterator[str]:
    """Yield options in parentheses, and kinds of indices, of which each may be there again."""
    begins = not here or here[-1] == ","
    for phrase in inside:
        is_kind, is_option = phrase.behind == "(", not any(p.behind == "(" for p in inside)
        if begins and (is_kind or (is_option and phrase.words[0] not in here)):
            yield " ".join(phrase.words) + ("(" if is_kind else "")
        elif not begins and not is_kind and not is_option and here[-1] == ")":
            yield " ".join(phrase.words)


def _of_clauses(inside: Sequence[_Phrase], here: Sequence[str]) -> Iterator[str]:
    """Yield clauses that are not there yet, up to the first one that has to be."""
    written = {at for at, p in enumerate(inside) if _holds(here, p.words)}
    bound = max((at for at in written if not inside[at].optional), default=-1)
    if any(inside[at - 1].has_other for at in written if at) or (written and inside[min(written)].has_other):
        return
    for at, phrase in enumerate(inside):
        if at not in written and (at > bound or not phrase.optional):
            yield " ".join(phrase.words)
            if not (phrase.optional or phrase.has_other):
                return


def _holds(words: Sequence[str], phrase: tuple[str, ...]) -> bool:
    return any(tuple(words[at : at + len(phrase)]) == phrase for at in range(len(words)))


def _of_change(follows: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], words: Sequence[str]) -> Sequence[str]:
    depth, state, last = 0, "", words[-1]
    for word in words:
        depth += (word == "(") - (word == ")")
        state = word if not depth and word in follows else state
    if not state:
        return ()
    if depth:
        return ("",) if depth == 1 and state in _LISTS and last in ("(", ",") else ()
    if last == state or (last == "," and state == "SET"):
        return follows[state][0]
    if state == "SET" and words[-2] in ("SET", ","):
        return ("=",)
    is_end = _END.match(last) is not None and last not in _INSIDE
    return follows[state][1] if is_end or state == "WHEN" else ()


def _of_report(words: Sequence[str]) -> Iterator[str]:
    kind = "COVERAGE" if words[1:2] == ["COVERAGE"] else words[0]
    flags, formats = OF_REPORTS[kind]
    begin = 2 if kind == "COVERAGE" else 1
    if words[begin : begin + 1] == ["("] and ")" not in words:
        if words[-1] == "FORMAT":
            yield from formats
        elif words[-1] in ("(", ","):
            yield from (word for word in (*flags, "FORMAT") if word not in words[begin:])


def _of_attach(words: Sequence[str], *, is_text: bool) -> Iterator[str]:
    if "(" not in words:
        if is_text:
            yield "AS"
        elif len(words) > 2 and words[-2] == "AS":
            yield "(TYPE"
    elif words[-1] == "(":
        yield "TYPE"
    elif words[-1] == ",":
        kind = next((b for a, b in pairwise(words) if a == "TYPE"), "").lower()
        yield from (name.upper() for name in TYPES.get(kind, ()) if name.upper() not in words)
