"""`chandy verify`: whether every byte is as it was written."""

from __future__ import annotations

from typing import Any

import attrs
from rich.filesize import decimal

from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog, CatalogEntry
from ...storage.checkpoints.verification import Report, damaged_objects, verify, verify_all
from ...storage.errors import ChandyError
from ...storage.ids import CheckpointId
from .facts import problem_of
from .group import checkpoint_option, json_option, located, main, pipeline_option, storage_uri
from .printing import print_json, print_problems, print_table


@attrs.frozen
class _Verified:
    """A checkpoint or savepoint that was looked at."""

    id: int
    report: Report | None = None
    """None: it could not be read."""
    problem: str | None = None
    """Why it could not."""
    place: str | None = None
    """The URI of a savepoint."""

    @property
    def name(self) -> str:
        return f"checkpoint {self.id}" if self.place is None else f"savepoint {self.id} in {self.place}"

    @property
    def verdict(self) -> str:
        if self.report is None:
            return "not there" if self.problem is None else "unreadable"
        return "whole" if self.report.ok else f"{len(self.report.problems)} files damaged or missing"

    @property
    def problems(self) -> list[str]:
        if self.report is None:
            return [] if self.problem is None else [f"{self.name}: {self.problem}"]
        return [f"{self.name}: {problem}" for problem in self.report.problems]

    def row(self) -> list[str]:
        numbers = ["", ""] if self.report is None else [str(self.report.files), decimal(self.report.bytes)]
        return [str(self.id), self.verdict, *numbers, *([] if self.place is None else [self.place])]

    def document(self) -> dict[str, Any]:
        place = {} if self.place is None else {"uri": self.place}
        if self.report is None:
            return {"id": self.id, "ok": False, "problem": self.problem} | place
        problems = [attrs.asdict(problem) for problem in self.report.problems]
        facts = {"files": self.report.files, "bytes": self.report.bytes, "problems": problems}
        return {"id": self.id, "ok": self.report.ok} | facts | place


@main.command("verify")
@storage_uri
@pipeline_option
@checkpoint_option
@json_option
def verify_(uri: str, pipeline: str | None, checkpoint: int | None, as_json: bool) -> None:
    """Check every byte of all completed checkpoints and savepoints, or of one of them.

    Names every damaged or missing object and the checkpoints that need it. A savepoint that is no longer where the
    pipeline wrote it is said, but is no error.
    """
    unreadable: list[CatalogEntry] = []
    savepoints: dict[CheckpointId, str] = {}
    one = None
    if checkpoint is not None:
        one = located(uri, pipeline, checkpoint)
    elif pipeline is None:
        one = locate.savepoint(uri)
    if one:
        store, manifests = one.store, [one.manifest]
    else:
        store = locate.pipeline(uri, pipeline)
        entries = Catalog(store).entries()
        manifests = [entry.completed for entry in entries if entry.completed]
        unreadable = [entry for entry in entries if entry.problem]
        savepoints = locate.savepoints(store)
    reports = dict(zip([manifest.id for manifest in manifests], verify_all(store, manifests), strict=True))
    damaged = damaged_objects(reports)
    verified = [_Verified(id, report) for id, report in reports.items()]
    verified += [_Verified(entry.id, problem=problem_of(entry)) for entry in unreadable]
    saved = [_verify_savepoint(id, place) for id, place in savepoints.items()]
    if as_json:
        documents = {
            "store": store.uri,
            "checkpoints": [found.document() for found in verified],
            "damaged": [attrs.asdict(found) for found in damaged],
            "savepoints": [found.document() for found in saved],
        }
        print_json(documents)
    else:
        columns = ["id", "result", "files", "whole"]
        print_table(store.uri, columns, [found.row() for found in verified], numbers=("id", "files", "whole"))
        if saved:
            rows = [found.row() for found in saved]
            print_table("savepoints", [*columns, "place"], rows, numbers=("id", "files", "whole"))
    problems = [problem for found in (*verified, *saved) for problem in found.problems]
    print_problems([*problems, *map(str, damaged)])


def _verify_savepoint(id: int, place: str) -> _Verified:
    try:
        found = locate.savepoint(place)
        if found is None or found.manifest.id != id:
            return _Verified(id, place=place)
        return _Verified(id, verify(found.store, found.manifest), place=place)
    except (ChandyError, OSError) as error:
        return _Verified(id, problem=str(error), place=place)
