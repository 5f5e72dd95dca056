"""What the messages of a replica look like: the same in all its lives."""

from __future__ import annotations

import attrs

from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.layout import REPLICA
from ...storage.codec import to_json
from ...storage.errors import ObjectMissingError
from ...storage.store import Store
from ...storage.verified import read_record
from ..errors import ReplicaError
from .json_text import EARLIER


@attrs.frozen
class Contents:
    """What a target has of a replica. Other contents would not replace it, key by key."""

    format: str
    key_schema: int | None
    """Id of the schema that keys in Avro begin with; None: keys are not in Avro."""
    texts: int = EARLIER
    """Version of the texts in JSON, as ``version_of`` has it. What kept none was written by Spark."""

    def __str__(self) -> str:
        encoding = "" if self.key_schema is None else f" with keys in Avro of schema {self.key_schema}"
        if self.texts != EARLIER:
            encoding = f" with exact texts of keys and values (version {self.texts})"
        return f"{self.format!r}{encoding}"


def keep(store: Store, name: str, contents: Contents) -> None:
    """Record what a replica writes, or check that it is what its target has.

    Args:
        store: of the replica's pipeline.
        name: of the replica.
        contents: what this life would write.

    Raises:
        ReplicaError: the target has other contents.
        DamagedError: the record of what its target has cannot be read.
        StorageError: the store does not answer.
    """
    found = _recorded(store)
    if found == contents:
        return
    # Nothing is published before a checkpoint is complete.
    if Catalog(store).list_ids():
        # Versions of Chandy that kept no record had no Avro.
        found = found or Contents(contents.format, None)
        if found != contents:
            raise ReplicaError(
                f"replica {name!r} cannot go on in another form",
                f"format {found}, which its target has",
                f"format {contents}",
                "replicate under another name to an empty target; if the registry has lost its schemas, restore them",
            )
    store.write(REPLICA, to_json(contents))


def _recorded(store: Store) -> Contents | None:
    try:
        return read_record(store, REPLICA, Contents, "the form of a replica")
    except ObjectMissingError:
        return None
