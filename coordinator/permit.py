"""What a user permits one start of a pipeline to give up, and the record of what was used of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from ..storage.logs import logger
from . import fields

log = logger(__name__)

_SPANS: Final = re.compile(r"\d+-\d+(,\d+-\d+)*")


def span(first: int, last: int) -> str:
    """Return the checkpoints from ``first`` to ``last`` as a permit names them: ``"4-7"``."""
    return f"{first}-{last}"


def after(checkpoint: int | None) -> int:
    """Return the first checkpoint after one; None: the first of all."""
    return (checkpoint or 0) + 1


def _mapping(values: str, check: Callable[[object], bool]) -> fields.Validator:
    """Return a validator that accepts dicts from names to values of a kind, described by ``values``."""

    def validate(owner: object, field: attrs.Attribute[object], given: object) -> None:
        is_one = isinstance(given, Mapping) and all(
            isinstance(name, str) and name and check(value) for name, value in given.items()
        )
        if not is_one:
            fields.refuse(
                owner, field.name, given, f"a dict from names to {values}, as the error has printed it"
            )

    return validate


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_spans(value: object) -> bool:
    return isinstance(value, str) and bool(_SPANS.fullmatch(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_by_span: Final = _mapping('checkpoints, such as "4-7"', _is_spans)
_by_id: Final = _mapping("the id of the restored checkpoint", _is_id)


@fields.known
@attrs.frozen(kw_only=True, repr=False)
class Permit:
    """What one start may give up: ``CheckpointCoordinator(..., permit=Permit(...))``.

    A start that would lose something, or repeat it, is refused, and its error prints the permit to pass. Each entry
    names what it is for: rows by their checkpoints, state by the checkpoint that has it, an output by its owner. None
    of them comes a second time, so a permit that stays in the program permits nothing more. Its use is logged, and
    recorded in the start record of the pipeline's generation.

    Raises:
        ConfigError: a value cannot be used.
    """

    lost_output: Mapping[str, str] = attrs.field(factory=dict, validator=_by_span)
    """Rows that a target has lost and does not get again, by ``query/sink``: those of checkpoints ``"4-7"``."""
    repeated_output: Mapping[str, str] = attrs.field(factory=dict, validator=_by_span)
    """Rows that a target has from after the restored checkpoint and gets again, by ``query/sink``, in the same way.

    A target that can take rows back does so without a permit.
    """
    new_output: Mapping[str, int] = attrs.field(factory=dict, validator=_by_id)
    """Queries that leave an output of the restored checkpoint behind, by the checkpoint's id.

    A file sink may then write into another directory, which begins empty. A transactional sink may be gone although
    its output is not all published.
    """
    taken_output: Mapping[str, str] = attrs.field(
        factory=dict, validator=_mapping('the owner of the output, such as "s3://old/p@3"', _is_text)
    )
    """Outputs of a pipeline of this name with another storage, by ``query/sink``: that storage and its generation.

    For a pipeline that was moved by a savepoint. The other one cannot publish from then on.
    """
    dropped_state: Mapping[str, int | str] = attrs.field(
        factory=dict,
        validator=_mapping(
            "the id of the restored checkpoint, or the path", lambda value: _is_id(value) or _is_text(value)
        ),
    )
    """Operators whose state is dropped because their query no longer has them, by the restored checkpoint's id.

    For a query that adopts one of plain Spark: the query, by the path that it adopts.
    """
    dropped_queries: Mapping[str, int] = attrs.field(factory=dict, validator=_by_id)
    """Queries that the pipeline no longer has, by the restored checkpoint's id.

    Their state is dropped, and so is output of them that is not published. There is no checkpoint before all other
    queries of the restored one have been started.
    """
    claim: str | None = attrs.field(default=None, validator=fields.optional(fields.filled))
    """URI of the restored savepoint, if it is to belong to this pipeline.

    It is deleted when it is no longer needed: after a newer checkpoint has completed and the coordinator that restored
    it has stopped. A savepoint that is not claimed is never changed or deleted.
    """

    def __repr__(self) -> str:
        given = {name: value for name, value in attrs.asdict(self, recurse=False).items() if value}
        return f"Permit({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def covers(self, wanted: Permit) -> bool:
        """Return whether this permits all that another one does."""
        return wanted.claim in (None, self.claim) and all(
            name in mine and _covers(mine[name], value)
            for mine, asked in zip(self._entries.values(), wanted._entries.values(), strict=True)
            for name, value in asked.items()
        )

    def joined(self, other: Permit) -> Permit:
        """Return what permits what this one and another one do."""
        entries: dict[str, Any] = {field: dict(mine) for field, mine in self._entries.items()}
        for field, theirs in other._entries.items():
            for name, value in theirs.items():
                known = entries[field].get(name)
                entries[field][name] = value if known is None else _joined(known, value)
        return Permit(**entries, claim=other.claim or self.claim)

    @property
    def lines(self) -> tuple[str, ...]:
        """Each entry as a line, for people."""
        entries = [
            f"{field} {name} {value}" for field, mine in self._entries.items() for name, value in mine.items()
        ]
        return (*entries, f"claim {self.claim}") if self.claim else tuple(entries)

    @property
    def _entries(self) -> dict[str, Mapping[str, int | str]]:
        return {one.name: getattr(self, one.name) for one in attrs.fields(Permit) if one.name != "claim"}


def _covers(given: int | str, wanted: int | str) -> bool:
    """Return whether an entry permits what another one does: the very same, or rows that it lists among others."""
    if _is_spans(given) and _is_spans(wanted):
        return set(str(wanted).split(",")) <= set(str(given).split(","))
    return given == wanted


def _joined(given: int | str, wanted: int | str) -> int | str:
    if _covers(given, wanted):
        return given
    return f"{given},{wanted}" if _is_spans(given) and _is_spans(wanted) else wanted


@attrs.frozen
class Permits:
    """What one life of a pipeline is permitted. Any thread may use it."""

    given: Permit = Permit()
    record: Callable[[tuple[str, ...]], None] = lambda lines: None
    """Adds what is used to the life's start record."""

    def use(self, wanted: Permit) -> bool:
        """Return whether something is permitted. If it is, its use is recorded and logged before."""
        if not self.given.covers(wanted):
            return False
        if wanted.lines:
            self.record(wanted.lines)
        for line in wanted.lines:
            log.warning("a permit is used, and can be taken out of the program now", permit=line)
        return True

    def advice(self, wanted: Permit) -> str:
        """Return what to pass to have something permitted, too, as Python's source."""
        return f"permit={self.given.joined(wanted)!r}"


NOTHING_PERMITTED: Final = Permits()
