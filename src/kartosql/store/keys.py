"""Storage keys that stay inside the store."""

from __future__ import annotations

from kartosql.errors import FormatError

MAX_KEY_LENGTH = 4096
SIDE_FOLDER = ".commit"
MAX_COMPONENT_LENGTH = 255  # the limit of the common local filesystems


def key_problem(key: str, prefix: str = "") -> str | None:
    """Return why ``key`` may not be opened, or None when it is a plain key below ``prefix``."""
    if not key:
        return "it is empty"
    if len(key) > MAX_KEY_LENGTH:
        return f"it is longer than {MAX_KEY_LENGTH} characters"
    if "\0" in key or any(c < " " for c in key):
        return "it holds control characters"
    if key.startswith("/") or "://" in key:
        return "it is absolute"
    if prefix and not key.startswith(prefix):
        return f"it does not start with {prefix!r}"
    for part in key.split("/"):
        if part in ("..", "."):
            return f"it holds the path component {part!r}"
        if len(part.encode("utf-8", "surrogatepass")) > MAX_COMPONENT_LENGTH:
            return f"a component is longer than {MAX_COMPONENT_LENGTH} bytes"
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return None


def check_key(key: object, prefix: str = "", *, source: str) -> str:
    """Return ``key`` if it stays below ``prefix``, else raise ``unsafe-key``.

    ``source`` names the document the key comes from, for the message.
    """
    if not isinstance(key, str):
        raise FormatError(
            f"{source}: a storage key is {type(key).__name__}, not text",
            code="invalid-metadata",
            hint="The metadata file is damaged or was not written by kartothek, plateau or kartosql.",
        )
    problem = key_problem(key, prefix)
    if problem:
        shown = key if len(key) <= 120 else key[:117] + "..."
        raise FormatError(
            f"{source}: the key {shown!r} cannot be used: {problem}",
            code="unsafe-key",
            hint="The metadata points outside its own dataset; it may be damaged or hostile.",
        )
    return key


def side_folder(key: str) -> str:
    """Return the folder of temporary files of the dataset that ``key`` belongs to; empty when it names none."""
    folder, slash, _ = key.partition("/")
    if not slash:
        end = key.find(".", 1)
        folder = key[:end] if end > 0 else ""
    return f"{folder}/{SIDE_FOLDER}" if folder else ""
