"""Where bytes live: fsspec filesystems behind safe keys, with every call counted."""

from kartosql.store.keys import Fetched, ObjectStamp, OutcomeUnknown, PreconditionFailed
from kartosql.store.store import Entry, Files, Mounts, Store

__all__ = ["Entry", "Fetched", "Files", "Mounts", "ObjectStamp", "OutcomeUnknown", "PreconditionFailed", "Store"]
