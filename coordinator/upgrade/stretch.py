"""Decides which batches a replay runs: those between two checkpoints, savepoints or batches of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import attrs

from ...storage.checkpoints.batch_record import BatchRecord
from ...storage.checkpoints.locate import LATEST
from ...storage.ids import BatchId, CheckpointId
from ..errors import GivenBatchError
from .following import Stage

OLDEST = "oldest"
"""What a user says for the oldest checkpoint that can be restored."""
_BATCH = "batch="


@attrs.frozen
class BatchPlace:
    """A batch that a user has named."""

    query: str | None
    """None: that of the only query."""
    batch: BatchId

    @classmethod
    def of(cls, place: CheckpointId | str) -> BatchPlace | None:
        """Return the batch that a text such as ``batch=53`` or ``batch=totals:53`` names; None if it names none."""
        if not isinstance(place, str) or not place.startswith(_BATCH):
            return None
        query, _, number = place.removeprefix(_BATCH).rpartition(":")
        if not number.isdecimal():
            raise GivenBatchError(
                "no batch can be found", "a number, as in batch=53 or batch=totals:53", repr(place)
            )
        return cls(query or None, BatchId(int(number)))


Place = CheckpointId | str
"""A checkpoint or, as ``BatchPlace.of`` reads it, a batch; "oldest" or "latest"."""


def is_savepoint(place: Place) -> bool:
    """Return whether a place is the URI of a savepoint, in whose stead its id is asked for."""
    return isinstance(place, str) and place not in (OLDEST, LATEST) and not place.startswith(_BATCH)


@attrs.frozen
class Leg:
    """Batches that run one after the other, from one checkpoint to the next."""

    stage: Stage
    """The checkpoint that has them."""
    batches: tuple[tuple[str, BatchRecord], ...]
    """By query."""
    is_whole: bool = True
    """Whether they reach the checkpoint, so that state can be compared there."""


@attrs.frozen
class Stretch:
    """The batches of a replay."""

    start: Stage
    """The checkpoint behind which it begins."""
    legs: tuple[Leg, ...]

    def checkpoints(self) -> tuple[CheckpointId, ...]:
        """Return the checkpoints that are read: where it begins, and where states are compared."""
        return (self.start.id, *(leg.stage.id for leg in self.legs))

    def halves(self) -> tuple[Stretch, Stretch] | None:
        """Return both halves, by checkpoints; None if it has no checkpoint in between."""
        at = len(self.legs) // 2
        if not at:
            return None
        return attrs.evolve(self, legs=self.legs[:at]), Stretch(self.legs[at - 1].stage, self.legs[at:])


def stretch(stages: Sequence[Stage], begin: Place, end: Place) -> Stretch:
    """Return what a replay runs.

    Args:
        stages: the checkpoints that are there, by ascending ids; savepoints, too, that it begins or ends with.
        begin: where it begins: behind a checkpoint, or ahead of a batch, which takes the newest checkpoint before it.
        end: where it ends: with a checkpoint or a batch.

    Raises:
        GivenBatchError: there is no such checkpoint or batch, or a batch in between has no record.
    """
    end_batch, begin_batch = BatchPlace.of(end), BatchPlace.of(begin)
    last = _named(stages, end) if end_batch is None else _with(stages, end_batch)
    chain = _chain(stages, last)
    first = _named(chain, begin) if begin_batch is None else _before(chain, begin_batch)
    if first == last:
        raise _none("checkpoints with batches in between", f"checkpoint {first.id} alone")
    passed = chain[chain.index(first) + 1 :]
    legs, cuts = list[Leg](), dict(first.cuts)
    records = dict[tuple[str, BatchId], BatchRecord]()
    for stage in chain:
        for query, of_query in stage.records.items():
            for record in of_query.batches:
                # A later one repeats the last batch, perhaps without its digests.
                records.setdefault((query, record.batch), record)
    for stage in passed:
        upto = _upto(stage, cuts, end_batch)
        batches = tuple(
            (query, _record(records, stage, query, batch))
            for query, cut in upto.items()
            for batch in map(BatchId, range(cuts.get(query, -1) + 1, cut + 1))
        )
        legs.append(Leg(stage, batches, is_whole=upto == dict(stage.cuts)))
        cuts = upto
    return Stretch(first, tuple(legs))


def _with(stages: Sequence[Stage], place: BatchPlace) -> Stage:
    """Return the first checkpoint that has a batch."""
    query = query_of(stages, place)
    found = [stage for stage in stages if stage.cut(query) >= place.batch]
    if not found:
        newest = max(stage.cut(query) for stage in stages)
        raise _none(f"batch {place.batch} of query {query!r} in a checkpoint", f"batches up to {newest}")
    return found[0]


def _before(chain: Sequence[Stage], place: BatchPlace) -> Stage:
    """Return the last checkpoint that does not have a batch yet."""
    query = query_of(chain, place)
    found = [stage for stage in chain if stage.cut(query) < place.batch]
    if not found:
        oldest = f"the oldest one behind batch {chain[0].cut(query)}"
        raise _none(f"a checkpoint before batch {place.batch} of query {query!r}", oldest)
    return found[-1]


def _named(stages: Sequence[Stage], place: CheckpointId | str) -> Stage:
    if not stages:
        raise _none("a completed checkpoint", "none")
    if place in (OLDEST, LATEST):
        return stages[0] if place == OLDEST else stages[-1]
    found = [stage for stage in stages if stage.id == place]
    if not found:
        there = ", ".join(str(stage.id) for stage in stages)
        raise _none(f"checkpoint {place}, and batches on the same way", f"checkpoints {there}")
    return found[0]


def _chain(stages: Sequence[Stage], last: Stage) -> list[Stage]:
    """Return the checkpoints on the way to one, which is the last of them.

    A pipeline that has gone back to a checkpoint leaves those behind it on a way that ends.
    """
    chain = [last]
    for stage in reversed(stages):
        if stage.id < chain[0].id and _leads_to(stage, chain[0]):
            chain.insert(0, stage)
    return chain


def _leads_to(stage: Stage, later: Stage) -> bool:
    for query, cut in stage.cuts.items():
        if cut > later.cut(query):
            return False
        mine, other = stage.record(query, cut), later.record(query, cut)
        if mine is not None and other is not None and mine.offsets != other.offsets:
            return False
    return True


def query_of(stages: Sequence[Stage], place: BatchPlace) -> str:
    """Return the query of a batch: the one that is named, or else the only one.

    Raises:
        GivenBatchError: there is none of this name, or no name was given and there are several.
    """
    names = _names(stages)
    if place.query is None and len(names) == 1:
        return names[0]
    if place.query not in names:
        found = "no name" if place.query is None else repr(place.query)
        raise _none(
            f"one of the queries {', '.join(map(repr, names))}, as in batch=NAME:{place.batch}", found
        )
    return place.query


def _names(stages: Collection[Stage]) -> list[str]:
    return list(dict.fromkeys(query for stage in stages for query in stage.cuts))


def _upto(stage: Stage, cuts: dict[str, BatchId], end: BatchPlace | None) -> dict[str, BatchId]:
    """Return the last batch of each query that is run for a checkpoint."""
    if end is not None:
        query = query_of([stage], end)
        if stage.cut(query) > end.batch:
            return {**cuts, query: end.batch}
    return dict(stage.cuts)


def _record(
    records: dict[tuple[str, BatchId], BatchRecord], stage: Stage, query: str, batch: BatchId
) -> BatchRecord:
    if (query, batch) in records:
        return records[query, batch]
    found = ", ".join(_runs(number for name, number in records if name == query))
    raise GivenBatchError(
        f"batch {batch} of query {query!r} cannot be run again",
        f"its record in checkpoint {stage.id} or one before",
        f"records of batches {found}" if found else "none of this query",
        "have the pipeline keep records by CheckpointConfig(record_batches=True); or begin behind a later checkpoint",
    )


def _runs(numbers: Iterator[BatchId]) -> Iterator[str]:
    """Yield the stretches of numbers that follow each other."""
    first = last = None
    for number in sorted(numbers):
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            yield f"{first} to {last}"
        first = last = number
    if first is not None:
        yield f"{first} to {last}"


def _none(expected: str, found: str) -> GivenBatchError:
    return GivenBatchError("there is nothing to run again", expected, found)
