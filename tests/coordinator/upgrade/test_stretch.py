from __future__ import annotations

import pytest

from chandy.coordinator.errors import GivenBatchError
from chandy.coordinator.upgrade.following import Stage
from chandy.coordinator.upgrade.stretch import Stretch, stretch
from chandy.storage.checkpoints.batch_record import BatchRecord, BatchRecords, Digest
from chandy.storage.ids import BatchId, CheckpointId


def stage(id: int, first: int, last: int, way: str = "", **others: int) -> Stage:
    """A checkpoint behind a batch of query q, with the records from another one on."""
    records = tuple(BatchRecord(BatchId(batch), f"{way}{batch}") for batch in range(first, last + 1))
    cuts = {name: BatchId(batch) for name, batch in {"q": last, **others}.items()}
    return Stage(CheckpointId(id), cuts, {"q": BatchRecords(BatchId(first - 1), records)})


FOUR = [stage(1, 0, 1), stage(2, 1, 3), stage(3, 3, 5), stage(4, 5, 8)]
"""Each has the last batch of the one before, too."""


def batches(found: Stretch) -> list[list[int]]:
    return [[record.batch for _, record in leg.batches] for leg in found.legs]


@pytest.mark.parametrize(
    ("begin", "end", "start", "expected"),
    [
        ("oldest", "latest", 1, [[2, 3], [4, 5], [6, 7, 8]]),
        (2, 3, 2, [[4, 5]]),
        ("batch=5", "latest", 2, [[4, 5], [6, 7, 8]]),
        ("batch=6", "batch=7", 3, [[6, 7]]),
        (1, "batch=q:4", 1, [[2, 3], [4]]),
        (1, "batch=5", 1, [[2, 3], [4, 5]]),
    ],
)
def test_a_stretch_has_the_batches_between_two_places(
    begin: int | str, end: int | str, start: int, expected: list[list[int]]
) -> None:
    found = stretch(
        FOUR, *(place if isinstance(place, str) else CheckpointId(place) for place in (begin, end))
    )
    assert (found.start.id, batches(found)) == (start, expected)


def test_state_is_compared_where_a_checkpoint_is_reached() -> None:
    assert [leg.is_whole for leg in stretch(FOUR, "oldest", "batch=4").legs] == [True, False]


def test_what_a_pipeline_has_given_up_by_going_back_is_left_out() -> None:
    """It went back from batch 5 to batch 3, and came to other batches 4 and 5."""
    given_up = stage(3, 3, 5, way="other ")
    found = stretch([stage(1, 0, 1), stage(2, 1, 3), given_up, stage(4, 3, 7)], "oldest", "latest")
    assert [leg.stage.id for leg in found.legs] == [2, 4]


@pytest.mark.parametrize(
    ("begin", "end", "says"),
    [
        (9, "latest", "expected checkpoint 9.*found checkpoints 1, 2, 3, 4"),
        (4, 2, "expected checkpoint 4.*found checkpoints 1, 2"),
        ("oldest", "batch=9", "batch 9 of query 'q' in a checkpoint, found batches up to 8"),
        (
            "batch=1",
            "latest",
            "a checkpoint before batch 1 of query 'q', found the oldest one behind batch 1",
        ),
        ("batch=x", "latest", "a number, as in batch=53"),
        ("batch=other:3", "latest", "one of the queries 'q'"),
        (4, "latest", "checkpoint 4 alone"),
    ],
)
def test_a_place_that_is_not_there_is_refused(begin: int | str, end: int | str, says: str) -> None:
    with pytest.raises(GivenBatchError, match=says):
        stretch(FOUR, *(place if isinstance(place, str) else CheckpointId(place) for place in (begin, end)))


def test_a_batch_without_a_record_is_named_with_those_that_there_are() -> None:
    with pytest.raises(
        GivenBatchError, match=r"batch 4 of query 'q'.*found records of batches 0 to 3, 6 to 8"
    ):
        stretch([stage(1, 0, 1), stage(2, 2, 3), stage(4, 6, 8)], "oldest", "latest")
    bare = [Stage(CheckpointId(id), {"q": BatchId(id)}, {}) for id in (1, 2)]
    with pytest.raises(GivenBatchError, match=r"found none of this query.*record_batches=True"):
        stretch(bare, "oldest", "latest")


def test_halves_are_cut_at_checkpoints() -> None:
    whole = stretch(FOUR, "oldest", "latest")
    halves = whole.halves()
    assert halves is not None
    earlier, later = halves
    assert (earlier.start.id, batches(earlier)) == (1, [[2, 3]])
    assert (later.start.id, batches(later)) == (2, [[4, 5], [6, 7, 8]])
    assert earlier.halves() is None


def test_the_record_of_a_batch_is_that_of_the_checkpoint_which_has_the_batch() -> None:
    """The next one repeats it, perhaps without what went out."""
    digest = {"files": Digest.of(3, 5)}
    second = Stage(
        CheckpointId(2),
        {"q": BatchId(2)},
        {"q": BatchRecords(BatchId(1), (BatchRecord(BatchId(2), "2", {}, digest),))},
    )
    found = stretch([stage(1, 0, 1), second, stage(3, 2, 3)], "oldest", "latest")
    assert [record.outputs for leg in found.legs for _, record in leg.batches] == [digest, {}]
