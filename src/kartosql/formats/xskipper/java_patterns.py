"""Regular expressions that Java, RE2 and Python read alike, and what they find in texts."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import UsageError
from kartosql.formats.arrays import array_of

_ESCAPE = r"\\(?:[dDwWsSntrf]|[!-/:-@\[-`{-~])"
# What Java, RE2 and Python read alike, but for dots and ends of lines, which are replaced below.
_TOKEN = re.compile(
    rf"{_ESCAPE}|\[\^?(?:[^\[\]\\&^]|{_ESCAPE})+\]|\((?:\?:|(?!\?))|\)|[*+?]\??|\{{\d+(?:,\d*)?\}}\??|[^\\\[\]{{}}(]"
)
_ENDS = "\n\r\x85\u2028\u2029"
_OF_JAVA = {".": f"[^{_ENDS}]", "$": rf"(?=(?:\r\n|(?<!\r)\n|[{_ENDS[1:]}])?\Z)"}
_IGNORE_CASE = "(?i)"


def of_java(pattern: str) -> re.Pattern[str]:
    """Return a pattern as Java reads it; raises ``invalid-argument`` for what engines may read in different ways."""
    rest = pattern.removeprefix(_IGNORE_CASE)
    tokens = [m[0] for m in _TOKEN.finditer(rest)]
    try:
        if "".join(tokens) != rest:
            raise ValueError("only what Java and DuckDB read alike is possible")
        flags = re.ASCII | (re.IGNORECASE if rest != pattern else 0)
        found = re.compile("".join(_OF_JAVA.get(t, t) for t in tokens), flags)
        pc.match_substring_regex(array_of([""], pa.string()), pattern)
    except (ValueError, re.error, OverflowError, RecursionError, pa.ArrowInvalid) as e:
        raise _refused(pattern, str(e).splitlines()[0]) from None
    if not found.groups:
        raise _refused(pattern, "it has no group in brackets, which is what is kept")
    return found


def extracted(values: pa.Array, pattern: str) -> pa.Array:
    """Return first groups of a pattern in texts: of the first match as DuckDB has it, of all as Java has them."""
    java = of_java(pattern)
    matching = values.filter(pc.match_substring_regex(values, pattern))
    first = pc.replace_substring_regex(matching, rf"\A(?s:.*?)(?:{pattern})(?s:.*)\z", r"\1")
    every = {m[1] for text in values.to_pylist() for m in java.finditer(text) if m[1] is not None}
    return pc.unique(pa.concat_arrays([first, array_of(sorted(every), pa.string())]))


def _refused(pattern: str, reason: str) -> UsageError:
    return UsageError(
        f"{pattern!r} is no pattern for an index: {reason}.",
        hint="Groups, classes, quantifiers, alternatives, ^, $, and (?i) in front are possible.",
    )
