"""Which query has adopted one of plain Spark: a record in the storage, so that no two of its queries adopt the same.

The plain query's own directory stays as it is, so it has no mark. Pipelines with another storage do not see the record.
"""

from __future__ import annotations

from typing import Final

import attrs

from ...storage.backends.open import open_store
from ...storage.codec import to_json
from ...storage.errors import ObjectExistsError, ObjectMissingError
from ...storage.uri import join_uri
from ...storage.verified import read_record

FOLDER: Final = ".adopted"
"""Folder in a storage, beside those of pipelines, whose names never begin with a dot."""


@attrs.frozen
class AdoptedBy:
    """The query that has adopted one of plain Spark."""

    pipeline: str
    query: str

    def __str__(self) -> str:
        return f"query {self.query!r} of pipeline {self.pipeline!r}"


def find(storage: str, query_id: str) -> AdoptedBy | None:
    """Return who has adopted a query; None if nobody has.

    Args:
        storage: the URI that pipelines are given.
        query_id: Spark's id of the plain query.

    Raises:
        DamagedError: the record is damaged.
        StorageError: the storage cannot be read.
    """
    try:
        return read_record(open_store(storage), _key(query_id), AdoptedBy, "the record of an adopted query")
    except ObjectMissingError:
        return None


def record(storage: str, query_id: str, own: AdoptedBy) -> AdoptedBy:
    """Record who adopts a query, unless somebody has; return who has it then.

    Args:
        storage, query_id: as for ``find``.
        own: who adopts it.

    Raises:
        As ``find``; the storage may also refuse to be written.
    """
    try:
        open_store(storage).create(_key(query_id), to_json(own))
    except ObjectExistsError:
        # A user who has deleted it meanwhile has given up the query.
        return find(storage, query_id) or own
    return own


def way_out(storage: str, query_id: str) -> str:
    """Return what to do about another query that has adopted one."""
    place = join_uri(storage, _key(query_id))
    return (
        f"go on with that one; or, if it is given up for good, delete {place}; or, to try an adoption out, use another "
        "storage and another output"
    )


def _key(query_id: str) -> str:
    return f"{FOLDER}/{query_id}.json"
