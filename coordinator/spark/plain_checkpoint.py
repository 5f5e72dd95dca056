"""Reads the checkpoint directory of a plain Spark query: how far it came, and which files go on from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import attrs

from ...storage.ids import BatchId
from ..errors import AdoptionError, WriterError
from . import progress
from .batch_entries import watermark_after
from .listing import files_below, folders_in, numbers_in
from .local_path import local_path
from .logs.compatibility import check_logs
from .progress import METADATA, Files

VOID: Final = "-"
"""What the offset log says of a source that has no offset yet."""
_KEYED: Final = "transformWithState"
_NAMED: Final = "v2"
_NUMBERED = re.compile(r"\d+:")
"""The version of the offset log that names its sources."""


@attrs.frozen
class StateVariable:
    """One state variable of a ``transformWithState``, as Spark's metadata describes it."""

    name: str
    kind: str
    """``value``, ``list`` or ``map``."""
    expires: bool
    """Whether it has a time to live."""


@attrs.frozen
class StateOperator:
    """An operator of the query for which Spark keeps state."""

    id: int
    name: str
    """Spark's name of its kind; empty if the checkpoint does not tell."""
    time_mode: str = ""
    """Of a ``transformWithState``."""
    variables: tuple[StateVariable, ...] = ()

    @property
    def is_keyed(self) -> bool:
        """Whether it is a ``transformWithState``."""
        return self.name.startswith(_KEYED)

    @property
    def is_of_python(self) -> bool:
        """Whether it runs a processor that is written in Python."""
        # Spark's names are transformWithStateInPySparkExec, transformWithStateInPandasExec and transformWithStateExec.
        return self.name.startswith(f"{_KEYED}In")


@attrs.frozen
class PlainCheckpoint:
    """The checkpoint directory of a plain Spark query."""

    directory: Path
    query_id: str
    """Spark's id of the query."""
    committed: BatchId
    """The newest committed batch; -1 if none is."""
    planned: BatchId
    """The newest batch in the offset log; -1 if there is none."""
    offsets: tuple[str, ...] = ()
    """Where each source stands after the newest planned batch, in the order of the plan."""
    watermark_ms: int = 0
    """Of the batch after the newest committed one."""
    operators: tuple[StateOperator, ...] = ()
    size: int = 0
    """Bytes of its files."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a batch was planned and has not committed."""
        return self.planned > self.committed

    @property
    def keyed(self) -> tuple[StateOperator, ...]:
        """The operators that are a ``transformWithState``."""
        return tuple(operator for operator in self.operators if operator.is_keyed)


def read_checkpoint(location: str) -> PlainCheckpoint:
    """Read what a query's ``checkpointLocation`` has. Nothing is changed.

    Args:
        location: a local path, ``file:/...`` or ``file:///...``.

    Raises:
        AdoptionError: it is elsewhere, no checkpoint of Spark, or not whole.
        RestoreError: a newer Spark has written it.
    """
    try:
        directory = local_path(location, role="checkpoint")
    except WriterError as error:
        raise AdoptionError(
            f"the checkpoint {location!r} cannot be adopted",
            error.expected,
            error.found,
            "copy the directory to a disk of the driver's machine",
        ) from None
    if not directory.is_dir():
        raise _refused(
            directory, "the checkpointLocation of a query", "no directory", "give the path that the query had"
        )
    check_logs(directory, "of unknown version")
    try:
        return _read(directory)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _refused(
            directory,
            "the files that Spark 4.1 to 4.3 writes",
            f"{type(error).__name__}: {error}",
            "let nothing but Spark write into the directory, and copy it as a whole",
        ) from error


def _read(directory: Path) -> PlainCheckpoint:
    planned, committed = progress.newest_planned(directory), progress.newest_committed(directory)
    query_id = progress.query_id(directory)
    if query_id is None:
        parents = [name for name in folders_in(directory) if (directory / name / METADATA).is_file()]
        advice = f"did you mean {directory / parents[0]}?" if parents else "give the path that the query had"
        raise _refused(directory, f"a file {METADATA!r} with the query's id", "none", advice)
    if planned < committed:
        raise _refused(
            directory,
            f"offsets/{committed}, because commits/{committed} is there",
            f"offsets/{planned} as the newest" if planned >= 0 else "an empty offset log",
            "copy the directory again, as a whole",
        )
    if planned > committed + 1:
        raise _refused(
            directory,
            f"at most one batch that was planned and has not committed, after batch {committed}",
            f"batches up to {planned} in the offset log",
            "if the query ran with asyncProgressTrackingEnabled, run it once without and stop it; "
            "otherwise files of commits/ are missing",
        )
    times, offsets = _offsets(directory, planned)
    return PlainCheckpoint(
        directory=directory,
        query_id=query_id,
        committed=committed,
        planned=planned,
        offsets=offsets,
        watermark_ms=max(watermark_after(directory, committed), int(times.get("batchWatermarkMs", 0))),
        operators=tuple(
            _operator(directory, number, committed) for number in sorted(numbers_in(directory / "state"))
        ),
        size=sum((directory / name).stat().st_size for name in files_below(directory)),
    )


def _offsets(directory: Path, batch: BatchId) -> tuple[dict[str, Any], tuple[str, ...]]:
    if batch < 0:
        return {}, ()
    lines = (directory / "offsets" / str(batch)).read_text().splitlines()
    return json.loads(lines[1]), tuple(lines[2:])


def _operator(directory: Path, number: int, batch: BatchId) -> StateOperator:
    """Read what Spark says of an operator after a batch. In older formats it says less."""
    folder = directory / "state" / str(number) / "_metadata"
    # Each start that changed something has written one, named by its first batch, and perhaps by an id behind that.
    by_batch = {
        int(found): path
        for path in (folder / "v2").glob("*")
        if (found := path.name.partition("_")[0]).isdecimal()
    }
    newest = by_batch.get(max((at for at in by_batch if at <= batch), default=-1), folder / METADATA)
    if not newest.is_file():
        return StateOperator(number, "")
    _, _, text = newest.read_text().partition("\n")
    record = json.loads(text)
    properties = json.loads(record.get("operatorPropertiesJson") or "{}")
    variables = properties.get("stateVariables") or []
    if isinstance(variables, str):
        variables = json.loads(variables)
    return StateOperator(
        number,
        str(record["operatorInfo"]["operatorName"]),
        _as_users_say(str(properties.get("timeMode", ""))),
        tuple(
            StateVariable(
                str(one["stateName"]),
                str(one["stateVariableType"]).lower().removesuffix("state"),
                bool(one.get("ttlEnabled", False)),
            )
            for one in variables
            # Spark keeps timers and its own bookkeeping beside the variables.
            if not str(one["stateName"]).startswith("$")
        ),
    )


def _as_users_say(mode: str) -> str:
    """Return a time mode as PySpark takes it; Spark's metadata has the name of the class."""
    return "None" if mode == "NoTime" else mode


# --- what goes on from it -----------------------------------------------------------------------------------


def files_to_adopt(found: PlainCheckpoint, *, native_state: bool) -> Files:
    """Return the files from which a query goes on after the newest committed batch.

    They have the batch that was planned and has not committed, too: it runs again with the same offsets, as plain
    Spark would run it. The logs of sources are taken as a whole: a source may have logged more than was planned.

    Args:
        found: the checkpoint.
        native_state: whether to take the state of Spark's operators.

    Raises:
        IncompleteDirectoryError: files of the newest committed batch are gone.
    """
    directory = found.directory
    files = (
        progress.files_at(directory, found.committed)
        if found.committed >= 0
        else {METADATA: directory / METADATA}
    )
    if not native_state:
        files = {name: path for name, path in files.items() if not name.startswith("state/")}
    if found.is_interrupted:
        name = f"offsets/{found.planned}"
        files[name] = directory / name
    for name in files_below(directory / "sources"):
        files[f"sources/{name}"] = directory / "sources" / name
    return dict(sorted(files.items()))


def with_new_sources(entry: str, added: tuple[int, ...]) -> str:
    """Return an entry of the offset log of a query that has more sources now, which have no offset yet.

    Args:
        entry: the content of the file.
        added: the positions of the new sources among all sources, ascending.
    """
    version, times, *offsets = entry.splitlines()
    if version != _NAMED:
        for position in added:
            offsets.insert(position, VOID)
    elif all(_NUMBERED.match(line) for line in offsets):
        # Sources without names have their positions for names, and these move up.
        by_number = {int(number): offset for number, _, offset in (line.partition(":") for line in offsets)}
        for position in added:
            by_number = {at + (at >= position): offset for at, offset in by_number.items()} | {position: VOID}
        offsets = [f"{at}:{offset}" for at, offset in sorted(by_number.items())]
    return "\n".join([version, times, *offsets])


def without_state(entry: str) -> str:
    """Return an entry of the commit log of a query for which Spark keeps no state any more."""
    version, text = entry.split("\n", 1)
    fields = json.loads(text)
    fields.pop("stateUniqueIds", None)
    return f"{version}\n{json.dumps(fields, separators=(',', ':'))}"


def _refused(directory: Path, expected: str, found: str, advice: str) -> AdoptionError:
    return AdoptionError(f"the checkpoint in {directory} cannot be adopted", expected, found, advice)
