"""Expressions made from the translator's own lists of what it accepts, so that no test forgets a new entry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from kartosql.engines.spark.portable import aggregates, expressions, functions

MOST = 3  # arguments
LONG = ("range", "generate_series")  # which make as many values as their arguments say


def calls(values: Mapping[str, Sequence[str]], asked: str) -> Iterator[str]:
    """Yield a call of each function that has a rule but the LONG ones, with arguments of all kinds that its rule takes.

    ``values`` are the arguments by kind, one of each call at least is of a kind in ``asked``. Of these kinds each
    has a value for each place; of others each value is taken.
    """
    for name in sorted(set(functions.RULES).difference(LONG)):
        for rule in functions.RULES[name]:
            for kinds in _kinds(rule.pattern.fullmatch, "".join(values), asked):
                # One value of what is asked for: the first of its kind at the first place, the second at the second.
                taken = [values[k][at : at + 1] if k in asked else values[k] for at, k in enumerate(kinds)]
                for args in itertools.product(*taken):
                    yield f'"{name}"({", ".join(args)})'


def aggregated(values: Mapping[str, Sequence[str]], asked: str) -> Iterator[str]:
    """Yield a call of each aggregate that has a rule, as ``calls`` does."""
    for name, pattern, _ in aggregates._RULES:
        if name != "count_star":
            found = _kinds(pattern.fullmatch, "".join(values), asked)
            yield from (f"{name}({arg})" for kinds in found for arg in values.get(kinds, ()))  # of one argument


def windowed(values: Mapping[str, Sequence[str]], asked: str) -> Iterator[str]:
    """Yield the functions that take a value of another row of their window."""
    for name in aggregates._VALUES.values():
        more = ", 2" if name == "nth_value" else ""
        yield from (f"{name}({arg}{more})" for kind in asked for arg in values[kind])


def _kinds(matches: Callable[[str], object], known: str, asked: str) -> Iterator[str]:
    free = matches("".join(known[:1] * 9)) is not None or matches(known) is not None  # takes anything
    for count in range(1, 2 if free else MOST + 1):
        for letters in itertools.product(known, repeat=count):
            kinds = "".join(letters)
            if set(kinds) & set(asked) and matches(kinds):
                yield kinds


def comparisons() -> list[str]:
    """Return the operators that compare two values."""
    return list(expressions._COMPARISONS.values())
