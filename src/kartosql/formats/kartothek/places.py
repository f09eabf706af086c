"""Where the data-skipping metadata of datasets lie.

That is below ``.kartosql/skipping/<uuid>``, beside all datasets: files below ``<uuid>/`` or begins with the
name of a cube, the cleanups of the originals delete. The document's map ``metadata``, which they keep, says where.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from kartosql.formats.xskipper.naming import folder_name, table_identifier
from kartosql.store import Store
from kartosql.store.keys import key_problem

BASE = ".kartosql/skipping"
POINTER = "kartosql_skipping"  # in the document's map ``metadata``


class Place(NamedTuple):
    """Where the metadata of a table lie, and the identifier of the table in them."""

    folder: str
    table: str

    def text(self) -> str:
        """Return the entry of the document."""
        return json.dumps(self._asdict())


def place_for(store: Store, uuid: str, table: str) -> Place:
    """Return where new metadata of a table go: where Xskipper looks, given ``BASE/<uuid>`` as base folder."""
    url = store.url if "://" in store.url else os.path.abspath(store.url)
    identifier = table_identifier(f"{url.removeprefix('file://').rstrip('/')}/{uuid}/{table}")
    return Place(f"{BASE}/{uuid}/{folder_name(identifier)}", identifier)


def place_in(metadata: Mapping[str, Any], uuid: str) -> Place | None:
    """Return where the metadata of a dataset lie, None if it has none; what others wrote there leads nowhere else."""
    text = metadata.get(POINTER)
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
        place = Place(str(found["folder"]), str(found["table"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return None if key_problem(place.folder, f"{BASE}/{uuid}/") else place
