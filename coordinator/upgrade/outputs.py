"""Compares what a batch has written, by the digests of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import attrs

from ...storage.checkpoints.batch_record import Digest
from .ignoring import Ignored


@attrs.frozen
class Sides:
    """What the two versions that are compared are called."""

    old: str
    new: str


@attrs.frozen
class Watermarks:
    """The watermark of a batch: rows that are older are late."""

    old: int
    """What it was planned with, in milliseconds since 1970; 0: there was none."""
    new: int
    """What the version that runs it again has found at the end of the batch before."""
    is_only: bool = True
    """Whether the plan has no other one. Otherwise Spark, which is started for each batch, knows those that have had
    rows in it alone, so ``new`` may be too low."""

    def differing(self, sides: Sides) -> str:
        """Return how they differ, in words; empty if they do not."""
        if self.new == self.old or (self.new < self.old and not self.is_only):
            return ""
        return f"{_moment(self.old)} of the {sides.old}, {_moment(self.new)} of the {sides.new}"


def _moment(milliseconds: int) -> str:
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return when.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") if milliseconds else "none"


LEADER_AND_SHADOW = Sides("leader", "shadow")


def counted(count: int, what: str) -> str:
    """Return a number of things in words: ``1 row``, ``2,000 rows``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def differing_outputs(
    old: Mapping[str, Digest],
    new: Mapping[str, Digest],
    ignored: Ignored,
    sides: Sides = LEADER_AND_SHADOW,
) -> dict[str, str]:
    """Return how the output of a batch differs, by the uid of the sink, in words.

    If columns of a sink are ignored, or the programs write other columns, the number of rows and the other columns are
    compared, each column by itself.

    Args:
        old, new: the digests of both sides.
        ignored: the columns that may differ.
        sides: what they are called.
    """
    found = {}
    for uid in dict.fromkeys([*old, *new]):
        if uid not in old or uid not in new:
            found[uid] = f"only the {sides.old if uid in old else sides.new} writes to it"
        elif says := _differs(old[uid], new[uid], ignored.columns(uid), sides):
            found[uid] = says
    return found


def _differs(old: Digest, new: Digest, ignored: frozenset[str], sides: Sides) -> str:
    if old == new:
        return ""
    was, now = old.columns, new.columns
    says = []
    if old.rows != new.rows:
        says.append(f"{counted(old.rows, 'row')} of the {sides.old}, {new.rows:,} of the {sides.new}")
    elif ignored and not (was and now):
        # There is nothing to tell the ignored columns from the others by.
        return ""
    for who, one, other in ((sides.old, was, now), (sides.new, now, was)):
        if only := [name for name in one if name not in other and name not in ignored]:
            says.append(f"columns that only the {who} has: {', '.join(only)}")
    differing = [
        name for name, sum in was.items() if name in now and name not in ignored and now[name] != sum
    ]
    if differing and old.rows == new.rows:
        says.append(f"columns with other values: {', '.join(differing)}")
    if not says and not ignored:
        says.append("the same values in other rows" if was else "other rows")
    return "; ".join(says)
