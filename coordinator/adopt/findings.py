"""What a query takes over from a checkpoint of plain Spark, and what keeps it from doing so: decisions over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import attrs
from pyspark.sql.types import StructType

from ...state.format.evolution import shown
from ...state.format.schema import bare, from_json
from ...storage.checkpoints.manifest import OperatorRecord, StateRecord
from ...storage.ids import NO_BATCH, BatchId
from ..spark.plain_checkpoint import PlainCheckpoint, StateOperator

_FILES = frozenset({"csv", "json", "orc", "parquet", "text", "xml", "avro", "binaryfile"})
"""Sources that keep a log of files, by their format."""
_NOT_FILES = frozenset({"kafka", "rate", "rate-micro-batch"})


@attrs.frozen
class AdoptableState:
    """What a ``transformWithState`` of plain Spark has stored: its key and its variables, with their schemas."""

    key: StructType
    variables: Mapping[str, StateRecord]
    """By name; ``ttl_ms`` is 0 for one with a time to live, which the checkpoint does not tell."""
    timers: int | None = None
    """How many timers are set; None if nobody has counted."""


@attrs.frozen
class Target:
    """The query that is to go on from the checkpoint."""

    query: str
    sources: tuple[str, ...]
    """Names of its sources in the order of the plan, without those that Chandy has added."""
    native_state: bool
    """Whether Spark keeps state of its own for it."""
    operators: tuple[OperatorRecord, ...]
    modes: Mapping[str, str]
    """The time modes of the operators, by uid."""
    output: str | None = None
    """The directory of Spark's own file sink; None if the query has another sink."""
    output_batch: BatchId = NO_BATCH
    """The newest batch in the log of that directory; -1 if the log is empty."""
    drops_state: bool = False
    """Whether state that the query does not declare may be left behind."""
    to_drop: str = ""
    """What to pass to ``CheckpointCoordinator`` so that it may."""


@attrs.frozen
class Adoption:
    """What a query would take over from a checkpoint of plain Spark. ``str`` says it in plain sentences."""

    path: str
    batch: int
    """The newest committed batch, after which the query goes on; -1 if none has committed."""
    takes: tuple[str, ...]
    """What is taken over."""
    obstacles: tuple[str, ...]
    """What keeps it from being adopted."""
    notes: tuple[str, ...] = ()
    """What to know about it, and what nobody can see from here."""

    @property
    def is_possible(self) -> bool:
        """Whether nothing is in the way."""
        return not self.obstacles

    def __str__(self) -> str:
        verdict = "can be adopted" if self.is_possible else "cannot be adopted"
        parts = [
            (f"The checkpoint in {self.path} {verdict}.", ()),
            ("What is taken over:", self.takes),
            ("What is in the way:", self.obstacles),
            ("To know:", self.notes),
        ]
        return "\n".join(
            "\n".join([head, *(f"* {line}" for line in lines)])
            for head, lines in parts
            if lines or not head.endswith(":")
        )


def matched(
    found: PlainCheckpoint, stored: Mapping[int, AdoptableState], operators: Sequence[OperatorRecord]
) -> dict[str, StateOperator]:
    """Return for each operator the ``transformWithState`` whose state it takes over, by uid.

    If there is one of each, they belong together. Otherwise the names of their variables tell.
    """
    if len(found.keyed) == len(operators) == 1:
        return {operators[0].uid: found.keyed[0]}
    pairs: dict[str, StateOperator] = {}
    for operator in operators:
        same = [one for one in found.keyed if _names(one, stored) == set(operator.states)]
        rivals = [other for other in operators if set(other.states) == set(operator.states)]
        if len(same) == len(rivals) == 1:
            pairs[operator.uid] = same[0]
    return pairs


def _names(operator: StateOperator, stored: Mapping[int, AdoptableState]) -> set[str]:
    if operator.id in stored:
        return set(stored[operator.id].variables)
    return {variable.name for variable in operator.variables}


def examine(
    found: PlainCheckpoint,
    target: Target | None = None,
    stored: Mapping[int, AdoptableState] | None = None,
    *,
    runs_here: bool = False,
    rival: str = "",
) -> Adoption:
    """Say what is taken over, and what is in the way.

    Args:
        found: the checkpoint.
        target: the query that is to go on from it; None if it is not known yet.
        stored: what its ``transformWithState`` operators have stored, by their number.
        runs_here: whether a query of this Spark application runs in the checkpoint.
        rival: says which other query has adopted the checkpoint, and what to do; "": none has.
    """
    stored = stored or {}
    obstacles = [] if not runs_here else ["A query of this application is running in it: stop it first."]
    if rival:
        obstacles.append(f"{rival[0].upper()}{rival[1:]}")
    takes, notes = _progress(found), []
    if found.operators and found.committed >= 0:
        takes += _state_sentences(found, target, stored)
    if target is not None:
        obstacles += _source_obstacles(found, target)
        obstacles += _state_obstacles(found, target, stored)
        obstacles += _output_obstacles(found, target)
        if target.output is not None and found.committed >= 0:
            takes.append(f"The log of the files in {target.output}, as of batch {found.committed}.")
        pairs = matched(found, stored, target.operators)
        notes += [
            f"Operator {operator.uid!r} begins empty."
            for operator in target.operators
            if operator.uid not in pairs and not found.keyed
        ]
    if not runs_here:
        notes.append(
            "Nobody can see from here whether another application runs the query. Stop it first, for good."
        )
    return Adoption(str(found.directory), found.committed, tuple(takes), tuple(obstacles), tuple(notes))


def _progress(found: PlainCheckpoint) -> list[str]:
    said = []
    if found.planned < 0:
        said.append("The query has not planned a batch yet: it begins with batch 0.")
    elif found.committed < 0:
        said.append("No batch has committed yet: batch 0 runs again with the same offsets.")
    else:
        said.append(
            f"Progress: batches up to {found.committed} have committed, the next one is {found.committed + 1}."
        )
        if found.is_interrupted:
            said.append(
                f"Batch {found.planned} was planned and has not committed: it runs again with the same offsets."
            )
    if found.offsets:
        said.append(f"Where {_count(len(found.offsets), 'source')} stood.")
    if found.watermark_ms > 0:
        when = datetime.fromtimestamp(found.watermark_ms / 1000, UTC).isoformat(timespec="milliseconds")
        said.append(f"The watermark: {when}.")
    return said


def _state_sentences(
    found: PlainCheckpoint, target: Target | None, stored: Mapping[int, AdoptableState]
) -> list[str]:
    converted = target is not None and bool(target.operators) and not target.native_state
    pairs = {one.id: uid for uid, one in matched(found, stored, target.operators).items()} if target else {}
    said = []
    for operator in found.operators:
        if not operator.is_keyed or not converted:
            what = operator.name or "an operator of an unknown kind"
            said.append(f"Spark's own state of operator {operator.id} ({what}), as it is.")
            if operator.is_keyed and target is None:
                said.append(
                    f"Or, for an operator of Chandy, the values of operator {operator.id}: {_variables(operator)}."
                )
        elif operator.id in pairs:
            timers = stored[operator.id].timers if operator.id in stored else None
            counted = f", and {_count(timers, 'timer')}" if timers else ""
            said.append(f"For operator {pairs[operator.id]!r}: {_variables(operator)}{counted}.")
    return said


def _variables(operator: StateOperator) -> str:
    named = [
        f"{variable.kind} state {variable.name!r}" + (" with its expiry" if variable.expires else "")
        for variable in operator.variables
    ]
    return ", ".join(named) or "no state"


# --- what is in the way -------------------------------------------------------------------------------------


def _source_obstacles(found: PlainCheckpoint, target: Target) -> list[str]:
    if found.planned < 0:
        return []
    if len(found.offsets) != len(target.sources):
        return [
            f"The checkpoint has offsets of {_count(len(found.offsets), 'source')}, and the query reads "
            f"{len(target.sources)} ({', '.join(target.sources)}): read the same sources in the same order."
        ]
    said = []
    for number, (offset, source) in enumerate(zip(found.offsets, target.sources, strict=True)):
        kind, is_log = source.lower(), '{"logOffset":' in offset
        if (is_log and kind in _NOT_FILES) or (not is_log and offset != "-" and kind in _FILES):
            was = "a source of files" if is_log else "a source of another kind"
            said.append(
                f"Source {number} is {source!r}, and the checkpoint has the offset of {was}: {offset[:80]}."
            )
    return said


def _state_obstacles(
    found: PlainCheckpoint, target: Target, stored: Mapping[int, AdoptableState]
) -> list[str]:
    if found.committed < 0:
        return []
    kinds = ", ".join(operator.name or "unknown" for operator in found.operators)
    if target.native_state:
        if not found.operators:
            return ["The query needs state of Spark's own, and the checkpoint has none."]
        if found.keyed and target.operators:
            return [
                f"The checkpoint has state of {kinds}. A transformWithState cannot become an operator of Chandy while "
                "Spark keeps state of its own for the same query: its operators would get other numbers."
            ]
        return []
    if not found.operators or target.drops_state:
        return _keyed_obstacles(found, target, stored) if found.operators else []
    native = [operator for operator in found.operators if not operator.is_keyed]
    if native:
        return [
            f"The checkpoint has state of {kinds}, which the query does not have: keep that part of it in Spark, or "
            f"leave the state behind by {target.to_drop}."
        ]
    return _keyed_obstacles(found, target, stored)


def _keyed_obstacles(
    found: PlainCheckpoint, target: Target, stored: Mapping[int, AdoptableState]
) -> list[str]:
    pairs = matched(found, stored, target.operators)
    said = []
    for operator in found.keyed:
        uid = next((uid for uid, one in pairs.items() if one.id == operator.id), None)
        if uid is None:
            if not target.drops_state:
                said.append(
                    f"No operator of the query declares the state of operator {operator.id} ({operator.name}): "
                    f"{_variables(operator)}."
                )
            continue
        if not operator.is_of_python:
            said.append(
                f"Operator {operator.id} ({operator.name}) has a processor of Scala or Java, not of Python."
            )
            continue
        record = next(one for one in target.operators if one.uid == uid)
        mode = target.modes.get(uid, "None")
        if operator.time_mode and operator.time_mode.lower() != mode.lower():
            said.append(f"Operator {uid!r} has time_mode={mode!r}, and ran with {operator.time_mode!r}.")
        if operator.id in stored:
            said += _schema_obstacles(record, stored[operator.id], target)
    return said


def _schema_obstacles(operator: OperatorRecord, stored: AdoptableState, target: Target) -> list[str]:
    key = from_json(operator.key_schema)
    was, now = _types(stored.key), _types(key)
    said = []
    # A processor without state has stored no key.
    if was and was != now:
        said.append(
            f"Operator {operator.uid!r} has the key ({shown(key)}), and the state has ({shown(stored.key)})."
        )
    for name, old in stored.variables.items():
        new = operator.states.get(name)
        what = f"State {name!r} of operator {operator.uid!r}"
        if new is None:
            if not target.drops_state:
                said.append(f"{what} is not declared: declare it, or leave it behind by {target.to_drop}.")
        elif old.kind is not new.kind:
            said.append(f"{what} is declared as {new.kind}, and the checkpoint has a {old.kind}.")
        elif (old.ttl_ms is None) != (new.ttl_ms is None):
            has = "none" if old.ttl_ms is None else "one"
            said.append(f"{what} must be declared with the same time to live: the checkpoint has {has}.")
        else:
            said += [
                f"{what} is declared as {part}({shown(from_json(to))}), and the checkpoint has "
                f"({shown(from_json(at))}): declare the same, and change it after the first checkpoint."
                for part, at, to in (
                    ("", old.versions[-1], new.versions[-1]),
                    ("a map with the keys ", old.map_key, new.map_key),
                )
                if at is not None and to is not None and bare(from_json(at)) != bare(from_json(to))
            ]
    return said


def _types(schema: StructType) -> list[object]:
    return [bare(field.dataType) for field in schema.fields]


def _output_obstacles(found: PlainCheckpoint, target: Target) -> list[str]:
    if target.output is None:
        return []
    newest = target.output_batch
    if newest > found.planned or (found.committed < 0 <= newest):
        return [
            f"The output {target.output} has batches up to {newest}, and the checkpoint up to {found.committed}: "
            "another query has written it, or the checkpoint is an old copy."
        ]
    if newest < found.committed:
        return [
            f"The output {target.output} has {'no log of batches' if newest < 0 else f'batches up to {newest}'}, and "
            f"the checkpoint up to {found.committed}: give the path that the query has written."
        ]
    return []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
