"""The sequential model: what each operation does to a state, and whether a history can be one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

# Rows of the dataset ``d`` are (q, s, n), q being the partition. The cube ``c`` has the dimension x; the state is that
# of ``seed`` (p, x, i, v) and of ``en`` (p, x, w), each by cell.
Plain = frozenset[tuple[str, str, int]]
Cells = tuple[frozenset[tuple[Any, ...]], frozenset[tuple[Any, ...]]]
State = Any
START_D = frozenset({("a", "s0", 1), ("a", "s1", 2), ("b", "s1", 3), ("b", "s2", 4)})
START_C = (
    frozenset({("a", 0, "s0", 1), ("a", 1, "s1", 2), ("b", 0, "s2", 3)}),
    frozenset({("a", 0, 1), ("b", 0, 2), ("b", 2, 3)}),
)
MOVED = 1000  # is added to numbers by UPDATE, of which the rest modulo this is a row's own


def matches(s: str, n: int, where: tuple[str, Any]) -> bool:
    """Return whether a row of ``d``, or a cell of the seed, is meant by a condition."""
    kind, value = where
    if kind == "s":
        return s == value
    if kind == "n":
        return n % MOVED % 3 == value
    return False


def _append(state: Plain, rows: Any) -> Plain:
    return state | frozenset(rows)


def _replace(state: Plain, rows: Any) -> Plain:
    parts = {row[0] for row in rows}
    return frozenset(row for row in state if row[0] not in parts) | frozenset(rows)


def _delete(state: Plain, where: Any) -> Plain:
    if where[0] == "q":
        return frozenset(row for row in state if row[0] != where[1])
    return frozenset(row for row in state if not matches(row[1], row[2], where))


def _update(state: Plain, where: Any, to: Any) -> Plain:
    return frozenset((q, to or s, n if to else n + MOVED) if matches(s, n, where) else (q, s, n) for q, s, n in state)


def _merge(state: Plain, rows: Any) -> Plain:
    """MERGE ON (q, n): what is there gets another s, what is not comes new."""
    keys = {(q, n) for q, s, n in rows}
    return frozenset(row for row in state if (row[0], row[2]) not in keys) | frozenset(rows)


def _cells(old: frozenset[Any], new: Any) -> frozenset[Any]:
    keys = {row[:2] for row in new}
    return frozenset(row for row in old if row[:2] not in keys) | frozenset(new)


def _append_c(state: Cells, seed: Any, en: Any) -> Cells:
    return _cells(state[0], seed), _cells(state[1], en)


def _update_c(state: Cells, part: str, seed: Any, en: Any) -> Cells:
    kept = [frozenset(row for row in one if not new or row[0] != part) for one, new in zip(state, (seed, en))]
    return _cells(kept[0], seed), _cells(kept[1], en)


def _delete_c(state: Cells, where: Any) -> Cells:
    if where[0] == "q":
        return frozenset(r for r in state[0] if r[0] != where[1]), frozenset(r for r in state[1] if r[0] != where[1])
    gone = {row[:2] for row in state[0] if matches(row[2], row[3], where)}
    return frozenset(r for r in state[0] if r[:2] not in gone), frozenset(r for r in state[1] if r[:2] not in gone)


def _set_c(state: Cells, where: Any) -> Cells:
    meant = {row[:2] for row in state[0] if matches(row[2], row[3], where)}
    seed = frozenset((*row[:3], row[3] + MOVED) if row[:2] in meant else row for row in state[0])
    return seed, frozenset((*row[:2], row[2] + MOVED) if row[:2] in meant else row for row in state[1])


def rows_of_cube(state: Cells) -> frozenset[tuple[Any, ...]]:
    """Return (p, x, i, v, w) of each cell of the seed."""
    known = {row[:2]: row[2] for row in state[1]}
    return frozenset((*row, known.get(row[:2])) for row in state[0])


WRITES: dict[str, Callable[..., State]] = {
    "append_d": _append, "replace_d": _replace, "delete_d": _delete, "update_d": _update, "merge_d": _merge,
    "foreign_d": _append, "append_c": _append_c, "update_c": _update_c, "delete_c": _delete_c, "set_c": _set_c,
    "foreign_c": lambda state, en: _append_c(state, (), en), "append_l": _append, "delete_l": _delete,
    "compact_l": lambda state: state, "restore_d": lambda state: START_D, "extend_c": lambda state, en: state,
    "restore_c": lambda state: START_C,
}  # fmt: skip
READS: dict[str, Callable[..., Any]] = {
    "read_d": lambda state: state,
    "copy_d": lambda state: state,
    "find_d": lambda state, where: frozenset(row for row in state if matches(row[1], row[2], where)),
    "read_l": lambda state: state,
    "find_l": lambda state, where: READS["find_d"](state, where),
    "read_c": rows_of_cube,
    "find_c": lambda state, where: frozenset(r for r in rows_of_cube(state) if matches(r[2], r[3], where)),
}


@dataclass
class Event:
    """An operation: when it began and ended, what came of it (ok, failed or unknown), and what it answered."""

    actor: int
    name: str
    given: tuple[Any, ...]
    began: int
    ended: float = math.inf
    outcome: str = "unknown"
    answer: Any = None
    sequence: int | None = None
    why: str = ""

    def __str__(self) -> str:
        given = ", ".join(map(repr, self.given))
        return (
            f"{self.began:>5}-{self.ended:<5} {self.actor}: {self.name}({given}) {self.outcome} {self.why}"
            + (f" v{self.sequence}" if self.sequence is not None else "")
            + (f" -> {sorted(self.answer, key=repr)}" if isinstance(self.answer, frozenset) else "")
        )


@dataclass
class History:
    """All operations on one object, and what readers of old versions saw of it, by sequence."""

    start: State
    events: list[Event]
    versions: dict[int, list[Hashable]] = field(default_factory=dict)

    def is_sequential(self) -> bool:
        """Return whether the answers are those of some order that keeps to the times (Wing and Gong).

        Statements that change single rows look first, and change what they saw then: appends that others commit in
        between come after them, as docs/writing.md says. All others are one step.
        """
        events = [e for e in self.events if e.outcome != "failed" and (e.name in WRITES or e.outcome == "ok")]
        everyone = sum(1 << n for n, e in enumerate(events) if e.outcome == "ok")
        seen: set[Hashable] = set()
        todo: list[tuple[int, State, Looks]] = [(0, self.start, frozenset())]
        while todo:
            done, state, looks = todo.pop()
            if done & everyone == everyone:
                return True
            if (done, state, looks) in seen:
                continue
            seen.add((done, state, looks))
            left = [(n, e) for n, e in enumerate(events) if not done >> n & 1]
            latest = min(e.ended for _, e in left)
            looked = dict(looks)
            for n, event in left:
                if event.began > latest:
                    continue
                if changes_rows(event) and n not in looked:
                    todo.append((done, state, looks | {(n, seen_by(state, event))}))
                    continue
                after = self._after(state, event, looked.pop(n, None))
                if after is not None:
                    fresh = after[0] - state if event.name in APPENDS else frozenset()
                    now = frozenset((m, told | fresh) for m, told in looked.items())
                    todo.append((done | 1 << n, after[0], now))
                looked = dict(looks)
        return False

    def _after(self, state: State, event: Event, look: Any) -> tuple[State] | None:
        if event.name in READS:
            return (state,) if READS[event.name](state, *event.given) == event.answer else None
        if look is None:
            after = WRITES[event.name](state, *event.given)
        elif event.name.endswith("_d"):
            # What was appended since then is as if it were not there yet.
            after = WRITES[event.name](state - look, *event.given) | (state & look)
        else:
            after = _changed(state, look)
        if event.sequence is not None and any(rows != after for rows in self.versions.get(event.sequence, [])):
            return None
        return (after,)


Looks = frozenset[tuple[int, Any]]
APPENDS = {"append_d", "foreign_d", "replace_d", "merge_d"}


def changes_rows(event: Event) -> bool:
    """Return whether an operation is a statement that changes single rows."""
    return event.name in ("update_d", "set_c") or (event.name.startswith("delete") and event.given[0][0] != "q")


def seen_by(state: State, event: Event) -> Any:
    """Return what a statement keeps of its look: of ``d`` what others append later, of the cube what it will change."""
    if event.name.endswith("_d"):
        return frozenset()
    after = WRITES[event.name](state, *event.given)
    pairs = []
    for at in (0, 1):
        new = {row[:2]: row for row in after[at]}
        pairs += [(at, row, new.get(row[:2])) for row in state[at] if new.get(row[:2]) != row]
    return frozenset(pairs)


def _changed(state: Cells, pairs: Any) -> Cells:
    """Change rows of cells; those that others wrote anew since the look hide what was seen."""
    found = [set(state[0]), set(state[1])]
    for at, old, new in pairs:
        if old in found[at]:
            found[at].remove(old)
            if new is not None:
                found[at].add(new)
    return frozenset(found[0]), frozenset(found[1])
