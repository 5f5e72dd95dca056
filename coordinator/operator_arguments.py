"""The arguments of operators, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ..state.errors import invalid_argument
from ..state.operators import shard_ranges
from ..state.operators.arrow_expiry import Since, TimeToLive
from ..state.operators.partitioning import default_tasks
from .durations import Duration, seconds
from .errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@attrs.frozen(kw_only=True)
class KeyedStream:
    """The input of an operator, with the arguments that all kinds of operators have."""

    df: DataFrame
    key: Sequence[str]
    """Names of the key columns."""
    uid: str
    shards: int
    parallelism: int | None
    """Number of tasks that run the operator; None: Spark's default parallelism, at most ``shards``."""

    @property
    def tasks(self) -> int:
        """Number of tasks that run the operator.

        Raises:
            DefinitionError: ``parallelism`` is None and ``shards`` is not a valid number of shards.
        """
        return self.default_tasks if self.parallelism is None else self.parallelism

    @property
    def default_tasks(self) -> int:
        """Spark's default parallelism, at most ``shards``."""
        shard_ranges.check(self.shards, parallelism=1)
        return default_tasks(self.df.sparkSession, self.shards)


@attrs.frozen
class Lifetime:
    """How long the keys of aggregates live, as users say it."""

    ttl: Duration | None = None
    """None: for ever."""
    since: Since = "last"

    def checked(self) -> TimeToLive | None:
        """Return it as an operator takes it.

        Raises:
            DefinitionError: it is no time to live.
        """
        if self.since not in ("last", "first"):
            raise invalid_argument("ttl_since", "'last' or 'first'", repr(self.since))
        if self.ttl is None:
            return None
        try:
            length = seconds(self.ttl)
        except ConfigError as error:
            raise invalid_argument("ttl", error.expected, error.found) from None
        if length < 0.001:
            raise invalid_argument("ttl", "a millisecond or more", repr(self.ttl))
        return TimeToLive(round(length * 1000), self.since)


@attrs.frozen
class Windows:
    """The windows of event time that aggregates are of, as users say it."""

    window: Column | None = None
    """What ``pyspark.sql.functions.window`` or ``session_window`` returns; None if aggregates are of all rows."""
    output_mode: str = "update"


def check_no_column(
    stream: KeyedStream, combine: object, lifetime: Lifetime, windows: Windows | None = None
) -> None:
    """Refuse an output column with the name of an argument: Python passes it as that argument."""
    arguments = {
        "uid": stream.uid,
        "shards": stream.shards,
        "parallelism": stream.parallelism,
        "combine": combine,
        "ttl": lifetime.ttl,
        "ttl_since": lifetime.since,
    }
    if windows is not None:
        arguments |= {"window": windows.window, "output_mode": windows.output_mode}
    for name, given in arguments.items():
        if isinstance(given, tuple):
            expected = (
                "names other than the arguments of aggregate; "
                f"write other=(...) and .withColumnRenamed('other', {name!r}) on what it returns"
            )
            raise invalid_argument("columns", expected, f"{name}={given!r}")
