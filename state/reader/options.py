"""The options of the data source "chandy", and what they choose.

| option | value |
|---|---|
| ``path`` | the argument of ``load``: a pipeline's folder, a storage with one pipeline, or a savepoint's folder |
| ``operator``, ``state`` | their names; may be omitted if there is only one |
| ``checkpoint`` | "latest", the id of a checkpoint or the URI of a savepoint |
| ``shards`` | numbers with commas in between: the only shards to read |
| ``key`` | its canonical bytes in hex: the only key to read |
| ``changes_from``, ``changes_to`` | as ``checkpoint``: read what has changed between the two, see ``changes`` |
| ``before`` | "true": rows of changes have the value before |
| ``reader`` | the name of the reader of a stream of changes, see ``feed`` |
| ``release`` | "batch" or "checkpoint": what releases the checkpoints that the stream has read |
| ``declared`` | the operator as the running program has it, in JSON: a stream may begin before a checkpoint has it |
| ``cache_dir`` | where machines keep the files that a stream has read; empty: where state hosts do by default |
| ``shards_per_batch`` | how many shards of the first checkpoint a batch of the stream reads at most |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import attrs

from ...storage.checkpoints.locate import LATEST, locate
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.codec import from_json_of_any_version
from ...storage.keys import validate_name
from ..errors import invalid_argument
from .changes import ChangePart, StateChanges
from .feed import Feed
from .names import BATCH, CHECKPOINT
from .selection import Selection, selected
from .stored import StoredState

T = TypeVar("T")

_COMMON: Final = {"path", "operator", "state"}
_OF_STATE: Final = {"checkpoint", "shards", "key"}
_OF_CHANGES: Final = {"changes_from", "changes_to", "before"}
_OF_FEED: Final = {"reader", "release", "shards_per_batch", "before", "declared", "cache_dir"}


@attrs.frozen
class ChangesBetween:
    """The changes between two checkpoints, to read."""

    changes: StateChanges
    parts: tuple[ChangePart, ...]


def chosen(options: Mapping[str, str]) -> Selection | ChangesBetween | Feed:
    """Return what options choose.

    Args:
        options: by name, in any case.

    Raises:
        DefinitionError: an option is missing, unknown, has no meaning beside another one, or has no such value.
        NothingHereError: there is no such checkpoint.
        NoSuchStateError: it has no such operator or state, or several and none is named.
        DamagedError, SchemaTooNewError: a manifest cannot be read.
        InvalidPlaceError, InvalidNameError: the path names no store, or the reader's name cannot be used.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "reader" in given:
        _check(given, _OF_FEED)
        return _feed(given)
    if "changes_from" in given or "changes_to" in given:
        _check(given, _OF_CHANGES)
        return _changes_between(given)
    _check(given, _OF_STATE)
    found = selected(
        locate(given["path"], given.get("checkpoint", LATEST)), given.get("operator"), given.get("state")
    )
    return found.within(
        _read("shards", "numbers with commas in between", _numbers, given),
        _read("key", "the bytes of a key in hex", bytes.fromhex, given),
    )


def _feed(given: Mapping[str, str]) -> Feed:
    root, state = _followed(given)
    releases = _read(
        "release", f"{BATCH!r} or {CHECKPOINT!r}", {BATCH: True, CHECKPOINT: False}.__getitem__, given
    )
    return Feed(
        root,
        StateChanges(state, _before(given), given.get("cache_dir")),
        validate_name("reader", given["reader"]),
        releases is not False,
        _read("shards_per_batch", "a number above 0", _positive, given),
    )


def _followed(given: Mapping[str, str]) -> tuple[str, StoredState]:
    """Return the URI of the pipeline's store, and the state to follow."""
    if "declared" in given:
        operator = from_json_of_any_version(OperatorRecord, given["declared"].encode())
        return given["path"], StoredState.of(operator, given["state"])
    found = selected(locate(given["path"]), given.get("operator"), given.get("state"))
    if found.is_savepoint:
        raise invalid_argument("path", "a pipeline's folder, which gets new checkpoints", "a savepoint's")
    return found.root, found.state


def _changes_between(given: Mapping[str, str]) -> ChangesBetween:
    if "changes_from" not in given:
        raise invalid_argument("changes_from", "the checkpoint with which the changes begin", "none")
    old = locate(given["path"], given["changes_from"])
    new = locate(given["path"], given.get("changes_to", LATEST))
    changes = StateChanges(selected(new, given.get("operator"), given.get("state")).state, _before(given))
    return ChangesBetween(changes, tuple(changes.parts(old, new)))


def _before(given: Mapping[str, str]) -> bool:
    return _read("before", "'true' or 'false'", {"true": True, "false": False}.__getitem__, given) or False


def _check(given: Mapping[str, str], own: set[str]) -> None:
    allowed = _COMMON | own
    if "path" not in given or not given.keys() <= allowed:
        found = ", ".join(sorted(given.keys() - allowed)) or "no path"
        expected = f"path, and optionally {', '.join(sorted(allowed - {'path'}))}"
        raise invalid_argument("options", expected, found)


def _read(name: str, expected: str, parse: Callable[[str], T], given: Mapping[str, str]) -> T | None:
    """Return what an option says; None if it is not there."""
    if name not in given:
        return None
    try:
        return parse(given[name])
    except (ValueError, KeyError):
        raise invalid_argument(name, expected, repr(given[name])) from None


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number
