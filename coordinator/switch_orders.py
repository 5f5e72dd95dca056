"""The order that a shadow takes its pipeline over, and what becomes of it: two records in the pipeline's storage.

Anyone who may write there may claim the pipeline as well, so the order needs no other permission. The newest order
counts: who has given one before learns what becomes of that.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import attrs

from ..storage import runtime
from ..storage.checkpoints.layout import switch_answer_key, switch_key
from ..storage.codec import to_json
from ..storage.errors import DamagedError, ObjectMissingError
from ..storage.store import Store
from ..storage.verified import read_record
from .durations import Duration, seconds
from .errors import NotSwitchedError
from .verdict import Phase
from .verdicts import read_verdict, read_verdicts

_LOOK_SECONDS: Final = 0.2
_OVER: Final = (Phase.ENDED, Phase.FAILED)
KEEP_OLD: Final = "1 h"
"""How long the driver before follows as a shadow, by default."""


@attrs.frozen
class SwitchOrder:
    """Somebody wants a shadow to lead."""

    nonce: str
    although_different: bool = False
    """Whether it is to lead although something differs."""
    keep_old: float = seconds(KEEP_OLD)
    """For how many seconds the driver before follows it as a shadow."""


class SwitchOutcome(enum.StrEnum):
    """What has become of an order."""

    LEADS = "leads"
    """The shadow has claimed the pipeline."""
    REFUSED = "refused"
    """The pipeline is as it was."""


@attrs.frozen
class SwitchAnswer:
    """What has become of an order."""

    nonce: str
    """That of the order."""
    outcome: SwitchOutcome
    because: str = ""


def order_switch(
    store: Store, shadow: str | None, *, although_different: bool = False, keep_old: Duration = KEEP_OLD
) -> tuple[str, str]:
    """Order that a shadow takes its pipeline over; return its name and the number of the order.

    Args:
        store: the pipeline's.
        shadow: its name; None: the only one.
        although_different: whether it is to lead although something differs.
        keep_old: how long the driver before follows it.

    Raises:
        ConfigError: this is no duration.
        NotSwitchedError: no such shadow runs.
    """
    kept = seconds(keep_old)
    verdicts = read_verdicts(store)
    there = [one.shadow if one.phase not in _OVER else f"{one.shadow}, which has ended" for one in verdicts]
    found = [one.shadow for one in verdicts if shadow in (None, one.shadow) and one.phase not in _OVER]
    if len(found) != 1:
        raise NotSwitchedError(
            f"no shadow of {store.uri} can take the pipeline over",
            f"a shadow {shadow!r} that runs" if shadow else "one shadow that runs",
            "; ".join(there) or "none",
            "name one that runs; `chandy shadow` lists them",
        )
    order = SwitchOrder(runtime.token(), although_different, kept)
    store.write(switch_key(found[0]), to_json(order))
    return found[0], order.nonce


def read_order(store: Store, shadow: str) -> SwitchOrder | None:
    """Return the newest order to a shadow; None: there is none."""
    try:
        return read_record(store, switch_key(shadow), SwitchOrder, "the order to a shadow")
    except (ObjectMissingError, DamagedError):
        return None


def answer_order(store: Store, shadow: str, answer: SwitchAnswer) -> None:
    """Say what has become of an order."""
    store.write(switch_answer_key(shadow), to_json(answer))


def read_answer(store: Store, shadow: str) -> SwitchAnswer | None:
    """Return what has become of the newest order that was answered; None: there is none."""
    try:
        return read_record(store, switch_answer_key(shadow), SwitchAnswer, "the answer of a shadow")
    except (ObjectMissingError, DamagedError):
        return None


def await_switch(
    store: Store, shadow: str, nonce: str, seconds: float, check_wanted: Callable[[], None] = lambda: None
) -> None:
    """Wait until a shadow leads.

    Args:
        store: the pipeline's.
        shadow: its name.
        nonce: the number of the order.
        seconds: how long to wait. Afterwards the shadow does not know of the order any more.
        check_wanted: raises once nobody waits any more; then it does not, either.

    Raises:
        NotSwitchedError: it does not lead. The pipeline goes on as it was.
    """
    until, nonces = runtime.monotonic() + seconds, {nonce}
    try:
        while True:
            # Before the answer: its last words come after that.
            verdict = read_verdict(store, shadow)
            if (order := read_order(store, shadow)) is not None:
                nonces.add(order.nonce)
            if (found := read_answer(store, shadow)) is not None and found.nonce in nonces:
                break
            if verdict is not None and verdict.phase in _OVER:
                raise NotSwitchedError(
                    f"shadow {shadow!r} does not lead",
                    "it to take over",
                    f"that it has {verdict.phase.value} {verdict.because}".strip(),
                    "look at `chandy shadow`",
                )
            if runtime.monotonic() >= until:
                raise NotSwitchedError(
                    f"shadow {shadow!r} does not lead",
                    f"it to take over within {seconds:g} s",
                    "that it has not, and may still be about to",
                    "look at `chandy shadow`: one that is far behind, or does not run, cannot take over",
                )
            check_wanted()
            runtime.sleep(_LOOK_SECONDS)
    except BaseException:
        # Nobody waits for it any more: it is given up, or Ctrl-C was pressed.
        _withdraw(store, shadow, nonce)
        raise
    if found.outcome is not SwitchOutcome.LEADS:
        raise NotSwitchedError(f"shadow {shadow!r} does not lead", "it to take over", found.because)


def switch_to(
    store: Store,
    shadow: str | None,
    seconds: float,
    check_wanted: Callable[[], None],
    *,
    although_different: bool = False,
    keep_old: Duration = KEEP_OLD,
) -> None:
    """Have a shadow lead; arguments and errors are as for ``order_switch`` and ``await_switch``."""
    name, nonce = order_switch(store, shadow, although_different=although_different, keep_old=keep_old)
    await_switch(store, name, nonce, seconds, check_wanted)


def _withdraw(store: Store, shadow: str, nonce: str) -> None:
    order = read_order(store, shadow)
    if order is not None and order.nonce == nonce:
        store.delete(switch_key(shadow))
