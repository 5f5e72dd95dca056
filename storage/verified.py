"""Verified reads: no single answer of a store says that what a record names is damaged or missing.

Objects are written once, and what they have to be is known: by a digest, by a size, or because they must decode. So an
answer that does not fit is no reason to give anything up: it may have been cut or changed on its way, or have come from
a server that did not know the object yet. The object is read a second time, afresh. Only this module says that one is
damaged, and it says so of what was found twice. A read that is right at once costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .codec import from_json_of_any_version
from .errors import CodecError, DamagedError, ObjectMissingError, SchemaTooNewError, UnfitError
from .logs import logger
from .store import Store

_log = logger(__name__)

T = TypeVar("T")


def verified(
    store: Store, key: str, look: Callable[[Store], T], damaged: type[DamagedError] = DamagedError
) -> T:
    """Return what a look at an object finds; look once more, afresh, if the first answer does not fit.

    Args:
        store: has the object.
        key: the object.
        look: reads it in the store that it is given, and raises an ``UnfitError`` or a ``CodecError`` about bytes that
            are not as they must be. It may be called twice.
        damaged: the class of the error.

    Raises:
        DamagedError: two looks found other bytes than were written.
        ObjectMissingError: two looks found no object.
        StoreFailedError: the store does not answer.
    """
    try:
        return look(store)
    except (UnfitError, CodecError, SchemaTooNewError, ObjectMissingError) as error:
        first = error
    try:
        found = look(store.afresh())
    except UnfitError as error:
        raise damaged(store.uri, key, error.expected, error.found) from None
    except CodecError as error:
        raise damaged(store.uri, key, f"a {error.type} as JSON", error.reason) from None
    _log.warning("an answer of a store was wrong once", store=store.uri, key=key, first=str(first))
    return found


def read_verified(
    store: Store, key: str, decode: Callable[[bytes], T], damaged: type[DamagedError] = DamagedError
) -> T:
    """Return what the bytes of a whole object decode to. The arguments and errors are those of ``verified``."""
    return verified(store, key, lambda store: decode(store.read(key)), damaged)


def read_record(
    store: Store, key: str, type_: type[T], what: str, damaged: type[DamagedError] = DamagedError
) -> T:
    """Return the value of class ``type_`` that an object has as JSON, of whatever version.

    Args:
        store, key, damaged: as for ``verified``.
        type_: the class of the value.
        what: what the object is, for the error.

    Raises:
        As ``verified``.
    """

    def decode(data: bytes) -> T:
        try:
            return from_json_of_any_version(type_, data)
        except CodecError as error:
            raise UnfitError(what, error.reason) from None

    return read_verified(store, key, decode, damaged)
