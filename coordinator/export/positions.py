"""Where the sources of a query stand at a checkpoint, for a query that starts without one and reads on from there.

A query whose operators are Chandy's has no state that plain Spark can go on with. It begins with batch 0, because plain
Spark takes an initial state in batch 0 alone, and its sources must begin where the checkpoint has left them:

* A file source begins there if the log in its folder names the files that were read. Spark then knows them, and takes
  none of them for new ones. Their entries have the number of a batch that will never be, so that batch 0 does not read
  them either.
* Kafka's offset is what its option ``startingOffsets`` takes.
* Of any other source the offset is all that is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import attrs

from ..spark.logs.compact_log import entry_number
from ..spark.logs.offset_log import LoggedOffset, log_end, offsets_in

READ_BATCH: Final = 10**12 + 5
"""The batch of files that were read before batch 0, in a file source's log: one that will never be."""
_TICK: Final = {"batch"}
"""The one field in the offset of a source of ticks, see ``state/operators/ticks.py``."""


@attrs.frozen
class SourcePosition:
    """Where a source stands."""

    folder: str
    """Its folder in the checkpoint directory of Chandy's query, below ``sources``."""
    plain_folder: str
    """Its folder in the directory of the same query without Chandy's sources of ticks."""
    offset: str
    """Spark's JSON."""

    @property
    def log_end(self) -> int | None:
        """The entry of a file source's log at which it stands; None if it is not a file source."""
        return log_end(self.offset)

    @property
    def topics(self) -> bool:
        """Whether it is a position in Kafka's topics: an offset by partition by topic."""
        try:
            document = json.loads(self.offset)
        except ValueError:
            return False
        return (
            isinstance(document, dict)
            and bool(document)
            and all(
                isinstance(partitions, dict)
                and all(name.isdecimal() and isinstance(offset, int) for name, offset in partitions.items())
                for partitions in document.values()
            )
        )


def positions(offsets: str) -> list[SourcePosition]:
    """Return the positions in an entry of the offset log, without those of sources of ticks."""
    logged = offsets_in(offsets)
    found: list[SourcePosition] = []
    for number, one in enumerate(logged):
        if one.offset is not None and not _is_tick(one):
            # By name, or by their number, which the sources of ticks have not in a plain query.
            plain = one.source if one.is_named else str(number - sum(map(_is_tick, logged[:number])))
            found.append(SourcePosition(one.source, plain, one.offset))
    return found


def _is_tick(logged: LoggedOffset) -> bool:
    try:
        document = json.loads(logged.offset or "")
    except ValueError:
        return False
    return isinstance(document, dict) and document.keys() == _TICK


def read_files(log: Mapping[str, bytes]) -> bytes | None:
    """Return the log entry 0 of a file source that has read the files of another log; None if it has read none.

    Args:
        log: the other log's entries by name, as ``compact_log.names_at`` chooses them.
    """
    numbers = {name: number for name in log if (number := entry_number(name)) is not None}
    last = max((number for name, number in numbers.items() if name.endswith(".compact")), default=-1)
    # What the latest compact file repeats is left out; so is a plain entry beside it.
    names = [name for name, number in numbers.items() if number > last or name == f"{last}.compact"]
    heads, lines = [], []
    for name in sorted(names, key=numbers.__getitem__):
        head, *rest = log[name].decode().splitlines()
        heads.append(head)
        lines += [json.dumps(json.loads(line) | {"batchId": READ_BATCH}) for line in rest if line]
    return "\n".join([heads[-1], *lines]).encode() if lines else None
