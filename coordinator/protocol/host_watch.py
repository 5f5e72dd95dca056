"""Which state hosts have gone silent, and when a silent one is taken for lost. A pure decision over times.

A host that is frozen, by a signal, by a disk that does not answer or by a machine that has run out of memory, keeps its
connection. So it must say again and again that it lives.
"""

from __future__ import annotations

import attrs

LOOK_SECONDS = 1.0
"""How often the hosts are looked at."""
SUSPECT_SECONDS = 5.0
"""The silence after which a host is suspected."""


@attrs.frozen
class Suspected:
    """A host has gone silent."""

    host: str
    silent: float
    """Seconds; as in the others."""


@attrs.frozen
class Cleared:
    """A suspected host lives."""

    host: str


@attrs.frozen
class TakenForLost:
    """A host has been silent for so long that the pipeline is to go on without it."""

    host: str
    silent: float


Verdict = Suspected | Cleared | TakenForLost


@attrs.define
class HostWatch:
    """When each connected host was heard of last. Times are seconds on one clock."""

    timeout: float
    """The silence after which a host is taken for lost."""
    _heard: dict[str, float] = attrs.field(factory=dict, init=False)
    _suspected: set[str] = attrs.field(factory=set, init=False)
    _looked_at: float | None = attrs.field(default=None, init=False)

    def heard(self, host: str, now: float) -> None:
        """Record that a host has joined, or that it lives."""
        self._heard[host] = now

    def forget(self, host: str) -> None:
        """Stop watching a host."""
        self._heard.pop(host, None)
        self._suspected.discard(host)

    def look(self, now: float) -> tuple[Verdict, ...]:
        """Return what has changed since the last look. A host that is taken for lost is no longer watched."""
        self._forgive(now)
        verdicts: list[Verdict] = []
        for host, heard in list(self._heard.items()):
            silent = now - heard
            if silent >= self.timeout:
                verdicts.append(TakenForLost(host, silent))
                self.forget(host)
            elif silent < SUSPECT_SECONDS and host in self._suspected:
                verdicts.append(Cleared(host))
                self._suspected.remove(host)
            elif silent >= SUSPECT_SECONDS and host not in self._suspected:
                verdicts.append(Suspected(host, silent))
                self._suspected.add(host)
        return tuple(verdicts)

    def _forgive(self, now: float) -> None:
        """Count no silence in which nobody has listened: the driver itself was frozen, or its machine slept."""
        deaf = 0.0 if self._looked_at is None else now - self._looked_at - LOOK_SECONDS
        self._looked_at = now
        if deaf > LOOK_SECONDS:
            self._heard = {host: min(now, heard + deaf) for host, heard in self._heard.items()}
