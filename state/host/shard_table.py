"""The shards of a host: claims, opens, returns and releases them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import attrs

from ...storage import runtime
from ...storage.errors import ChandyError
from ...storage.logs import logger
from ..errors import ShardMissingError
from ..rpc.messages import ClaimShards, Control, ShardNotOpened, ShardsRestored
from ..shards import FIRST_TERM, RestoreSource, ResumePoint, ShardId, Term
from .restoring import RestoreTally
from .shard import Shard
from .shard_key import ShardKey

_log = logger(__name__)
_RESTORES = 4


@attrs.frozen
class _Elsewhere:
    address: str


@attrs.frozen(eq=False)
class _Claimed:
    """A shard that a task of this host needs."""

    tally: RestoreTally
    """Shared by all shards of one claim."""
    found: Future[Shard | _Elsewhere] = attrs.field(factory=runtime.future)


@attrs.frozen
class Acquired:
    """Where the shards of a task are."""

    here: dict[int, Shard]
    elsewhere: dict[int, str]
    """Address of the owner by shard."""


class ShardTable:
    """The host's shards by key. Several tasks may ask for the same shards at once."""

    def __init__(
        self,
        host: str,
        control: Control,
        open_shard: Callable[[ShardKey, RestoreSource | None, ResumePoint | None, RestoreTally], Shard],
    ) -> None:
        self._host = host
        self._control = control
        self._open_shard = open_shard
        self._lock = runtime.lock()
        self._shards: dict[ShardKey, _Claimed] = {}
        self._aside: dict[ShardKey, Shard] = {}
        """Shards that are moving, as they are between two batches. The coordinator says who may serve them."""
        self._pool = runtime.pool(_RESTORES, "chandy-restore")
        self._releasing = runtime.pool(1, "chandy-release")

    def acquire(self, query_id: str, uid: str, shards: Iterable[int]) -> Acquired:
        """Claim the shards that are not here yet in one call, wait until all are open, and return where they are.

        Raises:
            ChandyError: the coordinator refused the claim, or a restore failed. That shard can be claimed again.
        """
        claimed = self._open_all(query_id, uid, shards)
        for one in claimed.values():
            if not one.found.done():
                one.tally.wanted()
        acquired = Acquired({}, {})
        for key, one in claimed.items():
            found = one.found.result()
            if isinstance(found, _Elsewhere):
                acquired.elsewhere[key.shard] = found.address
            else:
                acquired.here[key.shard] = found
        return acquired

    def open(self, query_id: str, uid: str, shards: Iterable[int]) -> None:
        """Start what ``acquire`` does without waiting for it. The tasks that need a shard learn why it is not open.

        Raises:
            ChandyError: the coordinator refused the claim.
        """
        self._open_all(query_id, uid, shards)

    def _open_all(self, query_id: str, uid: str, shards: Iterable[int]) -> dict[ShardKey, _Claimed]:
        claimed: dict[ShardKey, _Claimed] = {}
        missing: dict[ShardKey, _Claimed] = {}
        tally = RestoreTally()
        with self._lock:
            for shard in shards:
                key = ShardKey(query_id, uid, shard)
                if key not in self._shards:
                    self._shards[key] = missing[key] = _Claimed(tally)
                claimed[key] = self._shards[key]
        if missing:
            self._claim(query_id, uid, missing, tally)
        return claimed

    def get(self, key: ShardKey) -> Shard:
        """Return a shard, waiting for it if it is being restored.

        Raises:
            ShardMissingError: it is not here.
        """
        with self._lock:
            claimed = self._shards.get(key)
        found = None if claimed is None else claimed.found.result()
        if not isinstance(found, Shard):
            raise ShardMissingError(str(key), self._host)
        return found

    def of_operator(self, query_id: str, uid: str) -> list[Shard]:
        """Return the operator's shards on this host, waiting for those that are being restored.

        Raises:
            ChandyError: a restore failed.
        """
        with self._lock:
            # What is set aside is the state after the last batch, wherever the shard goes.
            aside = [
                shard for key, shard in self._aside.items() if (key.query_id, key.uid) == (query_id, uid)
            ]
        return [*_shards(self._found(query_id, uid)), *aside]

    def opened(self, query_id: str, uid: str) -> list[Shard]:
        """Return the operator's shards that are open on this host now."""
        found = self._found(query_id, uid)
        return _shards(future for future in found if future.done() and future.exception() is None)

    # --- moves ----------------------------------------------------------------------------------------------

    def held(self, key: ShardKey) -> Shard:
        """Return a shard that the coordinator takes for this host's, whether it is set aside or not.

        Raises:
            ShardMissingError: it is not here.
        """
        with self._lock:
            aside = self._aside.get(key)
        return aside or self.get(key)

    def set_aside(self, key: ShardKey, shard: Shard) -> None:
        """Let no task have a shard until the coordinator has said whose it is."""
        with self._lock:
            self._shards.pop(key, None)
            before, self._aside[key] = self._aside.get(key), shard
        if before is not None and before is not shard:
            self.destroy(before)

    def keep_or_delete(self, key: ShardKey, term: Term | None) -> None:
        """Keep a shard that was set aside if it is this host's in this term, else delete it.

        Args:
            key: the shard.
            term: the term in which this host has it; None if another host has it.
        """
        with self._lock:
            shard = self._aside.pop(key, None)
            if shard is None:
                return
            is_own = shard.term == term
            if is_own and key in self._shards:
                # A claim is under way, and its answer will say the same.
                self._aside[key] = shard
            elif is_own:
                self._keep(key, shard, _Claimed(RestoreTally()))
        if not is_own:
            self.destroy(shard)

    def _keep(self, key: ShardKey, shard: Shard, claimed: _Claimed) -> None:
        self._shards[key] = claimed
        claimed.found.set_result(shard)

    def destroy(self, shard: Shard) -> None:
        """Close a shard and delete its files on a thread of its own.

        The caller may be the thread that renews the host's lease, and a slow disk must not cost the host its shards:
        closing waits until RocksDB has written, and deleting takes as long as the disk does.
        """
        self._releasing.submit(shard.destroy)

    def release(self, query_id: str) -> list[ShardKey]:
        """Give up the shards of a query that has ended and return their keys. They are deleted in the background."""
        with self._lock:
            released = {key: self._shards.pop(key) for key in list(self._shards) if key.query_id == query_id}
            aside = {key: self._aside.pop(key) for key in list(self._aside) if key.query_id == query_id}
        for shard in aside.values():
            self.destroy(shard)
        for one in released.values():
            # A shard that is being restored is deleted as soon as it is open.
            one.found.add_done_callback(lambda found: self._releasing.submit(_destroy, found))
        return [*released, *aside]

    def close(self) -> None:
        """Close every shard. The files stay, except those of released shards."""
        self._pool.shutdown(wait=True)
        with self._lock:
            futures = [one.found for one in self._shards.values()]
            self._shards.clear()
            aside = list(self._aside.values())
            self._aside.clear()
        for shard in aside:
            shard.close()
        for future in futures:
            if future.done() and future.exception() is None and isinstance(found := future.result(), Shard):
                found.close()
        self._releasing.shutdown(wait=True)

    def _found(self, query_id: str, uid: str) -> list[Future[Shard | _Elsewhere]]:
        with self._lock:
            return [
                one.found for key, one in self._shards.items() if (key.query_id, key.uid) == (query_id, uid)
            ]

    def _claim(self, query_id: str, uid: str, missing: dict[ShardKey, _Claimed], tally: RestoreTally) -> None:
        wanted = tuple(sorted(key.shard for key in missing))
        with self._lock:
            aside = {key.shard: self._aside[key].term for key in missing if key in self._aside}
        try:
            answer = self._control.send(ClaimShards(self._host, query_id, uid, wanted, aside))
        except Exception as error:
            for key, one in missing.items():
                self._forget(key, one)
                one.found.set_exception(error)
            raise
        tally.granted(len(answer.granted))
        for key, one in missing.items():
            if key.shard in answer.granted:
                term = answer.terms.get(key.shard, FIRST_TERM)
                self._pool.submit(self._open, key, answer.granted[key.shard], answer.resume_point, one, term)
                continue
            if key.shard in answer.kept and self._takes_back(key, one):
                continue
            self._forget(key, one)
            if key.shard in answer.elsewhere:
                one.found.set_result(_Elsewhere(answer.elsewhere[key.shard]))
            else:
                one.found.set_exception(ShardMissingError(str(key), self._host))

    def _takes_back(self, key: ShardKey, claimed: _Claimed) -> bool:
        """Let the tasks that wait for a shard have what was set aside; return whether it was still there."""
        with self._lock:
            shard = self._aside.pop(key, None)
            if shard is not None:
                self._keep(key, shard, claimed)
        return shard is not None

    def _open(
        self,
        key: ShardKey,
        source: RestoreSource | None,
        resume_point: ResumePoint | None,
        claimed: _Claimed,
        term: Term,
    ) -> None:
        try:
            shard = self._open_shard(key, source, resume_point, claimed.tally)
            shard.term = term
        except Exception as error:  # noqa: BLE001 - the tasks that wait for the shard get it
            _log.warning("shard not restored", shard=str(key), query_id=key.query_id, error=repr(error))
            # First: who claims it next must not find that this host owns it.
            self._give_up(key, error)
            self._forget(key, claimed)
            claimed.found.set_exception(error)
        else:
            claimed.found.set_result(shard)
        finally:
            # The task is already running.
            if restored := claimed.tally.end(self._host, key.query_id, key.uid):
                self._report(restored)

    def _give_up(self, key: ShardKey, error: Exception) -> None:
        code = error.code if isinstance(error, ChandyError) else None
        shard = ShardId(key.uid, key.shard)
        failed = ShardNotOpened(self._host, key.query_id, shard, str(error) or repr(error), code)
        try:
            self._control.send(failed)
        except Exception as unheard:  # noqa: BLE001 - the task that needs the shard fails in any case
            _log.warning("failure not reported", shard=str(key), query_id=key.query_id, error=repr(unheard))

    def _report(self, restored: ShardsRestored) -> None:
        try:
            self._control.send(restored)
        except Exception as error:  # noqa: BLE001 - only statistics are lost, and the driver reads the bytes again
            _log.warning("restore not reported", query_id=restored.query_id, error=repr(error))

    def _forget(self, key: ShardKey, claimed: _Claimed) -> None:
        with self._lock:
            if self._shards.get(key) is claimed:
                del self._shards[key]


def _shards(found: Iterable[Future[Shard | _Elsewhere]]) -> list[Shard]:
    """Wait for shards and return those that are on this host."""
    return [shard for future in found if isinstance(shard := future.result(), Shard)]


def _destroy(future: Future[Shard | _Elsewhere]) -> None:
    with contextlib.suppress(Exception):
        if isinstance(shard := future.result(), Shard):
            shard.destroy()
