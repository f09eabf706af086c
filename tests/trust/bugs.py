"""Bugs as they could be made in commits, recovery, cleanups and readers, each of which the simulation has to find.

python -m tests.trust bugs [--seed 0] [--runs 400] [--named TEXT]
"""

# ruff: noqa: E501

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

from mutated import broken, copied, run_over

COMMIT, CHANGE, DOCUMENT, RECOVERY = (f"write/{name}.py" for name in ("commit", "change", "document", "recovery"))
SNAPSHOT, REMOVAL = "formats/kartothek/snapshot.py", "write/removal.py"


class Bug(NamedTuple):
    """Text of a module that is replaced; the simulation draws operations and faults of those kinds.

    A bug that only one order of many calls shows is left to ``explore``, with all orders of a program.
    """

    name: str
    module: str
    old: str
    new: str
    only: str = ""
    fates: str = ""
    explore: str = ""


BUGS = (
    Bug("updates miss what the other one makes", "statements/row_changes.py", "self._read = left[-1] if left else range(len(self._table.labels))", "self._read = parts[0].files if parts else ()", only="update_d"),
    Bug("a row change brings back what others deleted", "statements/row_changes.py", "not known.issuperset(seen[f] for f in read) or (", "(", only="update_d delete_d compact"),
    Bug("a MERGE does not look again", "statements/row_changes.py", "self._reads_all = statement.source is not None", "self._reads_all = False", only="merge_d"),
    Bug("a compaction brings back what others removed", CHANGE, "        gone = change.removed.difference(labels)\n        if gone:", "        gone = change.removed.difference(labels)\n        if False:", only="compact delete_d append_d"),
    Bug("an index lacks what is appended", CHANGE, "        if not self.removed and not self.change.added:\n            return None", "        if not self.removed:\n            return None", only="append_d find_d"),
    Bug("a new index lacks what others append meanwhile", CHANGE, "later = [label for label in labels if label not in self.change.indexed]", "later: list[str] = []", only="append_d index find_d"),
    Bug("an index keeps what is removed", CHANGE, "return old, self.removed, self._gone(column), joined_pairs(new or [nothing])", "return old, frozenset(), self._gone(column), joined_pairs(new or [nothing])", only="update_d find_d"),
    Bug("a change is carried out at the seed alone", RECOVERY, "for member in members for key in _finish_member(store, member, tx)", "for member in members[1:] for key in _finish_member(store, member, tx)", only="append_c read_c"),
    Bug("what is compacted comes last", "write/compact.py", "positions={new: labels[-1] for new, labels in merger.replaced.items()},", "", only="append_c compact read_c"),
    Bug("a lost answer is taken for a refusal", COMMIT, "if now is not None and now.identity is not None and commit_id in now.identity.recent:", "if False:", only="append_d delete_d", fates="after twice"),
    Bug("who does not know deletes files", "write/operation.py", "            except CommitUnknown:\n                raise\n            except KartosqlError:\n                self.discard(written)", "            except KartosqlError:\n                self.discard(written)", only="append_d append_c", fates="after late"),
    Bug("a late put is given up too soon", COMMIT, "            return Fate.OPEN\n        if now is None:", "            return Fate.LOST\n        if now is None:", only="append_d read_d", fates="late"),
    Bug("a commit forgets those before it", DOCUMENT, "recent=ids[-RECENT:],", "recent=(commit_id,),", only="append_d replace_d", fates="after late"),
    Bug("a RESTORE takes that of another one for its own", COMMIT, "() if self.change.exact else self.change.added", "self.change.added", only="restore_d replace_d delete_d"),
    Bug("a change that was taken back is committed", COMMIT, "if head is None or head.intent is None or head.intent.tx != self.id:", "if head is None:", only="append_c read_c", fates="slow"),
    Bug("a member is marked late", COMMIT, "            for change in others:\n                self._mark(change.uuid)\n            before, prepared = self._rounds(self._decide)", "            before, prepared = self._rounds(self._decide)\n            for change in others:\n                self._mark(change.uuid)", only="append_c read_c", fates="slow"),
    Bug("a committed change is taken back", RECOVERY, "if seed is not None and intent.tx in seed.unfinished:\n            _roll_forward", "if False:\n            _roll_forward", only="append_c read_c", fates="crash after"),
    Bug("a change is taken back at a member alone", RECOVERY, "            abort(store, intent.seed, intent.tx)\n        else:", "            roll_back(store, head)\n        else:", only="append_c read_c", fates="slow"),
    Bug("a change that is left is waited for without end", RECOVERY, "is_late = _is_stale(intent) or time.monotonic() - first > INTENT_SECONDS", "is_late = False", only="append_c", fates="crash before"),
    Bug("carrying out drops what another program wrote", RECOVERY, 'if head.has_digest(made_of["base"]):', "if True:", only="append_c foreign_c", fates="slow"),
    Bug("readers see half of a change", SNAPSHOT, 'if intent is None or not isinstance(seed, DatasetDocument) or intent.tx not in metadata.unfinished_of(seed):', "if True:", only="append_c read_c", fates="slow"),
    Bug("readers do not look at marks again", SNAPSHOT, "if all(again[u] is d for u, d in marked.items()):", "if True:", only="append_c read_c", fates="slow"),
    Bug("readers take a seed from before", SNAPSHOT, "        if newer:\n            current |= newer", "        if False:\n            current |= newer", only="append_c read_c", fates="slow"),
    Bug("readers take what they know for new", SNAPSHOT, "return isinstance(stamp, ObjectStamp) and self.stamp.is_same(stamp)", "return True", only="append_d read_d"),
    Bug("readers go by times alone", "store/keys.py", "return other is not None and self.etag == other.etag and self.modified", "return other is not None and self.modified", only="append_d read_d"),
    Bug("a cleanup does not wait", REMOVAL, "ready = {g.key for g in found if g.due <= now or g.key in marks.removing}", "ready = {g.key for g in found}", only="append_d clean"),
    Bug("a cleanup takes files of earlier versions", REMOVAL, "past = needed_keys(store, uuid, kept, now)", "past: set[str] = set()", only="delete_d old clean sleep"),
    Bug("the log forgets what was removed", "write/history.py", "removed=dict(files_of(before, gone)) if before is not None and gone else {},", "removed={},", only="delete_d old changes"),
    Bug("a late commit does not look whether its files are there", CHANGE, "    if change.started is None or now - change.started <= min(grace, MIN_GRACE) / 2:\n", "    if True:\n", only="append_d clean sleep", fates="days"),
    Bug("no answer is an error", COMMIT, "        except (PreconditionFailed, OutcomeUnknown) as e:\n            self._doubt(head, prepared, e, others)\n            self.winner = head", "        except PreconditionFailed as e:\n            self._doubt(head, prepared, e, others)\n            self.winner = head", only="append_d", fates="after before"),
)  # fmt: skip


def found_after(bug: Bug, source: Path, seed: int, runs: int) -> tuple[int | None, str]:
    """Return how many interleavings it takes to find a bug, None if these were too few, and what was seen."""
    command = ["-m", "tests.trust", "explore" if bug.explore else "simulation", "--failures", "1"]
    if bug.explore:
        command += ["--only", bug.explore, "--most", str(runs)]
    else:
        command += ["--seed", str(seed), "--runs", str(runs), "--only", *bug.only.split()]
        command += ["--fates", *re.findall(r"(?:crash )?\w+", bug.fates)] if bug.fates else []
    with broken(bug, source) as problem:
        done = run_over(source, command)
    count = re.search(r"by ([\d,]+) runs" if bug.explore else r"([\d,]+) interleavings", done.stdout)
    if problem or count is None:
        tail = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise AssertionError(f"{bug.name}: {problem or 'the simulation did not run'}:\n{tail}")
    if done.returncode == 0:
        return None, ""
    seen = re.findall(
        r"^(\w[\w.]*(?:Error|Violation|NoEnd|Changed|Unknown|Failed|Commit)\b.*)$", done.stdout, re.MULTILINE
    )
    return int(count[1].replace(",", "")), (seen[-1] if seen else done.stdout[-300:])[:110]


def find_all(seed: int, runs: int, named: str = "") -> int:
    """Print for each bug, or those with a text in their names, after how many interleavings it is found.

    Returns how many are not.
    """
    began, chosen = time.monotonic(), [bug for bug in BUGS if named in bug.name]
    missed = 0
    with copied() as source:
        for bug in chosen:
            after, seen = found_after(bug, source, seed, runs)
            missed += after is None
            print(f"{bug.name}: {f'found after {after:,}: {seen}' if after else f'not found by {runs}'}", flush=True)
    print(f"{len(chosen)} bugs, {missed} not found by {runs:,} interleavings each; {time.monotonic() - began:.0f} s")
    return missed
