"""The files that have a compacting log as of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.spark.logs.compact_log import (
    entry_number,
    entry_to_compact,
    first_read,
    interval_of,
    mended,
    missing_entry,
    names_at,
)

LOG = ["0", "1", "2.compact", "3", "4", "5.compact", "6"]


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (-1, []),
        (1, ["0", "1"]),
        (2, ["2.compact"]),
        (4, ["2.compact", "3", "4"]),
        (5, ["2.compact", "5.compact"]),
        (9, ["2.compact", "5.compact", "6"]),
    ],
)
def test_the_latest_compact_file_stands_for_all_before_it_and_the_one_before_tells_the_interval(
    batch: int, names: list[str]
) -> None:
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
    compacted = sorted(int(name[:-8]) for name in chosen if name.endswith(".compact"))
    entries = sorted(int(name) for name in chosen if not name.endswith(".compact"))
    assert entries == list(range(compacted[-1] + 1 if compacted else 0, min(batch, newest) + 1))
    assert len(compacted) < 2 or compacted[-1] - compacted[-2] == interval


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


# --- what Spark makes of a log ------------------------------------------------------------------------------


class SparkLog:
    """A log as Spark writes and reads it: the interval is derived when it is opened."""

    def __init__(self, files: dict[str, bytes], default: int) -> None:
        self.files = dict(files)
        compacted = sorted(int(name[:-8]) for name in files if name.endswith(".compact"))
        self.interval = interval_of(compacted, default)
        self.newest = max((int(name.partition(".")[0]) for name in files), default=-1)
        assert self.read() == list(range(self.newest + 1))

    def read(self) -> list[int]:
        """The entries, as a reader finds them; a ``KeyError`` is Spark's "49.compact doesn't exist"."""
        start = first_read(self.newest, self.interval)
        found: list[int] = []
        for number in range(start, self.newest + 1):
            name = f"{number}.compact" if (number + 1) % self.interval == 0 else f"{number}"
            found += [int(line) for line in self.files[name].split(b"\n")[1:]]
        return found

    def add(self) -> None:
        number = self.newest + 1
        if (number + 1) % self.interval == 0:
            lines = [*(self.read() if self.newest >= 0 else []), number]
            self.files[f"{number}.compact"] = b"\n".join([b"v1", *(str(line).encode() for line in lines)])
        else:
            self.files[f"{number}"] = b"v1\n" + str(number).encode()
        self.newest = number

    def expire(self) -> None:
        """Delete what the latest compact file repeats, as Spark does some time after it."""
        last = max((int(name[:-8]) for name in self.files if name.endswith(".compact")), default=0)
        self.files = {
            name: content for name, content in self.files.items() if int(name.partition(".")[0]) >= last
        }


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 15)), min_size=1, max_size=6),
)
def test_spark_reads_whatever_a_chain_of_restores_has_left(
    default: int, lives: list[tuple[int, bool, int]]
) -> None:
    files: dict[str, bytes] = {}
    for batches, expires, back in lives:
        log = SparkLog(files, default)
        for _ in range(batches):
            log.add()
        if expires:
            log.expire()
        last = max(log.newest - back, first_read(log.newest, log.interval), -1)
        files = mended({name: log.files[name] for name in names_at(log.files, last)}, default)
    SparkLog(files, default)


def test_a_log_that_spark_would_misread_is_mended() -> None:
    # It was opened with 19.compact alone, so that it was compacted every 20 entries.
    log = {"39.compact": b"v1\na\nb"} | {str(n): f"v1\n{n}".encode() for n in range(40, 53)}
    assert entry_to_compact(log, 10) == 49
    merged = b"v1\na\nb\n" + b"\n".join(str(n).encode() for n in range(40, 50))
    assert mended(log, 10) == {"49.compact": merged, **{str(n): log[str(n)] for n in (50, 51, 52)}}
    # With the file before it, Spark knows better, and nothing is changed.
    assert mended(log | {"19.compact": b"v1"}, 10) == log | {"19.compact": b"v1"}
    assert mended({}, 10) == {}
