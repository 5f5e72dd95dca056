"""Compares what a batch has written, by the digests of both sides."""

from __future__ import annotations

from collections.abc import Mapping

from ...storage.checkpoints.batch_record import Digest
from .ignoring import Ignored


def differing_outputs(
    leader: Mapping[str, Digest], shadow: Mapping[str, Digest], ignored: Ignored
) -> dict[str, str]:
    """Return how the output of a batch differs, by the uid of the sink, in words.

    If columns of a sink are ignored, or the programs write other columns, the number of rows and the other columns are
    compared, each column by itself.

    Args:
        leader: the digests that the leader has recorded.
        shadow: those of the shadow.
        ignored: the columns that may differ.
    """
    found = {}
    for uid in dict.fromkeys([*leader, *shadow]):
        if uid not in leader or uid not in shadow:
            who = "the leader" if uid in leader else "the shadow"
            found[uid] = f"only {who} writes to it"
        elif says := _differs(leader[uid], shadow[uid], ignored.columns(uid)):
            found[uid] = says
    return found


def _differs(leader: Digest, shadow: Digest, ignored: frozenset[str]) -> str:
    if leader == shadow:
        return ""
    theirs, ours = _columns(leader), _columns(shadow)
    says = []
    if leader.rows != shadow.rows:
        says.append(f"{leader.rows:,} rows of the leader, {shadow.rows:,} of the shadow")
    elif ignored and not (theirs and ours):
        # There is nothing to tell the ignored columns from the others by.
        return ""
    for who, one, other in (("leader", theirs, ours), ("shadow", ours, theirs)):
        if only := [name for name in one if name not in other and name not in ignored]:
            says.append(f"columns that only the {who} has: {', '.join(only)}")
    differing = [
        name for name, sum in theirs.items() if name in ours and name not in ignored and ours[name] != sum
    ]
    if differing and leader.rows == shadow.rows:
        says.append(f"columns with other values: {', '.join(differing)}")
    if not says and not ignored:
        says.append("the same values in other rows" if theirs else "other rows")
    return "; ".join(says)


def _columns(digest: Digest) -> dict[str, str]:
    return getattr(digest, "columns", {})
