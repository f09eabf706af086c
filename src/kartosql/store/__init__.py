"""Where bytes live: fsspec filesystems behind safe keys, with every call counted."""

from kartosql.store.keys import check_key
from kartosql.store.store import Entry, Stamp, Store, StoreCounter

__all__ = ["Entry", "Stamp", "Store", "StoreCounter", "check_key"]
