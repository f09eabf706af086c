"""Where bytes live: fsspec filesystems behind safe keys, with every call counted."""

from kartosql.store.keys import Detail, Fetched, ObjectStamp, OutcomeUnknown, PreconditionFailed, Version, check_key
from kartosql.store.store import Entry, Files, Mounts, Store, StoreCounter

__all__ = [
    "Detail",
    "Entry",
    "Fetched",
    "Files",
    "Mounts",
    "ObjectStamp",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Store",
    "StoreCounter",
    "Version",
    "check_key",
]
