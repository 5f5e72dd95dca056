"""The probe that checks whether a store creates exclusively, which fencing depends on."""

from __future__ import annotations

import threading
from contextlib import suppress

from ..checkpoints.layout import probe_key
from ..errors import InvalidPlaceError, ObjectExistsError, StorageError
from ..logs import named_pool
from ..store import Store


def probe_exclusive_create(store: Store) -> None:
    """Race two creates for one new key, then try a third.

    Raises:
        InvalidPlaceError: not exactly one of the two won, or the third did; or the backend says that its create is
            not exclusive, because it looks first and then writes.
    """
    if not store.fenced:
        raise _unfenced(store.uri, "a backend that looks first and then writes")
    key = probe_key()
    ready = threading.Barrier(2)

    def create(content: bytes, racing: bool) -> bool:
        if racing:
            ready.wait()
        try:
            store.create(key, content)
        except ObjectExistsError:
            return False
        return True

    try:
        with named_pool(2, "chandy-probe") as pool:
            racers = [pool.submit(create, content, True) for content in (b"first", b"second")]
            winners = sum(racer.result() for racer in racers)
        if winners == 1:
            winners += create(b"third", False)
        if winners != 1:
            raise _unfenced(store.uri, f"{winners} of them")
    except BaseException:
        # The first error is the one to report.
        with suppress(StorageError):
            store.delete(key)
        raise
    store.delete(key)


def _unfenced(uri: str, found: str) -> InvalidPlaceError:
    return InvalidPlaceError(
        f"on the store {uri} two drivers could both complete checkpoints",
        "exactly one of two racing creates of one object to win",
        found,
        "use another store, or allow_unfenced=True if only one driver can ever run; if the service has conditional "
        "writes, upgrade its client library: an older one ignores the condition",
    )
