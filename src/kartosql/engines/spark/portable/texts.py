"""Functions of texts, regular expressions and JSON on Spark as DuckDB has them."""

from __future__ import annotations

import re

from kartosql.engines.spark.portable.functions import Call, rule
from kartosql.engines.spark.types import Type, cast, identifier, refuses, text_literal

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
# Characters that stay by themselves, whatever is beside them; DuckDB reverses what is seen as one.
_ALONE = (
    r"^[ -~\x{A1}-\x{A8}\x{AA}-\x{AC}\x{AF}-\x{2FF}\x{370}-\x{482}\x{48A}-\x{52F}\x{1E00}-\x{1FFF}\x{20A0}-\x{20BF}"
    r"\x{3041}-\x{3096}\x{30A1}-\x{30FA}\x{4E00}-\x{9FFF}]*\z"
)
# To DuckDB case is a matter of single characters.
_SINGLE = {"lower": ("\u0130\u03a3", "i\u03c3"), "upper": ("\u00df", "\u1e9e")}


def _like(call: Call) -> str:
    text, pattern = call.args[0].sql, call.args[1]
    folded, negated = "*" in call.name or "ilike" in call.name, call.name.startswith(("!", "not_"))
    escape = call.constant(2) if len(call.args) == 3 else ""
    if len(escape) > 1:
        raise call.refused(" with such an escape")
    constant = call.constant(1) if pattern.is_constant else None
    if folded:
        text = _cased("lower", text)
        if escape.isalpha() or constant is None or not constant.isascii():
            raise call.refused(" unless the pattern is a constant of ASCII characters")
        constant = constant.lower()
    if constant is not None:
        shown = _pattern(call, constant, escape)
    elif escape:
        raise call.refused(" unless the pattern is a constant")
    else:
        # DuckDB has no escape of its own, Spark has the backslash.
        shown = f"replace({pattern.sql}, {text_literal(chr(92))}, {text_literal(chr(92) * 2)})"
    return f"({text} {'NOT ' if negated else ''}LIKE {shown})"


def _pattern(call: Call, pattern: str, escape: str) -> str:
    """Return a constant pattern in which the backslash is the escape."""
    found, characters = "", iter(pattern)
    for c in characters:
        escaped = c == escape
        if escaped:
            c = next(characters, "")
            if c not in ("%", "_", escape):
                raise call.refused(" with such an escape")
        found += "\\" + c if c == "\\" or (escaped and c in "%_") else c
    return text_literal(found)


def _cased(function: str, sql: str) -> str:
    """Return a text in one case; refused when it is met with characters that the engines see differently."""
    single, other = map(text_literal, _SINGLE[function])
    known = f"{sql} IS NULL OR {sql} RLIKE {text_literal(_CASED)}"
    cased = f"{function}(translate({sql}, {single}, {other}))"
    return f"(CASE WHEN {known} THEN {cased} ELSE {refuses('the case of such a character')} END)"


def _reverse(call: Call) -> str:
    text = call.args[0].sql
    known = f"{text} IS NULL OR {text} RLIKE {text_literal(_ALONE)}"
    return f"CASE WHEN {known} THEN reverse({text}) ELSE {refuses('such characters in reverse')} END"


def _trim(call: Call) -> str:
    word = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}[call.name]
    characters = call.constant(1) if len(call.args) == 2 else _BLANKS
    if not characters:
        return call.args[0].sql
    return f"trim({word} {text_literal(characters)} FROM {call.args[0].sql})"


def _pad(call: Call) -> str:
    reason = " with such a length or filler"
    count, filler = call.number(1, 0, reason, below=2**20), call.constant(2)
    if len(filler) != 1:
        raise call.refused(reason)
    return f"{call.name}({call.args[0].sql}, {count}, {text_literal(filler)})"


def _replace(call: Call) -> str:
    if call.constant(1) == "":
        call.constant(2)
        return call.args[0].sql
    return f"replace({', '.join(a.sql for a in call.args)})"


def _regular(call: Call) -> str:
    """Return the pattern of a call, refused if the engines might read it differently, or it takes Java forever."""
    pattern: str = call.constant(1)
    repeated = re.search(r"[*+?}][*+{]|[*+}][^()]*\)[*+{]|\)\)+[*+{]", pattern)
    if len(pattern) > 500 or not _SAFE.fullmatch(pattern) or repeated:
        raise call.refused(f" with the pattern {pattern!r}")
    return pattern


def _over_lines(pattern: str, subject: str, found: str) -> str:
    """Return a match, refused when it meets line ends that RE2 does not know."""
    if not any(c in pattern for c in (".", "$", "[^", "\\D", "\\W")):
        return found
    clean = f"({subject} IS NULL OR NOT {subject} RLIKE {text_literal(_LINE_ENDS)})"
    return f"CASE WHEN {clean} THEN {found} ELSE {refuses('a regular expression over lines')} END"


def _regexp(call: Call) -> str:
    pattern, subject = _regular(call), call.args[0].sql
    if call.name == "regexp_full_match":
        pattern = f"^(?:{pattern})$"
    return _over_lines(pattern, subject, f"({subject} RLIKE {text_literal(pattern)})")


def _regexp_replace(call: Call) -> str:
    """Return a text with all matches, or the first one, replaced by a constant."""
    pattern, subject, new = _regular(call), call.args[0].sql, call.constant(2)
    options = call.constant(3) if len(call.args) == 4 else ""
    if options not in ("", "g") or "\\" in new or "$" in new or re.search(pattern, ""):
        raise call.refused(" with such arguments")
    replaced = f"regexp_replace({subject}, {text_literal(pattern)}, {text_literal(new)})"
    if not options:
        parts = f"split({subject}, {text_literal(pattern)}, 2)"
        replaced = f"array_join({parts}, {text_literal(new)})"
    return _over_lines(pattern, subject, replaced)


def _regexp_extract(call: Call) -> str:
    pattern, subject = _regular(call), call.args[0].sql
    group = call.constant(2, nullable=True) if len(call.args) == 3 else 0
    if group is None or not 0 <= group <= re.compile(pattern).groups:
        raise call.refused(" for such a group")
    return _over_lines(pattern, subject, f"regexp_extract({subject}, {text_literal(pattern)}, {group})")


def _split(call: Call) -> str:
    separator = call.constant(1, nullable=True)
    if not separator or not separator.isascii():
        raise call.refused(" with such a separator")
    quoted = "".join(c if c.isalnum() or c.isspace() else f"\\{c}" for c in separator)
    return f"split({call.args[0].sql}, {text_literal(quoted)}, -1)"


def _split_part(call: Call) -> str:
    separator, reason = call.constant(1), " with such arguments"
    if not separator:
        raise call.refused(reason)
    return f"split_part({call.args[0].sql}, {text_literal(separator)}, {call.number(2, 1, reason)})"


def _translate(call: Call) -> str:
    old, new = call.constant(1), call.constant(2)
    if "\0" in old + new:
        raise call.refused(" for such characters")
    return f"translate({call.args[0].sql}, {text_literal(old)}, {text_literal(new)})"


def _format(call: Call) -> str:
    """Return a text with places for others: ``{}``, or ``%s`` and ``%05d``; no other forms."""
    text, pieces, at = call.constant(0), [], 0
    places = r"(\{\{|\}\})|(\{[^{}]*\}|[{}])|([^{}]+)"
    if call.name == "printf":
        places = r"(%%)|(%[^a-zA-Z%]*.?)|([^%]+)"
    for twice, place, plain in re.findall(places, text, re.DOTALL):
        if not place:
            pieces.append(text_literal(twice[:1] or plain))
            continue
        at += 1
        kind = call.args[at].type.kind if at < len(call.args) else ""
        if not kind or not re.fullmatch(
            {"printfs": "%s", "printfi": "%0?[0-9]{0,3}d"}.get(call.name + kind, r"\{\}"), place
        ):
            raise call.refused(f" with the format {text!r}")
        sql = f"CAST({call.args[at].sql} AS STRING)"
        pieces.append(sql if place == "{}" else f"format_string({text_literal(place)}, {call.args[at].sql})")
    if at < len(call.args) - 1:
        raise call.refused(f" with the format {text!r}")
    given = " OR ".join(f"{a.sql} IS NULL" for a in call.args[1:]) or "false"
    return f"CASE WHEN {given} THEN NULL ELSE concat({', '.join(pieces)}) END"


def _regexp_extract_all(call: Call) -> str:
    pattern, subject = _regular(call), call.args[0].sql
    if re.search(pattern, ""):
        raise call.refused(" with a pattern of nothing")
    return _over_lines(pattern, subject, f"regexp_extract_all({subject}, {text_literal(pattern)}, 0)")


def _json(call: Call) -> str:
    value = call.args[0]
    return f"CASE WHEN {value.sql} IS NOT NULL THEN {_json_of(call, value.sql, value.type)} END"


def _json_of(call: Call, sql: str, type_: Type, depth: int = 0) -> str:
    """Return a value as JSON; texts with characters that it has to escape are refused when they are met."""
    if type_.kind in "iuhb":
        found = f"CAST({sql} AS STRING)"
    elif type_.kind == "D":
        found = f"concat('\"', {cast(sql, type_, Type('VARCHAR'))}, '\"')"
    elif type_.kind == "s":
        plain = f"{sql} IS NULL OR NOT {sql} RLIKE {text_literal(_ESCAPED)}"
        found = f"CASE WHEN {plain} THEN concat('\"', {sql}, '\"') ELSE {refuses('such characters in JSON')} END"
    elif type_.kind == "l":
        item = _json_of(call, f"j{depth}", type_.element, depth + 1)
        found = f"concat('[', array_join(transform({sql}, j{depth} -> {item}), ','), ']')"
    elif type_.kind == "S" and not any(re.search(_ESCAPED, name) for name, _ in type_.parts):
        fields = [(text_literal(f'"{n}":'), _json_of(call, f"{sql}.{identifier(n)}", p, depth)) for n, p in type_.parts]
        items = ", ',', ".join(f"{name}, {item}" for name, item in fields)
        found = f"CASE WHEN {sql} IS NOT NULL THEN concat('{{', {items}, '}}') END"
    else:
        raise call.refused()
    return f"coalesce({found}, 'null')"


def _json_field(call: Call) -> str:
    """Return a field of an object of simple values as text; of other texts it is refused when they are met."""
    path = call.constant(1)
    name = re.fullmatch(r"(?:[$][.])?([A-Za-z_][A-Za-z0-9_]*)", path)
    if name is None:
        raise call.refused(f" with the path {path!r}")
    text, found = call.args[0].sql, f'"{name[1]}" ?: ?(?:"([^"]*)"|(true|false|-?[0-9]+))'
    several = f'{text} RLIKE \'"{name[1]}" ?:.*"{name[1]}" ?:\''
    parts = [f"regexp_extract({text}, {text_literal(found)}, {group})" for group in (1, 2)]
    known = f"CASE WHEN {text} RLIKE {text_literal(found)} THEN concat({', '.join(parts)}) END"
    refused = f"{text} IS NOT NULL AND (NOT {text} RLIKE {text_literal(_OBJECT)} OR {several})"
    other = refuses("JSON of another form than an object of simple values")
    return f"CASE WHEN {refused} THEN {other} ELSE {known} END"


_ESCAPED = r'[\x00-\x1f"\\]'
_PAIR = r'"[A-Za-z0-9_ .\-]*" ?: ?(?:"[^"\\\x00-\x1f]*"|true|false|null|0|-?[1-9][0-9]{0,17})'
_OBJECT = rf"^\{{ ?(?:{_PAIR}(?: ?, ?{_PAIR})* ?)?\}}\z"
rule("to_json", ".", _json)
rule("->> json_extract_string", "[sj]s", _json_field)
rule("~~ !~~ ~~* !~~*", "ss", _like, exact=True)
rule("like_escape not_like_escape ilike_escape not_ilike_escape", "sss", _like, exact=True)
rule("lower lcase", "s", lambda call: _cased("lower", call.args[0].sql))
rule("upper ucase", "s", lambda call: _cased("upper", call.args[0].sql))
rule("reverse", "s", _reverse)
rule("length len char_length character_length", "s", "length({0})")
rule("strlen octet_length", "[sx]", "octet_length({0})")
rule("bit_length ascii md5", "s", "{name}({0})")
_PLACE = " at such a place"
rule("substring substr", "si|sii", "substring({all})", numbers={1: (1, _PLACE), 2: (0, _PLACE)})
rule("left right", "si", "{name}({all})", numbers={1: (0, " with such a number")})
rule("concat", "s+", "concat_ws('', {all})")  # NULL left out
rule("concat_ws", "ss+", "concat_ws({all})")
rule("||", "ss", "concat({0}, {1})")
rule("trim ltrim rtrim", "s|ss", _trim)
rule("lpad rpad", "sis", _pad)
rule("replace", "sss", _replace)
rule("repeat", "si", "repeat({0}, CAST(CASE WHEN {1} < 0 THEN 0 ELSE {1} END AS INT))")
_BYTES = "decode(encode({}, 'UTF-8'), 'ISO-8859-1')"  # DuckDB's distance is one of bytes
rule("levenshtein editdist3", "ss", f"levenshtein({_BYTES.format('{0}')}, {_BYTES.format('{1}')})")
rule("translate", "sss", _translate)
rule("format", "s[siu]+", _format)
rule("printf", "s[si]+", _format)
rule("regexp_extract_all", "ss", _regexp_extract_all)
rule("contains", "ss", "contains({0}, {1})", exact=True)
rule("prefix starts_with ^@", "ss", "startswith({0}, {1})", exact=True)
rule("suffix ends_with", "ss", "endswith({0}, {1})", exact=True)
rule("instr strpos position", "ss", "instr({0}, {1})")
rule("unicode ord", "s", "CASE WHEN {0} = '' THEN -1 ELSE ascii({0}) END")
rule("sha256", "s", "sha2({0}, 256)")
rule("regexp_matches regexp_full_match", "ss", _regexp, exact=True)
rule("regexp_replace", "ssss|sss", _regexp_replace)
rule("regexp_extract", "ss|ssi", _regexp_extract)
rule("string_split str_split split string_to_array", "ss", _split)
rule("split_part", "ssi", _split_part)
rule("array_extract", "si", "substring({0}, {1}, 1)", numbers={1: (1, _PLACE)})
_PLACES = " for such places"
rule(
    "array_slice", "sii", "substring({0}, {1}, greatest({2} - {1} + 1, 0))", numbers={1: (1, _PLACES), 2: (0, _PLACES)}
)
