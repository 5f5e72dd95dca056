"""What the sinks of one query promise together, and which do not go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ....storage.keys import validate_name
from ...errors import ConfigError, WriterError
from ..guarantee import Guarantee, Level
from .contract import Publish, TwoPhaseSink
from .staged import StagedSink

AT_ONCE: Final = (
    "each batch is upserted by key into {targets} before it commits, and again if it runs again; so the table comes to "
    "what exactly once would give. Readers may see rows before a checkpoint has them. After going back they see old "
    "values until the batches since have run again, and keys that these do not give out again stay"
)
"""What a sink with ``publish="batch"`` promises."""


def guarantee(sinks: Sequence[TwoPhaseSink]) -> Guarantee:
    """Return what sinks promise together: what the weakest does."""
    if len(sinks) == 1 and (own := sinks[0].guarantee) is not None:
        return own
    at_once = _targets(sink for sink in sinks if sink.publish == "batch")
    later = _targets(sink for sink in sinks if sink.publish != "batch")
    with_checkpoints = f"rows become visible in {later} with the checkpoint that has them, once"
    if not at_once:
        return Guarantee(Level.EXACTLY_ONCE, with_checkpoints)
    because = AT_ONCE.format(targets=at_once)
    return Guarantee(Level.AT_LEAST_ONCE, f"{because}; {with_checkpoints}" if later else because)


def _targets(sinks: Iterable[TwoPhaseSink]) -> str:
    return " and ".join(sorted({sink.target for sink in sinks}))


def check_publish(name: str, publish: Publish, mode: str) -> None:
    """Refuse to publish each batch at once unless its rows replace others by key.

    Args:
        name: the sink, for messages.
        publish: when it publishes.
        mode: how it writes; ``upsert``: by key.

    Raises:
        ConfigError: it cannot be.
    """
    if publish not in ("checkpoint", "batch"):
        raise ConfigError(f"{name} cannot be made", 'publish="checkpoint" or "batch"', repr(publish))
    if publish == "batch" and mode != "upsert":
        raise ConfigError(
            f"{name} cannot be made",
            'mode="upsert" and a key for publish="batch": a batch may run again, and its rows would be added again',
            f"mode={mode!r}",
            'upsert by a key; or leave publish="batch" out, and rows appear once, with the checkpoint that has them',
        )


def sinks_of(given: object) -> tuple[Any, ...]:
    """Return the sinks that a user has given as ``sink=``, one or several; ``check_together`` says what is none."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def check_together(sinks: Sequence[TwoPhaseSink]) -> None:
    """Refuse sinks that cannot share what is written of a batch.

    Raises:
        WriterError: there is none, two have one uid, or one of several does not stage its rows in the pipeline's
            store; or one that publishes batches does not.
        InvalidNameError: a uid cannot be a part of a path.
    """
    if not all(isinstance(sink, TwoPhaseSink) for sink in sinks) or not sinks:
        raise WriterError(
            "the query cannot be started",
            "sink= with a transactional sink such as FilesSink, or several",
            ", ".join(type(sink).__name__ for sink in sinks) or "none",
            "pass sinks of chandy, or leave sink= out and give the writer a format",
        )
    uids = [validate_name("sink uid", sink.uid) for sink in sinks]
    twice = [uid for uid in uids if uids.count(uid) > 1]
    if twice:
        raise WriterError(
            "the query cannot be started",
            "sinks with a uid each",
            f"two with uid {twice[0]!r}",
            "set their uid, by which their output is known again",
        )
    own = [sink for sink in sinks if not isinstance(sink, StagedSink)]
    if own and (len(sinks) > 1 or own[0].publish == "batch"):
        raise WriterError(
            "the query cannot be started",
            "sinks that publish what is staged once (StagedSink), where there are several or one publishes batches",
            f"{type(own[0]).__name__}, which writes for itself",
            'start a query of its own for it, without publish="batch"',
        )
