"""Making the state data source known to sessions, with a stand-in for one."""

from __future__ import annotations

from typing import Any

from chandy.state.reader.reading import register
from chandy.state.reader.source import StateSource

from ...coordinator.stand_ins import Spark


def test_the_state_source_is_made_known_to_each_session_once() -> None:
    # Spark warns of a source that takes another's place.
    one: Any = Spark("local[2]")
    other: Any = Spark("local[2]")
    for session in (one, other, one):
        register(session)
    assert one.registered == other.registered == [StateSource]
    # It is run by the Python of the time at which it was registered.
    one.pythonExec = "/other/python"
    register(one)
    assert one.registered == [StateSource, StateSource]
