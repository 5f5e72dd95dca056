"""The checkpoints of one pipeline: committing, reading and finding them, and who may commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TypeVar

from .codec import from_json, to_json
from .errors import (
    CodecError,
    DamagedError,
    FencedError,
    ObjectExistsError,
    ObjectMissingError,
    SchemaTooNewError,
)
from .fencing import Claim, Generation, begin, voided_by
from .layout import (
    CHECKPOINTS,
    GENERATIONS,
    checkpoint_of,
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


class Catalog:
    """The checkpoints in a pipeline's own store (``<storage>/<pipeline>``). Holds no state of its own.

    A coordinator's life: ``take_over`` once; for each checkpoint ``check_not_fenced``, ``commit``,
    ``confirm``: the checkpoint is completed when ``confirm`` has returned. See ``fencing`` for why that is
    enough. Manifests are committed one at a time and in the order of their ids.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- reading --------------------------------------------------------------------------------------------

    def list_ids(self) -> list[int]:
        """Return the ids of all manifests, ascending; those of void ones too."""
        return _ids(self.store.list(CHECKPOINTS))

    def read(self, checkpoint: int) -> Manifest:
        """Return a checkpoint's manifest.

        Raises:
            ObjectMissingError: there is no such checkpoint.
            DamagedError: it is damaged, or another checkpoint's.
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
            DamagedError, SchemaTooNewError: a newer manifest cannot be read. None is ever skipped for that:
                which older one to go back to is for people to say.
        """
        while True:
            for checkpoint in reversed(self.list_ids()):
                try:
                    manifest = self.read(checkpoint)
                except ObjectMissingError:
                    if checkpoint in self.list_ids():
                        raise
                    break  # deleted since the list: the list is old
                # Generations come after the manifest, so that whatever made it void before it was read is
                # seen.
                if not voided_by(manifest.generation, manifest.id, self.generations()):
                    return manifest
            else:
                return None

    def manifests_and_damage(self) -> tuple[list[Manifest], dict[int, DamagedError]]:
        """Return all manifests of one moment by ascending id, those of void ones too, and the errors of those that are
        damaged by the ids of their checkpoints.

        A list that is made while a checkpoint completes and retention drops another may have neither. Ids
        only grow, so two lists that are equal had nothing happen between them.

        Raises:
            SchemaTooNewError: a newer version of Chandy wrote one.
        """
        while True:
            ids = self.list_ids()
            manifests: list[Manifest] = []
            damaged: dict[int, DamagedError] = {}
            try:
                for checkpoint in ids:
                    try:
                        manifests.append(self.read(checkpoint))
                    except DamagedError as error:
                        damaged[checkpoint] = error
            except ObjectMissingError:
                if self.list_ids() == ids:
                    raise
                continue
            if self.list_ids() == ids:
                return manifests, damaged

    def completed(self) -> list[Manifest]:
        """Return all completed checkpoints of one moment by ascending id.

        Raises:
            As ``latest``.
        """
        completed, damaged = self.completed_and_damage()
        if damaged:
            raise next(iter(damaged.values()))
        return completed

    def completed_and_damage(self) -> tuple[list[Manifest], dict[int, DamagedError]]:
        """As ``completed``, with the errors of those whose manifest is damaged by the ids of their checkpoints.

        Raises:
            SchemaTooNewError: a newer version of Chandy wrote one.
        """
        manifests, damaged = self.manifests_and_damage()
        started = self.generations()
        return [one for one in manifests if not voided_by(one.generation, one.id, started)], damaged

    def readable(self) -> list[Manifest]:
        """As ``completed``, without those whose manifest cannot be read.

        For whoever has been told which older checkpoint to take in place of a damaged one.
        """
        started = self.generations()
        found = []
        for checkpoint in self.list_ids():
            try:
                manifest = self.read(checkpoint)
            except (DamagedError, ObjectMissingError, SchemaTooNewError):
                continue
            if not voided_by(manifest.generation, checkpoint, started):
                found.append(manifest)
        return found

    def generations(self) -> list[Generation]:
        """Return the start records of all generations, ascending.

        Raises:
            DamagedError: one cannot be read.
        """
        numbers = sorted(filter(None, map(started_by, self.store.list(GENERATIONS))))
        return [self._record(Generation, start_key(number)) for number in numbers]

    # --- committing -----------------------------------------------------------------------------------------

    def take_over(self, owner: str, now: float, first_id: int = 1) -> Generation:
        """Begin a new generation, which fences all lower ones; return what it found and where it goes on.

        Args:
            owner: who takes over, for people.
            now: seconds since 1970.
            first_id: the lowest checkpoint id to use, e.g. one above that of a savepoint that is restored.

        Raises:
            DamagedError: an earlier generation's record cannot be read.
            FencedError: a still higher generation was faster.
        """
        claim = self._claim(owner, now)
        keys = self.store.list(CHECKPOINTS)
        touched = {checkpoint for key in keys if (checkpoint := checkpoint_of(key))}
        generation = begin(claim, _ids(keys), touched, self.generations(), first_id)
        self.store.create(start_key(claim.generation), to_json(generation))
        self.check_not_fenced(claim.generation)
        return generation

    def commit(self, manifest: Manifest, patience: Patience = no_patience) -> None:
        """Write a checkpoint's manifest: its commit point, once ``confirm`` has agreed.

        Args:
            manifest: the checkpoint.
            patience: asked as long as nobody can tell whether the manifest was written.

        Raises:
            ObjectExistsError: there is another manifest with this id.
            StoreFailedError: it was not written.
            OutcomeUnknownError: the patience is over; nothing that the manifest names may be deleted.
        """
        create_surely(self.store, manifest_key(manifest.id), encode_manifest(manifest), patience)

    def confirm(self, manifest: Manifest, patience: Patience = no_patience) -> None:
        """Check that a manifest that was just committed counts; delete it if it is void.

        Raises:
            FencedError: another generation has taken over; the checkpoint must not be announced as completed.
                It may still be what the other one restores from.
            OutcomeUnknownError: the patience is over, and nobody can tell whether it counts.
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
        """Check that no higher generation has taken over. Reads one key, lists nothing.

        Raises:
            FencedError: one has.
        """
        # Generations are claimed without gaps: if there is any higher one, the next one is there.
        try:
            by = self._record(Claim, generation_key(generation + 1))
        except ObjectMissingError:
            return
        raise FencedError(self.store.uri, generation, by.generation, by.owner)

    def _claim(self, owner: str, now: float) -> Claim:
        number = max(filter(None, map(generation_of, self.store.list(GENERATIONS))), default=0)
        while True:
            number += 1
            claim = Claim(number, owner, now, uuid.uuid4().hex)
            try:
                self.store.create(generation_key(number), to_json(claim))
            except ObjectExistsError:
                continue
            return claim

    def _record(self, type_: type[T], key: str) -> T:
        try:
            return from_json(type_, self.store.read(key))
        except CodecError as error:
            raise DamagedError(self.store.uri, key, f"a {type_.__name__} record", error.reason) from None


def _ids(keys: Iterable[str]) -> list[int]:
    return sorted(
        checkpoint for key in keys if (checkpoint := checkpoint_of(key)) and key == manifest_key(checkpoint)
    )
