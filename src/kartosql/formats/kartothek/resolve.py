"""What kartosql writes into the metadata of a dataset for itself, and how it is read.

The originals keep the map ``metadata`` of a document and drop everything else that they do
not know, so the marks of commits stand there:

``kartosql_commit``      who wrote the document last (see ``Identity``)
``kartosql_schema``      table -> schema file in base64: counts instead of ``_common_metadata``, which is being replaced
``kartosql_intent``      a change of several datasets is under way here; the seed says whether it is committed
``kartosql_unfinished``  at the seed: committed changes of several datasets, and where they are not carried out yet
``kartosql_absent``      there is no such dataset yet, or no more
``kartosql_staged``      in a document that waits in ``<uuid>/.commit/``: what it was made of
``kartosql_schema_history``  the schemas that the tables had, see ``history.py``
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, StoreError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.formats.kartothek.places import POINTER
from kartosql.formats.kartothek.schema import read_schema
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER, check_key

IDENTITY = "kartosql_commit"
SCHEMA = "kartosql_schema"
INTENT = "kartosql_intent"
UNFINISHED = "kartosql_unfinished"
ABSENT = "kartosql_absent"
STAGED = "kartosql_staged"
HISTORY = naming.HISTORY
ATTEMPTS = 100
OWN_KEYS = frozenset({IDENTITY, SCHEMA, INTENT, UNFINISHED, ABSENT, STAGED, HISTORY})
_proven: WeakSet[Dataset] = WeakSet()


class Intent(NamedTuple):
    """The mark of a change of several datasets: which one, where to ask for its state, and what it does here.

    ``kind`` is "change", for which ``staged`` is the key of the next document, or "delete", or
    "primary" at the seed itself.
    """

    tx: str
    seed: str
    kind: str
    time: str
    staged: str | None = None


def intent_of(document: DatasetDocument) -> Intent | None:
    """Return the mark of a change under way; marks that kartosql cannot have written are ignored."""
    found = document.metadata.get(INTENT)
    if not isinstance(found, dict) or not all(isinstance(found.get(n), str) for n in ("tx", "seed", "kind", "time")):
        return None
    intent = Intent(found["tx"], found["seed"], found["kind"], found["time"], found.get("staged"))
    if not naming.is_dataset_uuid(intent.seed) or intent.kind not in ("change", "delete", "primary"):
        return None
    if intent.kind == "change":
        check_key(intent.staged, f"{document.uuid}/{SIDE_FOLDER}/", source=document.key)
    return intent


def unfinished_of(document: DatasetDocument) -> dict[str, list[str]]:
    """Return the committed changes that are recorded at a seed: id -> uuids of the datasets to look at."""
    found = document.metadata.get(UNFINISHED)
    if not isinstance(found, dict):
        return {}
    return {
        str(tx): [u for u in members if isinstance(u, str) and naming.is_dataset_uuid(u)]
        for tx, members in found.items()
        if isinstance(members, list)
    }


def users_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return those metadata of a dataset that are none of kartosql's own."""
    return {k: v for k, v in metadata.items() if k not in OWN_KEYS and k != POINTER}


def pending_schemas(document: DatasetDocument) -> dict[str, bytes]:
    """Return by table the schema files that count instead of ``_common_metadata``; raises ``invalid-metadata``."""
    found = document.metadata.get(SCHEMA)
    if not isinstance(found, dict):
        return {}
    try:
        return {str(table): base64.b64decode(text, validate=True) for table, text in found.items()}
    except (binascii.Error, TypeError, ValueError):
        raise FormatError(f"{document.key}: {SCHEMA} is no map of schema files in base64") from None


def fingerprint(schema: pa.Schema) -> str:
    """Return what tells whether a schema is the one that a commit knew: its names and types in order."""
    text = "\0".join(f"{field.name}\0{field.type}" for field in schema)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def fingerprints(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprints of the schemas by table that stand in the identity of a commit."""
    identity = metadata.get(IDENTITY)
    found = identity.get("schemas") if isinstance(identity, dict) else None
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


# -- readers -----------------------------------------------------------------------------------------


class Absent(KeyError):
    """There is no such dataset, although a document stands there: one is coming, or going."""


Found = dict[str, DatasetDocument | KartosqlError | KeyError]


def is_marked(found: object) -> bool:
    """Return whether a document has to be looked at more closely before it is used."""
    return isinstance(found, DatasetDocument) and (INTENT in found.metadata or ABSENT in found.metadata)


def resolved(store: Store, found: Found, load: Callable[[Sequence[str]], Found]) -> Found:
    """Return documents as readers see them: where a committed change waits, the document after it, or what is wrong.

    ``load`` reads documents anew.
    """
    current = dict(found)
    for _ in rounds(found):
        marked = {u: d for u, d in current.items() if isinstance(d, DatasetDocument) and is_marked(d)}
        intents = {u: _intent(d) for u, d in marked.items()}
        asked = {i.seed for i in intents.values() if isinstance(i, Intent) and i.kind != "primary"}
        seeds = load(sorted(asked))
        newer = {u: s for u, s in seeds.items() if u in current and s is not current[u]}
        if newer:
            current |= newer
        else:
            views = {u: _view(store, d, intents[u], seeds) for u, d in marked.items()}
            # A mark and the seed's word on it go together only if the mark still stood there afterwards.
            again = load(list(marked))
            if all(again[u] is d for u, d in marked.items()):
                return current | views
            current |= again
    return current


def _intent(document: DatasetDocument) -> Intent | KartosqlError | None:
    try:
        return intent_of(document)
    except KartosqlError as e:
        return e


def _view(
    store: Store, document: DatasetDocument, intent: Intent | KartosqlError | None, seeds: Found
) -> DatasetDocument | KartosqlError | KeyError:
    if isinstance(intent, KartosqlError):
        return intent
    if intent is not None and intent.kind != "primary":
        seed = seeds[intent.seed]
        if isinstance(seed, KartosqlError):
            return seed
        if isinstance(seed, DatasetDocument) and intent.tx in unfinished_of(seed):
            if intent.kind == "delete":
                return Absent(document.key)
            try:
                data = store.read_metadata(str(intent.staged))
                return parse_document(data, f"{document.uuid}{naming.METADATA_JSON}", document.uuid)
            except KeyError:
                return FormatError(
                    f"Dataset {document.uuid!r}: {intent.staged} is missing, in which a committed change waits",
                    code="missing-metadata",
                    hint="Another program may have cleaned up. Restore the file.",
                )
            except KartosqlError as e:
                return e
    return Absent(document.key) if ABSENT in document.metadata else document


def rounds(what: Iterable[str]) -> Iterator[int]:
    """Yield the numbers of attempts to read documents while nobody writes them; raises ``store-busy`` at last."""
    for number in range(ATTEMPTS):
        yield number
        if number > 2:
            time.sleep(random.uniform(0, min(0.001 * number, 0.05)))
    raise StoreError(
        f"The datasets {', '.join(sorted(what))} are written all the time",
        code="store-busy",
        hint="Try again; if that does not help, one of their documents is damaged.",
    )


def is_proven(found: object) -> bool:
    """Return whether document and schemas of a dataset are known to go together."""
    if not isinstance(found, Dataset) or found in _proven:
        return True
    known = fingerprints(found.document.metadata)
    pending = pending_schemas(found.document)
    for table, schema in found.schemas.items():
        if table not in pending and known.get(table) != fingerprint(schema):
            return False
    _proven.add(found)
    return True


def prove(found: Iterable[object]) -> None:
    """Note that nobody wrote the documents of some datasets while their schemas were read."""
    _proven.update(d for d in found if isinstance(d, Dataset))


def schemas_of(document: DatasetDocument) -> dict[str, pa.Schema | KartosqlError]:
    """Return by table the schemas that count instead of those in the store, or what is wrong with them."""
    found: dict[str, pa.Schema | KartosqlError] = {}
    for table, data in pending_schemas(document).items():
        try:
            found[table] = read_schema(data, f"{document.key}: {SCHEMA} of {table}")
        except KartosqlError as e:
            found[table] = e
    return found


def is_between_transactions(rounds: Sequence[tuple[Mapping[str, object], object]]) -> bool:
    """Return whether in three rounds no change of several datasets was seen, so the middle one is without a break."""
    return (
        len(rounds) == 3 and rounds[0][1] == rounds[1][1] == rounds[2][1] and all(map(is_proven, rounds[1][0].values()))
    )


def transaction_of(found: object) -> tuple[str | None, tuple[str, ...]]:
    """Return the last change of several datasets that a seed recorded, and datasets made by such changes."""
    identity = found.metadata.get(IDENTITY) if isinstance(found, DatasetDocument) else None
    if not isinstance(identity, dict):
        return None, ()
    created = identity.get("created")
    return identity.get("transaction"), tuple(str(u) for u in created) if isinstance(created, list) else ()
