"""What users say about a shadow: what it compares, how far it may fall behind, and when it takes over."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from ...storage.errors import InvalidNameError
from ...storage.keys import validate_name
from .. import fields
from ..durations import Duration, seconds
from .ignoring import Ignored

_BATCHES: Final = re.compile(r"([1-9][0-9]{0,8}) equal batch(?:es)?")


def _name(owner: object, field: attrs.Attribute[Any], value: str) -> None:
    try:
        validate_name("shadow", value)
    except InvalidNameError as error:
        fields.refuse(owner, field.name, value, error.expected)


def _names(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    Ignored.of(value)  # type: ignore[arg-type]


def _equal_batches(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not _BATCHES.fullmatch(value):
        fields.refuse(owner, field.name, value, 'a number of batches in a row, such as "500 equal batches"')


def _tuple(names: Any) -> Any:
    return tuple(names) if isinstance(names, list) else names


@attrs.frozen(kw_only=True)
class Shadow:
    """Runs the program beside the driver that leads the pipeline, batch by batch, and compares the two.

    Raises:
        ConfigError: a value cannot be used.
    """

    name: str = attrs.field(default="shadow", validator=_name)
    """Name of the shadow, unique in the pipeline. What it has found is kept by it, also across restarts: give each
    version that you try a name of its own."""
    ignore: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_names)
    """Fields that may differ. ``"totals.updated"`` names the field ``updated`` of all states of the operator
    ``totals``, and the column ``updated`` of the rows of the sink ``totals``; ``"totals.total.updated"`` that of the
    state ``total`` alone."""
    switch_after: str | None = attrs.field(default=None, validator=fields.optional(_equal_batches))
    """When the shadow takes over by itself, such as ``"500 equal batches"``: after so many in a row, if the state was
    equal at the latest checkpoint, too. None: when it is told to."""
    most_behind: int = attrs.field(default=1000, validator=fields.whole(at_least=1))
    """Number of batches that the shadow may be behind. One that is further behind begins again from the leader's newest
    checkpoint: what it passes over is not compared, and is counted."""
    compare_state_every: Duration = attrs.field(default="0 s", validator=fields.duration)
    """Shortest time from one comparison of state to the next. A comparison reads the whole state of both sides. By
    default there is one at each of the leader's checkpoints, as long as the shadow keeps up."""
    keep: int = attrs.field(default=20, validator=fields.whole(at_least=1))
    """Number of differing rows, and of differing items of each state, that are kept of a comparison."""
    may_write: bool = attrs.field(default=False, validator=fields.instance(bool))
    """Whether the program may run although it writes by itself, in ``foreachBatch`` or by a sink of Spark's. What it
    writes is written by the leader, too: allow it only where that does no harm."""

    @property
    def reader(self) -> str:
        """The name by which it keeps checkpoints of its leader."""
        return f"shadow-{self.name}"

    @property
    def ignored(self) -> Ignored:
        """What ``ignore`` names."""
        return Ignored.of(self.ignore)

    @property
    def equal_batches(self) -> int | None:
        """The number of equal batches in a row after which it takes over; None: it waits to be told."""
        found = None if self.switch_after is None else _BATCHES.fullmatch(self.switch_after)
        return int(found[1]) if found else None

    @property
    def compare_state_seconds(self) -> float:
        """``compare_state_every`` in seconds."""
        return seconds(self.compare_state_every)
