"""The history of the prompt: a file that only its owner reads; without it, as long as the session lasts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from prompt_toolkit.history import FileHistory

from kartosql.text.secrets import redacted

HISTORY = "KARTOSQL_HISTORY"
MAX_ENTRY = 20_000  # characters; what is longer was pasted, and is not kept
MAX_FILE = 20_000_000


def place() -> str:
    """Return the path of the history."""
    given = os.environ.get(HISTORY)
    if given:
        return os.path.abspath(os.path.expanduser(given))
    import platformdirs

    return os.path.join(platformdirs.user_state_dir("kartosql"), "history")


class History(FileHistory):
    """A history that stays calm: whatever its file is, the session goes on. ``tell`` hears once what is wrong."""

    def __init__(self, path: str, tell: Callable[[str], None]) -> None:
        self._tell: Callable[[str], None] | None = tell
        self._path = path
        super().__init__(path)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600))
            with open(path, "rb") as file:
                self._complain("is no text" if b"\0" in file.read(4096) else None)
            if os.path.getsize(path) > MAX_FILE:
                self._complain(f"has more than {MAX_FILE:,} bytes")
        except OSError as e:
            self._complain(f"cannot be written: {e.strerror or e}")

    def _complain(self, what: str | None) -> None:
        tell, self._tell = (self._tell, None) if what else (None, self._tell)
        if tell is not None:
            tell(f"warning: The history {self._path} {what}; it is kept for this session only.")

    @property
    def _works(self) -> bool:
        return self._tell is not None

    def load_history_strings(self) -> Iterable[str]:
        """Return what the file holds, the newest first."""
        try:
            return list(super().load_history_strings()) if self._works else []
        except (OSError, ValueError):
            return []

    def store_string(self, string: str) -> None:
        """Append an entry to the file, without credentials in URLs."""
        if self._works and len(string) <= MAX_ENTRY:
            try:
                super().store_string(redacted(string))
            except (OSError, ValueError) as e:
                self._complain(f"cannot be written: {e}")
