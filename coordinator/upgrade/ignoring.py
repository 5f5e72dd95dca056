"""Which fields a comparison ignores, because they differ whenever a batch runs: the time of a call, a random number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from ..errors import ConfigError

_FORM = '"operator.field", "operator.state.field" or "sink.field", such as "totals.updated"'


@attrs.frozen
class Ignored:
    """What ``Shadow(ignore=...)`` names, parsed.

    ``"totals.updated"`` is the field ``updated`` of every state of the operator with the uid ``totals``, and the column
    ``updated`` of the rows of the sink with the uid ``totals``. ``"totals.total.updated"`` is that field of the state
    ``total`` alone. A field within a struct cannot be named. What a name does not fit, it does not concern.
    """

    names: tuple[tuple[str, ...], ...] = ()
    """The parts of each name: the uid, perhaps a state, the field. A uid may have dots itself."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Ignored:
        """Parse names.

        Raises:
            ConfigError: one of them is no name of a field.
        """
        if isinstance(names, str):
            raise ConfigError("invalid Shadow.ignore", "a list of names of fields", repr(names))
        return cls(tuple(_parts(name) for name in names))

    def columns(self, sink: str) -> frozenset[str]:
        """Return the columns of a sink's rows that are ignored."""
        return self._fields((sink,))

    def fields(self, operator: str, state: str) -> frozenset[str]:
        """Return the fields of a state that are ignored."""
        return self._fields((operator,)) | self._fields((operator, state))

    def _fields(self, owner: tuple[str, ...]) -> frozenset[str]:
        text = ".".join(owner)
        return frozenset(parts[-1] for parts in self.names if ".".join(parts[:-1]) == text)

    def unknown(
        self, sinks: Mapping[str, Collection[str]], states: Mapping[str, Collection[str]]
    ) -> list[str]:
        """Return the names that fit nothing.

        Args:
            sinks: the columns of the rows of each sink, by its uid.
            states: the fields of each state, by ``operator.state``, and of all states of an operator, by its uid.
        """
        there = {
            f"{owner}.{field}" for owners in (sinks, states) for owner in owners for field in owners[owner]
        }
        return [name for parts in self.names if (name := ".".join(parts)) not in there]


def _parts(name: object) -> tuple[str, ...]:
    parts = tuple(name.split(".")) if isinstance(name, str) else ()
    if len(parts) < 2 or not all(parts):
        raise ConfigError("invalid Shadow.ignore", _FORM, repr(name))
    return parts
