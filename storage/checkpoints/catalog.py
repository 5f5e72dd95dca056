"""The catalog of a pipeline's checkpoints: reading and committing manifests, and taking over a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import attrs

from .. import runtime
from ..backends.retrying import create_own
from ..codec import from_json_of_any_version, to_sealed_json
from ..errors import (
    CodecError,
    DamagedError,
    DamagedStartError,
    FencedError,
    ObjectExistsError,
    ObjectMissingError,
    SchemaTooNewError,
    StorageError,
    StorageReplacedError,
    UnfitError,
)
from ..ids import FIRST_CHECKPOINT, CheckpointId
from ..logs import logger
from ..store import Store
from ..verified import read_record, read_verified
from .fencing import Claim, DriverRecord, Generation, LeaseRecord, begin, is_outdated, voided_by
from .layout import (
    CHECKPOINTS,
    GENERATIONS,
    checkpoint_of,
    driver_key,
    generation_key,
    generation_of,
    gone_key,
    lease_key,
    manifest_key,
    start_key,
    trigger_key,
)
from .manifest import Manifest
from .manifest_json import decode_manifest, encode_manifest

_log = logger(__name__)


@attrs.frozen
class CatalogEntry:
    """A checkpoint's manifest as it is found in a store, readable or not."""

    id: CheckpointId
    manifest: Manifest | None = None
    """None if it cannot be read."""
    problem: DamagedError | SchemaTooNewError | None = None
    """Why it cannot be read."""
    voided_by: Generation | None = None
    """The generation that took over before the checkpoint completed, so that it does not count."""

    @property
    def completed(self) -> Manifest | None:
        """The manifest, if it can be read and its checkpoint counts as completed."""
        return None if self.voided_by else self.manifest


class Catalog:
    """The checkpoints in a pipeline's own store, ``<storage>/<pipeline>``. It holds no state of its own.

    A coordinator calls ``take_over`` once, and for each checkpoint ``check_not_fenced``, ``commit`` and ``confirm``.
    The checkpoint is completed when ``confirm`` returns; the module ``fencing`` says why that is enough. Manifests
    are committed one at a time, in the order of their ids.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- reading --------------------------------------------------------------------------------------------

    def list_ids(self) -> list[CheckpointId]:
        """Return the ids of all manifests, ascending, including void ones, but none that was deleted and came back."""
        return _ids(self.store.list(CHECKPOINTS))

    def read(self, checkpoint: CheckpointId) -> Manifest:
        """Return a checkpoint's manifest.

        Raises:
            ObjectMissingError: there is no such checkpoint.
            DamagedError: it is damaged, or belongs to another checkpoint.
            SchemaTooNewError: a newer version of Chandy wrote it.
        """
        key = manifest_key(checkpoint)

        def decode(data: bytes) -> Manifest:
            manifest = decode_manifest(data, self.store.uri, key)
            if manifest.id != checkpoint:
                raise UnfitError(f"checkpoint {checkpoint}", f"checkpoint {manifest.id}")
            return manifest

        return read_verified(self.store, key, decode)

    def latest(self) -> Manifest | None:
        """Return the completed checkpoint with the highest id; None if there is none.

        Raises:
            DamagedError, SchemaTooNewError: the newest manifest cannot be read. It is not skipped, because only
                the user can decide to go back to an older checkpoint.
        """
        while True:
            for checkpoint in reversed(_ids(self._keys())):
                try:
                    manifest = self.read(checkpoint)
                except ObjectMissingError:
                    if checkpoint in self.list_ids():
                        raise
                    break  # it was deleted after the list was made
                # The generations are read after the manifest: what made it void before it was read is then seen.
                if not voided_by(manifest.generation, manifest.id, self.generations()):
                    return manifest
            else:
                return None

    def chosen(self) -> str:
        """Return the checkpoint or savepoint that a user chose to restore, if none has completed since; else "".

        Raises:
            DamagedStartError: the newest start record cannot be read.
        """
        newest = next(iter(self.generations()[-1:]), None)
        if newest is None or not newest.restored:
            return ""
        for checkpoint in set(_ids(self._keys())).difference(newest.counted or ()):
            try:
                if self.read(checkpoint).generation < newest.generation:
                    continue
            except ObjectMissingError:
                continue
            except (DamagedError, SchemaTooNewError):
                pass
            return ""
        return newest.restored

    def entries(self) -> list[CatalogEntry]:
        """Return an entry for each manifest by ascending id, all of one moment.

        A list that is made while a checkpoint completes and retention drops another may have neither. So it is made
        twice: ids only grow, and if both lists are equal, nothing happened between them. Otherwise only what has come
        since is read, so that this ends although checkpoints complete faster than all of them can be read.
        """
        known: dict[CheckpointId, CatalogEntry] = {}
        ids = self.list_ids()
        while True:
            missing: ObjectMissingError | None = None
            for checkpoint in [one for one in ids if one not in known]:
                try:
                    known[checkpoint] = self._entry(checkpoint)
                except ObjectMissingError as error:
                    missing = error
            before, ids = ids, self.list_ids()
            if ids == before:
                break
        if missing is not None:
            raise missing
        started = self.generations()
        return [
            attrs.evolve(entry, voided_by=voided_by(entry.manifest.generation, entry.id, started))
            if entry.manifest
            else entry
            for entry in map(known.__getitem__, ids)
        ]

    def completed(self) -> list[Manifest]:
        """Return all completed checkpoints by ascending id, all of one moment.

        Raises:
            DamagedError, SchemaTooNewError: a manifest cannot be read.
        """
        entries = self.entries()
        for entry in entries:
            if entry.problem:
                raise entry.problem
        return [entry.completed for entry in entries if entry.completed]

    def readable(self) -> list[Manifest]:
        """Like ``completed``, without the checkpoints whose manifest cannot be read."""
        return [entry.completed for entry in self.entries() if entry.completed]

    def _entry(self, checkpoint: CheckpointId) -> CatalogEntry:
        try:
            return CatalogEntry(checkpoint, self.read(checkpoint))
        except (DamagedError, SchemaTooNewError) as error:
            return CatalogEntry(checkpoint, problem=error)

    def generations(self) -> list[Generation]:
        """Return the start records that decide which checkpoints count, ascending.

        It is the newest one alone. If the first version wrote that, it is all of them.

        Raises:
            DamagedStartError: the newest cannot be read.
        """
        while True:
            numbers = self._started()
            try:
                return self._deciding(numbers)
            except ObjectMissingError:
                if self._started() == numbers:
                    raise
                # Coordinators have started since, and deleted it.

    def _started(self) -> list[int]:
        """Return the generations that have a start record, ascending: also the newest, if the store lists it late."""
        keys = set(self.store.list(GENERATIONS))
        number = max(filter(None, map(generation_of, keys)), default=0)
        # Generations are claimed without gaps.
        while True:
            if number and start_key(number) not in keys and self._is_seen(start_key(number)):
                keys.add(start_key(number))
            number += 1
            if not self._is_seen(generation_key(number)):
                return sorted(filter(None, map(start_key.number, keys)))

    def _deciding(self, numbers: Sequence[int]) -> list[Generation]:
        if not numbers:
            return []
        *older, number = numbers
        newest = self._start_record(number)
        if newest.counted is not None:
            return [newest]
        return [*filter(None, map(self._first_version, older)), newest]

    def _first_version(self, number: int) -> Generation | None:
        """Return the start record of an older generation; None if it is damaged.

        It would only make a manifest void that was committed too late, before the newest generation, and whose id is
        no higher than what that one found. No coordinator has ever announced such a checkpoint, nor is it the latest.
        """
        try:
            return self._start_record(number)
        except DamagedStartError as error:
            _log.warning("ignored a damaged record", store=self.store.uri, key=error.key, error=error.found)
            return None

    def _start_record(self, number: int) -> Generation:
        return read_record(self.store, start_key(number), Generation, "a start record", DamagedStartError)

    # --- committing -----------------------------------------------------------------------------------------

    def take_over(self, owner: str, now: float, first_id: CheckpointId = FIRST_CHECKPOINT) -> Generation:
        """Claim and start a generation at once, which waits for nobody: for those who write into no sink.

        The arguments and errors are those of ``claim`` and ``start``.
        """
        return self.start(self.claim(owner, now), first_id)

    def start(self, claim: Claim, first_id: CheckpointId = FIRST_CHECKPOINT) -> Generation:
        """Begin the generation of a claim, and return its start record.

        Args:
            claim: of this generation; no predecessor writes into a sink any more.
            first_id: the lowest checkpoint id to use, such as one above the id of a restored savepoint.

        Raises:
            DamagedStartError: the record of the generation that started last cannot be read.
            FencedError: a higher generation has taken over meanwhile.
        """
        keys = self._keys()
        touched = {checkpoint for key in keys if (checkpoint := checkpoint_of(key))}
        committed = _ids(keys)
        started = self.generations()
        counted = [checkpoint for checkpoint in committed if self._counts(checkpoint, started)]
        generation = begin(claim, committed, counted, touched, started, first_id)
        try:
            self.store.create(start_key(claim.generation), to_sealed_json(generation))
        except ObjectExistsError:
            # A driver that lists and then sleeps may claim a number whose record is gone, beside the one that had it.
            self.check_not_fenced(claim.generation)
            raise
        self.check_not_fenced(claim.generation)
        # Whatever comes back of these is void from now on.
        records = (key(id) for id in touched.difference(committed) for key in (trigger_key, gone_key))
        self._prune(claim.generation, keys.intersection(records))
        return generation

    def _keys(self) -> set[str]:
        """Return the keys of all checkpoints, also of those that the store lists late.

        What one list lacks may be in another one, or is found by its id: the newest start record has those that counted
        then, and since then drivers have used one after the other, each of which leaves a record until retention drops
        its checkpoint.
        """
        keys = {*self.store.list(CHECKPOINTS), *self.store.list(CHECKPOINTS)}
        newest = next(iter(self.generations()[-1:]), None)
        listed = max(filter(None, map(checkpoint_of, keys)), default=0)
        late = [CheckpointId(id) for id in (newest and newest.counted) or () if id > listed]
        next_id = CheckpointId(max(listed + 1, newest.next_id if newest else FIRST_CHECKPOINT))
        while self._is_seen(trigger_key(next_id)):
            keys.add(trigger_key(next_id))
            late.append(next_id)
            next_id = CheckpointId(next_id + 1)
        return keys.union(filter(self._is_seen, (key(id) for id in late for key in (manifest_key, gone_key))))

    def amend(self, generation: Generation) -> None:
        """Write the caller's own start record again, with what it says of its user's choices."""
        self.store.write(start_key(generation.generation), to_sealed_json(generation))

    def _counts(self, checkpoint: CheckpointId, started: Sequence[Generation]) -> bool:
        """Whether a manifest of a lower generation counts, after the claim that fences them all."""
        if started and checkpoint in (started[-1].counted or ()):
            return True
        try:
            manifest = self.read(checkpoint)
        except ObjectMissingError:
            return False
        except (DamagedError, SchemaTooNewError):
            # Somebody may repair it.
            return True
        return voided_by(manifest.generation, checkpoint, started) is None

    def _prune(self, newest: int, used: Iterable[str]) -> None:
        """Delete the records that the start record of the generation ``newest`` replaces.

        Args:
            newest: the generation that has just started.
            used: records of ids that were used, of checkpoints that are gone or will never complete. All are below its
                own ids.
        """
        try:
            numbers = {key: generation_of(key) for key in self.store.list(GENERATIONS)}
            outdated = [key for key, number in numbers.items() if number and is_outdated(number, newest)]
            self.store.delete_all([*outdated, *used])
        except StorageError as error:
            _log.warning("cannot delete old records; the next start tries again", error=str(error))

    def commit(self, manifest: Manifest, *, once: bool = False) -> None:
        """Write a checkpoint's manifest. This is its commit point, provided that ``confirm`` then succeeds.

        Args:
            manifest: of the checkpoint.
            once: ask the store once alone. Anyone who asks again must say so to ``discard``.

        Raises:
            ObjectExistsError: there is another manifest with this id.
            StoreFailedError: it was not written by this call.
            OutcomeUnknownError: it may or may not have been written. Nothing that it names may be deleted before
                another call tells.
        """
        create_own(self.store, manifest_key(manifest.id), encode_manifest(manifest), once=once)

    def confirm(self, manifest: Manifest) -> None:
        """Check that a manifest that was just committed counts, and delete it if it is void.

        Raises:
            FencedError: another generation has taken over. The checkpoint must not be announced as completed, but the
                other generation may restore from it.
            StoreFailedError: it is unknown whether the manifest counts.
        """
        try:
            self.check_not_fenced(manifest.generation)
        except FencedError:
            if voided_by(manifest.generation, manifest.id, self.generations()):
                self.store.delete(manifest_key(manifest.id))
            raise

    def check_not_fenced(self, generation: int) -> None:
        """Check that no higher generation has taken over, with two requests.

        Raises:
            FencedError: one has.
            StorageReplacedError: the storage no longer has this generation.
        """
        self.check_next_not_claimed(generation)
        # Generations are claimed without gaps: if there is a higher one, there is the next one, unless it is so old
        # that its record was deleted. Then the list has a newer one.
        if (by := self.newest_generation()) > generation:
            owner = self._owner(by) or "a driver that started long ago"
            raise FencedError(self.store.uri, generation, by, owner)
        if by < generation and self._owner(generation) is None:
            raise StorageReplacedError(
                self.store.uri, generation, generation, "this driver, which has been running"
            )

    def check_has(self, error: FencedError) -> None:
        """Check that a generation of which somebody else knows has been in this store.

        Raises:
            StorageReplacedError: it has not.
        """
        if self.newest_generation() < error.by and self._owner(error.by) is None:
            raise StorageReplacedError(self.store.uri, error.generation, error.by, error.owner) from error

    def check_next_not_claimed(self, generation: int) -> None:
        """Check that the next generation has not taken over, with one request.

        It suffices for one who has looked a moment ago: the records of several generations are kept.

        Raises:
            FencedError: it has.
        """
        owner = self._owner(generation + 1)
        if owner is not None:
            raise FencedError(self.store.uri, generation, generation + 1, owner)

    def _owner(self, generation: int) -> str | None:
        """Return who has claimed a generation; None if there is no claim."""
        try:
            return from_json_of_any_version(Claim, self.store.read(generation_key(generation))).owner
        except ObjectMissingError:
            return None
        except (CodecError, UnfitError):
            # That it is there is enough.
            return "a driver whose record is damaged"

    def newest_generation(self) -> int:
        """Return the highest number of a generation; 0 if there is none."""
        return max(filter(None, map(generation_of, self.store.list(GENERATIONS))), default=0)

    def claim(self, owner: str, now: float, shadow: str = "") -> Claim:
        """Claim the next generation, which fences all lower ones from now on.

        Args:
            owner: who takes over, for users to read.
            now: seconds since 1970.
            shadow: as for ``Claim``.
        """
        number = self.newest_generation()
        while True:
            number += 1
            claim = Claim(number, owner, now, runtime.token(), shadow)
            try:
                self.store.create(generation_key(number), to_sealed_json(claim))
            except ObjectExistsError:
                continue
            return claim

    def claim_after(
        self, generation: int, owner: str, now: float, nonce: str = "", shadow: str = ""
    ) -> Claim | None:
        """Claim the generation after this one; None if somebody else has.

        Args:
            generation: the newest one when the caller decided to take over.
            owner, now, shadow: as for ``claim``.
            nonce: random, and known to those who are to recognise the claim. With the same one, and the same owner and
                time, the claim may be repeated until it succeeds. Empty: it gets one of its own.
        """
        claim = Claim(generation + 1, owner, now, nonce or runtime.token(), shadow)
        try:
            create_own(self.store, generation_key(claim.generation), to_sealed_json(claim))
        except ObjectExistsError:
            return None
        return claim

    def claimed(self, generation: int) -> Claim | None:
        """Return the claim of a generation; None if there is none, or nobody can read it."""
        with suppress(ObjectMissingError, DamagedError):
            return read_record(self.store, generation_key(generation), Claim, "a claim")
        return None

    # --- who writes into the sinks --------------------------------------------------------------------------

    def take_leadership(self, driver: DriverRecord) -> None:
        """Record that the driver of a generation may write into the pipeline's sinks."""
        self.store.write(driver_key(driver.generation), to_sealed_json(driver))

    def step_down(self, generation: int) -> None:
        """Record that the driver of a generation writes into no sink any more."""
        self.store.delete(driver_key(generation))

    def leader(self, generation: int) -> DriverRecord | None:
        """Return the driver of a generation; None if it writes into no sink any more."""
        try:
            return read_record(self.store, driver_key(generation), DriverRecord, "the record of a driver")
        except ObjectMissingError:
            return None
        except DamagedError:
            # There is one, and nobody can find out whether it lives.
            return DriverRecord(generation, "an unknown machine", "", 0, 0, 0, 0)

    def renew(self, lease: LeaseRecord) -> None:
        """Record a leader's lease."""
        self.store.write(lease_key(lease.generation), to_sealed_json(lease))

    def lease(self, generation: int) -> LeaseRecord | None:
        """Return the lease of a generation's leader; None if it keeps none."""
        try:
            return read_record(self.store, lease_key(generation), LeaseRecord, "a lease")
        except (ObjectMissingError, DamagedError):
            return None

    def has_started(self, generation: int) -> bool:
        """Return whether a generation has begun to write into the pipeline's sinks."""
        return self._is_there(start_key(generation))

    def leaders_before(self, generation: int) -> Iterator[DriverRecord]:
        """Yield the drivers that may still write into the sinks, newest first; they may leave meanwhile.

        Each record is read when its turn comes.
        """
        for number in range(generation - 1, 0, -1):
            if (driver := self.leader(number)) is not None:
                yield driver
            # A generation that has started has waited for all before.
            if self._is_there(start_key(number)) or not self._is_there(generation_key(number)):
                return

    def is_gone(self, checkpoint: CheckpointId) -> bool:
        """Return whether a checkpoint is deleted, whatever a store has created since."""
        return self._is_there(gone_key(checkpoint))

    def _is_seen(self, key: str) -> bool:
        """Whether an object is there, by one look for what mostly is not: nothing hangs on a single one."""
        try:
            self.store.stat(key)
        except ObjectMissingError:
            return False
        return True

    def _is_there(self, key: str) -> bool:
        try:
            read_verified(self.store, key, lambda _: None)
        except ObjectMissingError:
            return False
        return True


def _ids(keys: Iterable[str]) -> list[CheckpointId]:
    there = set(keys)
    ids = {checkpoint for key in there if (checkpoint := checkpoint_of(key))}
    return sorted(id for id in ids if manifest_key(id) in there and gone_key(id) not in there)
