from __future__ import annotations

import inspect
import re

import pytest

from kartosql import errors
from kartosql.errors import KartosqlError, SqlError, UnknownNameError, excerpt

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, KartosqlError)]


def test_every_error_class_has_its_own_kebab_case_code():
    codes = [c.default_code for c in CLASSES]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)
    assert len(set(codes)) == len(codes) > 5


def test_text_holds_message_place_and_hint():
    error = SqlError("There is no column 'nope'.", hint="Did you mean 'none'?", sql="SELECT nope", span=(7, 11))
    assert str(error) == (
        "There is no column 'nope'.\n"
        "LINE 1: SELECT nope\n"
        "               ^^^^\n"
        "Hint: Did you mean 'none'?"
    )  # fmt: skip


def test_text_without_place_is_the_message_alone():
    assert str(KartosqlError("It failed.")) == "It failed."


def test_dictionary_holds_code_message_hint_and_span():
    error = SqlError("no", code="unknown-column", hint="yes", span=(1, 2), sql="abc")
    shown = {"code": "unknown-column", "message": "no", "hint": "yes", "span": [1, 2]}
    assert error.to_dict() == {**shown, "docs": "docs/errors.md#unknown-column"}
    assert KartosqlError("no").to_dict()["span"] is None


def _unknown(name: str, code: str = "unknown-column", hint: str | None = None) -> SqlError:
    return SqlError(f"There is no {name}.", code=code, hint=hint, span=(0, 1))


def test_one_unknown_name_speaks_for_itself():
    error = UnknownNameError([_unknown("a", hint="Try b.")], "a")
    assert (error.code, error.message, error.hint, error.span) == (
        "unknown-column", "There is no a.", "Try b.", (0, 1)
    )  # fmt: skip


def test_several_unknown_names_are_shown_at_their_places():
    names = [SqlError(f"There is no {n}.", code="unknown-column", span=s) for n, s in (("a", (7, 8)), ("b", (10, 11)))]
    assert str(UnknownNameError(names, "SELECT a, b")).splitlines()[1:] == [
        "LINE 1: SELECT a, b",
        "               ^",
        "LINE 1: SELECT a, b",
        "                  ^",
    ]


def test_several_unknown_names_are_reported_at_once():
    error = UnknownNameError([_unknown("a", hint="Try c."), _unknown("b", hint="Try c.")], "a, b")
    assert error.message == "2 names are unknown: There is no a; There is no b."
    assert error.hint == "Try c."
    assert error.code == "unknown-column"
    assert [e["message"] for e in error.to_dict()["errors"]] == ["There is no a.", "There is no b."]


def test_names_of_different_kinds_have_the_common_code():
    error = UnknownNameError([_unknown("a"), _unknown("b", code="unknown-table")], "a b")
    assert error.code == "unknown-name"


def test_excerpt_shows_the_line_of_the_span():
    assert excerpt("SELECT a\nFROM nope\nWHERE b", (14, 18)) == "LINE 2: FROM nope\n             ^^^^"


def test_excerpt_of_a_long_line_keeps_the_caret_in_view():
    sql = "SELECT " + "a, " * 200 + "nope FROM t"
    line, caret = excerpt(sql, (607, 611)).split("\n")
    assert len(line) < 140
    assert line[caret.index("^") : caret.rindex("^") + 1] == "nope"


@pytest.mark.parametrize("span", [(0, 0), (3, 3), (3, 99), (99, 120), (-5, 2)])
def test_excerpt_points_somewhere_for_any_span(span):
    line, caret = excerpt("abc", span).split("\n")
    assert line == "LINE 1: abc"
    assert caret.strip(" ").strip("^") == ""
    assert "^" in caret


def test_excerpt_shows_control_characters_as_blanks():
    assert excerpt("a\tb\x1b[31m", (2, 3)) == "LINE 1: a b [31m\n          ^"


def test_span_over_a_line_end_stops_at_the_line():
    line, caret = excerpt("ab\ncd", (1, 5)).split("\n")
    assert caret.count("^") == 1, (line, caret)
