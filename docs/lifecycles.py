"""Writes the lifecycles in ``docs/design.md`` from the code: ``python -m docs.lifecycles``, or ``make docs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from chandy.coordinator.protocol import life, user_requests
from chandy.coordinator.protocol.acts import ENDS, ActKind, Ending
from chandy.coordinator.protocol.copies import NEXT, CopyPhase
from chandy.coordinator.protocol.life import QUERY_NEXT, LifePhase, QueryPhase
from chandy.coordinator.protocol.pending import PHASES, CheckpointPhase
from chandy.coordinator.protocol.user_requests import RequestPhase

from .docstrings import attribute_docstrings, markdown

P = TypeVar("P", bound=Enum)

PAGE: Final = Path(__file__).with_name("design.md")
BEGIN: Final = "<!-- Written by `make docs` from the code, up to the end mark. Do not edit. -->"
END: Final = "<!-- end -->"
_ALONE: Final = "one for the same replica is refused until it is over"
_OTHERS: Final[Mapping[ActKind, str]] = {
    ActKind.REPLICATE: _ALONE,
    ActKind.DROP: _ALONE,
    ActKind.SWITCH: "another switch is refused until it is over",
    ActKind.STOP: "it waits until all others are carried out or have been interrupted; another stop waits for it",
}


def page() -> str:
    """Return the page with the tables as they have to be."""
    text = PAGE.read_text()
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    pipelines = _table("pipeline", LifePhase, life.NEXT)
    queries = _table("query", QueryPhase, QUERY_NEXT)
    checkpoints = _table("checkpoint", CheckpointPhase, {phase: PHASES[phase].next for phase in PHASES})
    copies = _table("copy", CopyPhase, NEXT)
    requests = _table("user's request", RequestPhase, user_requests.NEXT)
    tables = ("\n".join(table) for table in (pipelines, queries, checkpoints, copies, requests, _endings()))
    return before + "\n\n".join([BEGIN, *tables, after])


def _table(of: str, phases: type[P], after: Mapping[P, Set[P]]) -> Iterator[str]:
    said = attribute_docstrings(phases)
    yield f"| phase of a {of} | | next |"
    yield "|---|---|---|"
    for phase in phases:
        following = ", ".join(f"`{one.name}`" for one in phases if one in after[phase])
        yield f"| `{phase.name}` | {markdown(' '.join(said[phase.name].split()))} | {following} |"


def _endings() -> Iterator[str]:
    yield f"| request | {' | '.join(ending.value for ending in Ending)} | another request |"
    yield "|---" * (len(Ending) + 2) + "|"
    for kind in ActKind:
        ends = (ENDS[kind].get(ending) for ending in Ending)
        found = " | ".join(f"`{phase.name}`" if phase else "goes on" for phase in ends)
        yield f"| {kind.value} | {found} | {_OTHERS[kind]} |"


if __name__ == "__main__":
    PAGE.write_text(page())
