"""Where bytes live: fsspec filesystems behind safe keys, with every call counted."""

from kartosql.store.conditional import Detail, OutcomeUnknown, PreconditionFailed, Version
from kartosql.store.keys import check_key
from kartosql.store.mounts import Files, Mounts
from kartosql.store.store import Entry, Stamp, Store, StoreCounter

__all__ = [
    "Detail",
    "Entry",
    "Files",
    "Mounts",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Stamp",
    "Store",
    "StoreCounter",
    "Version",
    "check_key",
]
