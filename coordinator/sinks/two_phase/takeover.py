"""Brings the targets of a query to the checkpoint that a life begins from, and shuts out earlier lives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from ....storage.backends.open import open_store
from ....storage.checkpoints.catalog import Catalog
from ....storage.checkpoints.manifest import EpochRecord, OutputRecord
from ....storage.errors import DamagedError, FencedError, ObjectMissingError
from ....storage.ids import CheckpointId
from ....storage.logs import logger
from ...permit import Permit, Permits, after, span
from ..sink import StartPoint
from .contract import Epoch, Fence
from .epochs import Ahead, EpochsToPublish, LostOutput, where_to_begin
from .errors import OutputAheadError, OutputLostError, RewindError
from .publisher import Publisher

log = logger(__name__)

_BEGIN_SECONDS: Final = 60.0
"""How long a start waits for targets that are not there."""


@attrs.frozen
class SinkTakeover:
    """What one life does with its targets before its query begins."""

    publishers: Mapping[str, Publisher]
    """By the uid of their sink."""
    fence: Fence
    """The identity of the publisher; its ``sink`` does not matter."""
    permits: Permits
    """What may be given up."""
    first_epoch: CheckpointId
    """The least id that this life gives to a checkpoint."""
    may_take_back: bool = True
    """Whether nobody has read in this life what a target would take back."""

    def run(self, beginning: StartPoint) -> dict[str, CheckpointId | None]:
        """Bring each target to the checkpoint, and return the newest epoch that it has then, by sink.

        Raises:
            ChandyError: a target does not fit the checkpoint, is not there, or is somebody else's.
        """
        records = {record.sink: record for record in beginning.outputs}
        positions = {
            uid: self._begun(publisher, records.get(uid)) for uid, publisher in self.publishers.items()
        }
        # All that may be refused comes before anything is changed: no target is to go back, or ahead, for nothing.
        steps = {uid: self._decide(uid, records.get(uid), positions, beginning) for uid in self.publishers}
        beginning.keep_chosen()
        left = {uid: step() for uid, step in steps.items()}
        for uid, epochs in left.items():
            self._publish_now(uid, [Epoch(epoch, beginning.root) for epoch in epochs])
        return {uid: epochs[-1].id if epochs else positions[uid] for uid, epochs in left.items()}

    def _begun(self, publisher: Publisher, record: OutputRecord | None) -> CheckpointId | None:
        try:
            return publisher.begin(_BEGIN_SECONDS, record)
        except FencedError as error:
            # This life has just claimed the newest generation that the store knows.
            Catalog(open_store(self.fence.store)).check_has(error)
            raise

    def _publish_now(self, uid: str, epochs: Sequence[Epoch]) -> None:
        for epoch in epochs:
            try:
                self.publishers[uid].publish_now([epoch], _BEGIN_SECONDS)
            except (DamagedError, ObjectMissingError) as error:
                wanted = self._loss(uid, epoch.id, epoch.id)
                if not self.permits.use(wanted):
                    log.error(
                        "rows cannot be published; put their file back, or give them up",
                        sink=uid,
                        epoch=epoch.id,
                        to_give_up=self.permits.advice(wanted),
                    )
                    raise
                log.error("rows are lost", sink=uid, epoch=epoch.id, rows=epoch.rows, error=str(error))

    def _loss(self, uid: str, first: int, last: int) -> Permit:
        return Permit(lost_output={self._named(uid): span(first, last)})

    def _named(self, uid: str) -> str:
        return attrs.evolve(self.fence, sink=uid).name

    def _decide(
        self,
        uid: str,
        record: OutputRecord | None,
        positions: dict[str, CheckpointId | None],
        beginning: StartPoint,
    ) -> Callable[[], tuple[EpochRecord, ...]]:
        """Return the step that brings a target to the checkpoint, and returns what is left to publish then.

        Raises:
            ChandyError: the target does not fit. Nothing is changed.
        """
        publisher, move = self.publishers[uid], None
        where = where_to_begin(record, beginning.checkpoint, positions[uid])
        if record and where != EpochsToPublish(()):
            epochs = [Epoch(epoch, beginning.root) for epoch in record.epochs]
            same = publisher.recognised(epochs, _BEGIN_SECONDS)
            where = where_to_begin(record, beginning.checkpoint, positions[uid], same)
        with contextlib.suppress(RewindError):
            if isinstance(where, LostOutput):
                # An earlier life may have gone back, and have ended before it had a checkpoint of its own.
                publisher.check_bring_back(where.expected, _BEGIN_SECONDS)
                move = partial(publisher.bring_back, where.expected, _BEGIN_SECONDS)
            elif isinstance(where, Ahead) and beginning.checkpoint is not None and self.may_take_back:
                # Without a checkpoint, nobody has asked to take anything back.
                publisher.check_rewind(where.common, _BEGIN_SECONDS)
                move = partial(publisher.rewind, where.common, _BEGIN_SECONDS)
        if move is not None:

            def moved() -> tuple[EpochRecord, ...]:
                positions[uid] = move()
                return self._left(uid, record, positions[uid], beginning)

            return moved
        left = self._left(uid, record, positions[uid], beginning)
        return lambda: left

    def _left(
        self, uid: str, record: OutputRecord | None, position: CheckpointId | None, beginning: StartPoint
    ) -> tuple[EpochRecord, ...]:
        """Return what is left to publish, if the target stays where it is.

        Raises:
            ChandyError: it does not fit the checkpoint, and the user has not accepted that.
        """
        match where_to_begin(record, beginning.checkpoint, position):
            case Ahead(published) if beginning.checkpoint is None:
                return self._anew(uid, record, published, beginning)
            case Ahead(published):
                return self._repeat(uid, record, published, beginning)
            case LostOutput(expected, found, left):
                wanted = self._loss(uid, after(found), expected)
                if not self.permits.use(wanted):
                    raise self._lost(uid, expected, found, beginning, wanted)
                self.publishers[uid].accept_loss(found)
                return left
            case EpochsToPublish(epochs):
                return epochs

    def _anew(
        self, uid: str, record: OutputRecord | None, published: CheckpointId, beginning: StartPoint
    ) -> tuple[EpochRecord, ...]:
        """Begin without a checkpoint, although a target has output."""
        if published < self.first_epoch:
            return self._repeat(uid, record, published, beginning)
        raise OutputAheadError(
            f"query {self.fence.query!r} cannot begin without a checkpoint",
            f"a target of sink {uid!r} that has nothing, or a storage that has given it all that it has",
            f"epoch {published} in the target, and none above {self.first_epoch - 1} in {self.fence.store}: "
            "the storage was wiped, or the output is that of another one",
            "put the storage's content back and start again; or, to start over, choose an empty target, or give the "
            "sink another uid",
        )

    def _repeat(
        self, uid: str, record: OutputRecord | None, published: CheckpointId, beginning: StartPoint
    ) -> tuple[EpochRecord, ...]:
        """Accept that a target gets again what it has from after the checkpoint, if the user or the sink does."""
        restored = beginning.checkpoint
        if published >= self.first_epoch:
            raise OutputAheadError(
                f"query {self.fence.query!r} cannot begin after checkpoint {restored}",
                f"a target of sink {uid!r} whose newest epoch is below {self.first_epoch}, the next id here",
                f"epoch {published}, of the storage that the savepoint comes from",
                "restore a savepoint that has it; or choose an empty target; or, if the target keeps a position for "
                "each sink, give the sink another uid, and it gets the rows after the savepoint a second time",
            )
        # A target that is not ahead of the checkpoint has what came after a savepoint, in a way that was given up.
        common = restored
        if restored is not None and published <= restored:
            common = record.published if record else None
        wanted = Permit(repeated_output={self._named(uid): span(after(common), published)})
        if self.publishers[uid].may_repeat or self.permits.use(wanted):
            log.warning("rows are published again", sink=uid, published=published, checkpoint=restored)
            return tuple(epoch for epoch in record.epochs if epoch.id > published) if record else ()
        at = "without a checkpoint" if restored is None else f"at checkpoint {restored}"
        raise OutputAheadError(
            f"query {self.fence.query!r} cannot begin {at}",
            f"a target of sink {uid!r} that has nothing from after it",
            f"what was published up to checkpoint or savepoint {published}",
            "restore that one or a newer one; or choose an empty target; "
            + (
                ""
                if self.may_take_back
                else "or start this query before those of the pipeline that read its output; "
            )
            + f"or pass {self.permits.advice(wanted)}, and the target gets these rows a second time",
        )

    def _lost(
        self, uid: str, expected: CheckpointId, found: int | None, beginning: StartPoint, wanted: Permit
    ) -> OutputLostError:
        return OutputLostError(
            f"query {self.fence.query!r} cannot begin at checkpoint {beginning.checkpoint}",
            f"the target of sink {uid!r} to have what was published, up to checkpoint {expected}",
            "nothing of it" if found is None else f"it up to checkpoint {found}",
            "put back what the target has lost, restore a checkpoint that the target fits, or pass "
            f"{self.permits.advice(wanted)}, and these rows stay lost",
        )
