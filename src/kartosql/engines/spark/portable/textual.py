"""Functions of text on Spark as DuckDB has them."""

from __future__ import annotations

import re

from kartosql.engines.spark.portable.casts import refuses
from kartosql.engines.spark.portable.rules import Call, rule
from kartosql.engines.spark.types import text_literal

# Regular expressions that RE2 and Java read alike: no classes that count letters, no look-around, no flags.
_SAFE = re.compile(
    r"(?:[A-Za-z0-9 _@#%&=:;,<>/~'\"!\-äöüÄÖÜßé]|\\[.\\+*?^$|(){}\[\]/\-dDwW]|[.^$|*+?]|\((?!\?)|\(\?:|\)|"
    r"\[\^?(?:[A-Za-z0-9_\- .,;:@#%/+*]|\\[dw.\-])+\]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})*"
)
_LINE_ENDS = r"[\n\r\x{85}\x{2028}\x{2029}]"
# Blanks to DuckDB: what Unicode has as space separators.
_BLANKS = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
# Characters whose case both engines see alike, whatever version of Unicode they have; but for those mapped below.
_CASED = (
    r"^[\x{0}-\x{148}\x{14A}-\x{17F}\x{200}-\x{24F}\x{300}-\x{344}\x{370}-\x{38F}\x{391}-\x{3AF}\x{3B1}-\x{3FF}"
    r"\x{400}-\x{52F}\x{590}-\x{6FF}\x{900}-\x{FFF}\x{1100}-\x{11FF}\x{1E00}-\x{1E95}\x{1E9E}-\x{1EFF}"
    r"\x{2000}-\x{20CF}\x{2190}-\x{23FF}\x{2500}-\x{2BFF}\x{2E80}-\x{9FFF}\x{AC00}-\x{D7A3}\x{FF00}-\x{FFEF}"
    r"\x{1F000}-\x{1FAFF}\x{20000}-\x{2FFFF}]*$"
)
# To DuckDB case is a matter of single characters.
_LOWER, _UPPER = ("\u0130\u03a3", "i\u03c3"), ("\u00df", "\u1e9e")


def _like(call: Call, *, negated: bool = False, folded: bool = False) -> str:
    text, pattern = call.args[0].sql, call.args[1]
    escape = call.constant(2) if len(call.args) == 3 else ""
    if (pattern.is_constant and pattern.value is None) or escape is None:
        return "CAST(NULL AS BOOLEAN)"
    if len(escape) > 1:
        raise call.refused(" with such an escape")
    if folded:
        text = _lower(text)
        if escape.isalpha() or not pattern.is_constant or not pattern.value.isascii():
            raise call.refused(" unless the pattern is a constant of ASCII characters")
    if pattern.is_constant:
        shown = _pattern(call, pattern.value.lower() if folded else pattern.value, escape)
    elif escape:
        raise call.refused(" unless the pattern is a constant")
    else:
        # DuckDB has no escape of its own, Spark has the backslash.
        shown = f"replace({pattern.sql}, {_text(chr(92))}, {_text(chr(92) * 2)})"
    return f"({text} {'NOT ' if negated else ''}LIKE {shown})"


def _pattern(call: Call, pattern: str, escape: str) -> str:
    """Return a constant pattern in which the backslash is the escape."""
    found, at = [], 0
    while at < len(pattern):
        c = pattern[at]
        if escape and c == escape:
            at += 1
            if at == len(pattern) or pattern[at] not in ("%", "_", escape):
                raise call.refused(" with such an escape")
            c = pattern[at]
            found.append("\\" + c if c in "%_\\" else c)
        else:
            found.append("\\\\" if c == "\\" else c)
        at += 1
    return _text("".join(found))


def _text(value: str) -> str:
    return text_literal(value)


def _lower(sql: str) -> str:
    return _with_case("lower", _LOWER, sql)


def _upper(sql: str) -> str:
    return _with_case("upper", _UPPER, sql)


def _with_case(function: str, special: tuple[str, str], sql: str) -> str:
    """Return a text in one case; refused when it is met with characters that the engines see differently."""
    cased = f"{function}(translate({sql}, {_text(special[0])}, {_text(special[1])}))"
    known = f"{sql} IS NULL OR {sql} RLIKE {_text(_CASED)}"
    return f"(CASE WHEN {known} THEN {cased} ELSE {refuses('the case of such a character')} END)"


def _reverse(call: Call) -> str:
    sql = call.args[0].sql
    known = f"{sql} IS NULL OR {sql} RLIKE {_text('^[ -~]*$')}"
    return f"CASE WHEN {known} THEN reverse({sql}) ELSE {refuses('such characters in reverse')} END"


def _substring(call: Call) -> str:
    """Return a part of a text that begins at a constant place from its start."""
    start = call.constant(1)
    length = call.constant(2) if len(call.args) == 3 else None
    if start is None or (len(call.args) == 3 and length is None):
        return "CAST(NULL AS STRING)"
    if not 1 <= start < 2**31 or (length is not None and not 0 <= length < 2**31):
        raise call.refused(" at such a place")
    return f"substring({call.args[0].sql}, {start}{'' if length is None else f', {length}'})"


def _end(call: Call) -> str:
    count = call.constant(1)
    if count is None:
        return "CAST(NULL AS STRING)"
    if not 0 <= count < 2**31:
        raise call.refused(" with such a number")
    return f"{call.name}({call.args[0].sql}, {count})"


def _concat(call: Call) -> str:
    """Return texts joined, NULL left out."""
    return f"concat_ws('', {', '.join(a.sql for a in call.args)})"


def _concat_ws(call: Call) -> str:
    return f"concat_ws({', '.join(a.sql for a in call.args)})"


def _trim(call: Call) -> str:
    word = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}[call.name]
    characters = call.constant(1) if len(call.args) == 2 else _BLANKS
    if characters is None:
        return "CAST(NULL AS STRING)"
    if not characters:
        return call.args[0].sql
    return f"trim({word} {_text(characters)} FROM {call.args[0].sql})"


def _pad(call: Call) -> str:
    count, filler = call.constant(1), call.constant(2)
    if count is None or filler is None:
        return "CAST(NULL AS STRING)"
    if not 0 <= count < 2**20 or len(filler) != 1:
        raise call.refused(" with such a length or filler")
    return f"{call.name}({call.args[0].sql}, {count}, {_text(filler)})"


def _replace(call: Call) -> str:
    if call.constant(1) == "":
        return call.args[0].sql if call.constant(2) is not None else "CAST(NULL AS STRING)"
    return f"replace({', '.join(a.sql for a in call.args)})"


def _repeat(call: Call) -> str:
    count = call.constant(1)
    if count is None:
        return "CAST(NULL AS STRING)"
    if count >= 2**31:
        raise call.refused(" so often")
    return f"repeat({call.args[0].sql}, {max(count, 0)})"


def _checked(call: Call, pattern: str) -> None:
    """Refuse regular expressions that the engines might read differently, or that take Java forever."""
    repeated = re.search(r"[*+?}][*+{]|[*+}][^()]*\)[*+{]|\)\)+[*+{]", pattern)
    if len(pattern) > 500 or not _SAFE.fullmatch(pattern) or repeated:
        raise call.refused(f" with the pattern {pattern!r}")


def _over_lines(pattern: str, subject: str, found: str) -> str:
    """Return a match, refused when it is met with line ends that are none to RE2."""
    if not any(c in pattern for c in (".", "$", "[^", "\\D", "\\W")):
        return found
    clean = f"({subject} IS NULL OR NOT {subject} RLIKE {_text(_LINE_ENDS)})"
    return f"CASE WHEN {clean} THEN {found} ELSE {refuses('a regular expression over lines')} END"


def _regexp(call: Call) -> str:
    pattern = call.constant(1)
    if pattern is None:
        return "CAST(NULL AS BOOLEAN)"
    _checked(call, pattern)
    if call.name == "regexp_full_match":
        pattern = f"^(?:{pattern})$"
    subject = call.args[0].sql
    return _over_lines(pattern, subject, f"({subject} RLIKE {_text(pattern)})")


def _regexp_replace(call: Call) -> str:
    """Return a text with all matches replaced by a constant."""
    pattern, new, options = (call.constant(i) for i in (1, 2, 3))
    if None in (pattern, new, options):
        return "CAST(NULL AS STRING)"
    _checked(call, pattern)
    if options != "g" or "\\" in new or "$" in new or re.search(pattern, ""):
        raise call.refused(" with such arguments")
    subject = call.args[0].sql
    return _over_lines(pattern, subject, f"regexp_replace({subject}, {_text(pattern)}, {_text(new)})")


def _regexp_extract(call: Call) -> str:
    pattern, group = call.constant(1), call.constant(2) if len(call.args) == 3 else 0
    if pattern is None or group is None:
        return "CAST(NULL AS STRING)"
    _checked(call, pattern)
    if not 0 <= group <= re.compile(pattern).groups:
        raise call.refused(" for such a group")
    subject = call.args[0].sql
    return _over_lines(pattern, subject, f"regexp_extract({subject}, {_text(pattern)}, {group})")


def _split(call: Call) -> str:
    separator = call.constant(1)
    if not separator or not separator.isascii():
        raise call.refused(" with such a separator")
    quoted = "".join(c if c.isalnum() or c.isspace() else f"\\{c}" for c in separator)
    return f"split({call.args[0].sql}, {_text(quoted)}, -1)"


def _split_part(call: Call) -> str:
    separator, at = call.constant(1), call.constant(2)
    if not separator or at is None or not 1 <= at < 2**31:
        raise call.refused(" with such arguments")
    return f"split_part({call.args[0].sql}, {_text(separator)}, {at})"


def _character(call: Call) -> str:
    at = call.constant(1)
    if at is None or not 1 <= at < 2**31:
        raise call.refused(" at such a place")
    return f"substring({call.args[0].sql}, {at}, 1)"


def _slice(call: Call) -> str:
    first, last = call.constant(1), call.constant(2)
    if not (isinstance(first, int) and isinstance(last, int) and 1 <= first < 2**31 and 0 <= last < 2**31):
        raise call.refused(" for such places")
    return f"substring({call.args[0].sql}, {first}, {max(0, last - first + 1)})"


rule("~~", "ss", _like, exact=True)
rule("!~~", "ss", lambda call: _like(call, negated=True), exact=True)
rule("like_escape", "sss", _like, exact=True)
rule("not_like_escape", "sss", lambda call: _like(call, negated=True), exact=True)
rule("~~*", "ss", lambda call: _like(call, folded=True), exact=True)
rule("!~~*", "ss", lambda call: _like(call, negated=True, folded=True), exact=True)
rule("ilike_escape", "sss", lambda call: _like(call, folded=True), exact=True)
rule("not_ilike_escape", "sss", lambda call: _like(call, negated=True, folded=True), exact=True)
rule("lower lcase", "s", lambda call: _lower(call.args[0].sql))
rule("upper ucase", "s", lambda call: _upper(call.args[0].sql))
rule("reverse", "s", _reverse)
rule("length len char_length character_length", "s", "length({0})")
rule("strlen octet_length", "[sx]", "octet_length({0})")
rule("bit_length", "s", "bit_length({0})")
rule("substring substr", "si|sii", _substring)
rule("left right", "si", _end)
rule("concat", "s+", _concat)
rule("concat_ws", "ss+", _concat_ws)
rule("||", "ss", "concat({0}, {1})")
rule("trim ltrim rtrim", "s|ss", _trim)
rule("lpad rpad", "sis", _pad)
rule("replace", "sss", _replace)
rule("repeat", "si", _repeat)
rule("contains", "ss", "contains({0}, {1})", exact=True)
rule("prefix starts_with ^@", "ss", "startswith({0}, {1})", exact=True)
rule("suffix ends_with", "ss", "endswith({0}, {1})", exact=True)
rule("instr strpos position", "ss", "instr({0}, {1})")
rule("ascii", "s", "ascii({0})")
rule("unicode ord", "s", "CASE WHEN {0} = '' THEN -1 ELSE ascii({0}) END")
rule("md5", "s", "md5({0})")
rule("sha256", "s", "sha2({0}, 256)")
rule("regexp_matches regexp_full_match", "ss", _regexp, exact=True)
rule("regexp_replace", "ssss", _regexp_replace)
rule("regexp_extract", "ss|ssi", _regexp_extract)
rule("string_split str_split split string_to_array", "ss", _split)
rule("split_part", "ssi", _split_part)
rule("array_extract", "si", _character)
rule("array_slice", "sii", _slice)
