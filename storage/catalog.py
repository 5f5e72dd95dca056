"""The catalog of a pipeline's checkpoints: reading and committing manifests, and taking over a pipeline."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import TypeVar

import attrs

from .codec import from_json, to_json
from .errors import (
    CodecError,
    DamagedError,
    FencedError,
    ObjectExistsError,
    ObjectMissingError,
    SchemaTooNewError,
)
from .fencing import Claim, Driver, Generation, begin, voided_by
from .layout import (
    CHECKPOINTS,
    GENERATIONS,
    checkpoint_of,
    driver_key,
    generation_key,
    generation_of,
    manifest_key,
    start_key,
    started_by,
)
from .manifest import Manifest
from .manifest_json import decode_manifest, encode_manifest
from .retrying import Patience, create_surely, no_patience, until_known
from .store import Store

T = TypeVar("T")


@attrs.frozen
class Entry:
    """A checkpoint's manifest as it is found in a store, readable or not."""

    id: int
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

    def list_ids(self) -> list[int]:
        """Return the ids of all manifests, ascending, including void ones."""
        return _ids(self.store.list(CHECKPOINTS))

    def read(self, checkpoint: int) -> Manifest:
        """Return a checkpoint's manifest.

        Raises:
            ObjectMissingError: there is no such checkpoint.
            DamagedError: it is damaged, or belongs to another checkpoint.
            SchemaTooNewError: a newer version of Chandy wrote it.
        """
        key = manifest_key(checkpoint)
        manifest = decode_manifest(self.store.read(key), self.store.uri, key)
        if manifest.id != checkpoint:
            raise DamagedError(self.store.uri, key, f"checkpoint {checkpoint}", f"checkpoint {manifest.id}")
        return manifest

    def latest(self) -> Manifest | None:
        """Return the completed checkpoint with the highest id; None if there is none.

        Raises:
            DamagedError, SchemaTooNewError: the newest manifest cannot be read. It is not skipped, because only
                the user can decide to go back to an older checkpoint.
        """
        while True:
            for checkpoint in reversed(self.list_ids()):
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

    def entries(self) -> list[Entry]:
        """Return an entry for each manifest by ascending id, all of one moment.

        A list that is made while a checkpoint completes and retention drops another may have neither. So it is made
        twice: ids only grow, and if both lists are equal, nothing happened between them.
        """
        while True:
            ids = self.list_ids()
            try:
                entries = [self._entry(checkpoint) for checkpoint in ids]
            except ObjectMissingError:
                if self.list_ids() == ids:
                    raise
                continue
            if self.list_ids() == ids:
                break
        started = self.generations()
        return [
            attrs.evolve(entry, voided_by=voided_by(entry.manifest.generation, entry.id, started))
            if entry.manifest
            else entry
            for entry in entries
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

    def _entry(self, checkpoint: int) -> Entry:
        try:
            return Entry(checkpoint, self.read(checkpoint))
        except (DamagedError, SchemaTooNewError) as error:
            return Entry(checkpoint, problem=error)

    def generations(self) -> list[Generation]:
        """Return the start records of all generations, ascending.

        Raises:
            DamagedError: one cannot be read.
        """
        numbers = sorted(filter(None, map(started_by, self.store.list(GENERATIONS))))
        return [self._record(Generation, start_key(number)) for number in numbers]

    # --- committing -----------------------------------------------------------------------------------------

    def take_over(self, owner: str, now: float, first_id: int = 1) -> Generation:
        """Claim and start a generation at once, which waits for nobody: for those who write into no sink.

        The arguments and errors are those of ``claim`` and ``start``.
        """
        return self.start(self.claim(owner, now), first_id)

    def start(self, claim: Claim, first_id: int = 1) -> Generation:
        """Begin the generation of a claim, and return its start record.

        Args:
            claim: of this generation; no predecessor writes into a sink any more.
            first_id: the lowest checkpoint id to use, such as one above the id of a restored savepoint.

        Raises:
            DamagedError: the record of an earlier generation cannot be read.
            FencedError: a higher generation has taken over meanwhile.
        """
        keys = self.store.list(CHECKPOINTS)
        touched = {checkpoint for key in keys if (checkpoint := checkpoint_of(key))}
        generation = begin(claim, _ids(keys), touched, self.generations(), first_id)
        self.store.create(start_key(claim.generation), to_json(generation))
        self.check_not_fenced(claim.generation)
        return generation

    def commit(self, manifest: Manifest, patience: Patience = no_patience) -> None:
        """Write a checkpoint's manifest. This is its commit point, provided that ``confirm`` then succeeds.

        Args:
            manifest: the checkpoint.
            patience: called while it is unknown whether the manifest was written.

        Raises:
            ObjectExistsError: there is another manifest with this id.
            StoreFailedError: it was not written.
            OutcomeUnknownError: the patience is over. Nothing that the manifest names may be deleted.
        """
        create_surely(self.store, manifest_key(manifest.id), encode_manifest(manifest), patience)

    def confirm(self, manifest: Manifest, patience: Patience = no_patience) -> None:
        """Check that a manifest that was just committed counts, and delete it if it is void.

        Raises:
            FencedError: another generation has taken over. The checkpoint must not be announced as completed, but the
                other generation may restore from it.
            OutcomeUnknownError: the patience is over, and it is unknown whether the manifest counts.
        """
        until_known(lambda: self._confirm(manifest), None, patience)

    def _confirm(self, manifest: Manifest) -> None:
        try:
            self.check_not_fenced(manifest.generation)
        except FencedError:
            if voided_by(manifest.generation, manifest.id, self.generations()):
                self.store.delete(manifest_key(manifest.id))
            raise

    def check_not_fenced(self, generation: int) -> None:
        """Check that no higher generation has taken over, by reading one key.

        Raises:
            FencedError: one has.
        """
        # Generations are claimed without gaps: if there is a higher one, there is the next one.
        try:
            by = self._record(Claim, generation_key(generation + 1))
        except ObjectMissingError:
            return
        raise FencedError(self.store.uri, generation, by.generation, by.owner)

    def claim(self, owner: str, now: float) -> Claim:
        """Claim the next generation, which fences all lower ones from now on.

        Args:
            owner: who takes over, for users to read.
            now: seconds since 1970.
        """
        number = self.newest_generation()
        while True:
            number += 1
            claim = Claim(number, owner, now, uuid.uuid4().hex)
            try:
                self.store.create(generation_key(number), to_json(claim))
            except ObjectExistsError:
                continue
            return claim

    def newest_generation(self) -> int:
        """Return the newest generation that has been claimed; 0 if there is none."""
        return max(filter(None, map(generation_of, self.store.list(GENERATIONS))), default=0)

    # --- who writes into the sinks --------------------------------------------------------------------------

    def take_office(self, driver: Driver) -> None:
        """Record that the driver of a generation may write into the pipeline's sinks."""
        self.store.write(driver_key(driver.generation), to_json(driver))

    def leave_office(self, generation: int) -> None:
        """Record that the driver of a generation writes into no sink any more."""
        self.store.delete(driver_key(generation))

    def in_office(self, generation: int) -> Driver | None:
        """Return the driver of a generation; None if it writes into no sink any more.

        Raises:
            DamagedError: its record cannot be read.
        """
        try:
            return self._record(Driver, driver_key(generation))
        except ObjectMissingError:
            return None

    def predecessors_in_office(self, generation: int) -> Iterator[Driver]:
        """Yield the drivers that may still write into the sinks, newest first; they may leave meanwhile.

        Each record is read when its turn comes.
        """
        for number in range(generation - 1, 0, -1):
            if (driver := self.in_office(number)) is not None:
                yield driver
            # Whoever has started has waited for all before.
            if self._is_there(start_key(number)) or not self._is_there(generation_key(number)):
                return

    def _is_there(self, key: str) -> bool:
        try:
            self.store.read(key)
        except ObjectMissingError:
            return False
        return True

    def _record(self, type_: type[T], key: str) -> T:
        try:
            return from_json(type_, self.store.read(key))
        except CodecError as error:
            raise DamagedError(self.store.uri, key, f"a {type_.__name__} record", error.reason) from None


def _ids(keys: Iterable[str]) -> list[int]:
    return sorted(
        checkpoint for key in keys if (checkpoint := checkpoint_of(key)) and key == manifest_key(checkpoint)
    )
