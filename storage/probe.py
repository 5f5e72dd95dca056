"""Whether a store can tell the first of two creates from the second: fencing hangs on it."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from .errors import ObjectExistsError, StorageError, UnfencedStoreError
from .layout import PROBES
from .store import Store


def probe_exclusive_create(store: Store) -> None:
    """Race two creates for one new key, then try a third.

    Raises:
        UnfencedStoreError: not exactly one of the two won, or the third did; or the backend knows that this
            comes about by chance: it looks first and writes then.
    """
    if not store.fenced:
        raise UnfencedStoreError(store.uri, 2)
    key = f"{PROBES}{uuid.uuid4().hex}"
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
        with ThreadPoolExecutor(2, "chandy-probe") as pool:
            racers = [pool.submit(create, content, True) for content in (b"first", b"second")]
            winners = sum(racer.result() for racer in racers)
        if winners == 1:
            winners += create(b"third", False)
        if winners != 1:
            raise UnfencedStoreError(store.uri, winners)
    except BaseException:
        # What went wrong first is what to tell.
        with suppress(StorageError):
            store.delete(key)
        raise
    store.delete(key)
