"""The files that have a compacting log as of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.spark.compact_log import entry_number, missing_entry, names_at

LOG = ["0", "1", "2.compact", "3", "4", "5.compact", "6"]


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (-1, []),
        (1, ["0", "1"]),
        (2, ["2.compact"]),
        (4, ["2.compact", "3", "4"]),
        (5, ["5.compact"]),
        (9, ["5.compact", "6"]),
    ],
)
def test_the_latest_compact_file_stands_for_all_before_it(batch: int, names: list[str]) -> None:
    assert names_at(LOG, batch) == names


def test_checksums_go_with_their_entries_and_the_rest_stays() -> None:
    log = ["1", "1.crc", "2.compact", "2.compact.crc", "3", "3.crc", "4", "4.crc", "other"]
    assert names_at(log, 3) == ["2.compact", "2.compact.crc", "3", "3.crc", "other"]


def test_only_numbers_are_entries() -> None:
    assert [entry_number(name) for name in ("7", "7.compact", "7.tmp", "a", "")] == [7, 7, None, None, None]


@given(st.integers(2, 12), st.integers(0, 60), st.integers(0, 60))
def test_what_is_chosen_covers_every_batch_once(interval: int, newest: int, batch: int) -> None:
    log = [f"{n}.compact" if (n + 1) % interval == 0 else f"{n}" for n in range(newest + 1)]
    chosen = names_at(log, batch)
    covered = sorted(
        covered
        for name in chosen
        for covered in (range(int(name[:-8]) + 1) if name.endswith(".compact") else [int(name)])
    )
    assert covered == list(range(min(batch, newest) + 1))


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["0", "1", "2", "2.crc"], None),
        (["9.compact", "10", "11"], None),
        (["1", "2"], 0),
        (["9.compact", "11"], 10),
        (["9.compact", "10"], 11),
    ],
)
def test_a_missing_entry_is_found(names: list[str], missing: int | None) -> None:
    assert missing_entry(names, 2 if "2" in names else 11) == missing
