"""A pipeline's folders below ``CheckpointConfig.work_dir`` on a store: made by each life, and deleted by the next.

Machines share the store, so no lock tells whether a driver lives that has made a folder. A folder is named by the claim
of its life on the pipeline. After a take-over, the driver knows the claims of earlier lives, which are over, and no
claim of any other pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import attrs

from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import KEPT, Claim
from ...storage.checkpoints.layout import generation_key
from ...storage.errors import ChandyError, DamagedError, ObjectMissingError
from ...storage.logs import logger
from ...storage.verified import read_record
from ..errors import WorkingDirectoryError
from ..spark.hadoop_folder import HadoopFolder
from ..spark.mirror import Mirror

log = logger(__name__)


@attrs.frozen
class RemoteDirectories:
    """The folder of one life, with a folder for each run."""

    folder: HadoopFolder

    @classmethod
    def begin(cls, work_dir: HadoopFolder, pipeline: str, catalog: Catalog, claim: Claim) -> Self:
        """Delete what earlier lives of the pipeline have left, and return the folder of this one, not made yet.

        Args:
            work_dir: ``CheckpointConfig.work_dir``.
            pipeline: the pipeline's name.
            catalog: the pipeline's, which this life has taken over: no earlier life runs queries any more.
            claim: that of this life.
        """
        over = {folder_name(pipeline, one) for one in _claims_before(catalog, claim.generation)}
        try:
            for name in over.intersection(work_dir.names()):
                work_dir.delete(name)
                log.info("removed the directory of a dead driver", directory=f"{work_dir.uri}/{name}")
        except (OSError, WorkingDirectoryError) as error:
            log.warning("cannot remove the directory of a dead driver; the next start will", error=str(error))
        return cls(work_dir.below(folder_name(pipeline, claim)))

    def mirror(self, directory: Path) -> Mirror:
        """Return the working directory of a run, given the local directory that is to mirror it."""
        return Mirror(self.folder.below(f"{directory.parent.name}/{directory.name}"), directory)

    def remove(self, directory: Path) -> None:
        """Delete the working directory of a run that has ended."""
        self._remove(directory.parent.name)

    def close(self) -> None:
        """Delete everything."""
        self._remove("")

    def _remove(self, name: str) -> None:
        try:
            self.folder.delete(name)
        except WorkingDirectoryError as error:
            log.warning("a working directory is left until the next start", error=str(error))


def folder_name(pipeline: str, claim: Claim) -> str:
    """Return the name of a life's folder, which no other life of any pipeline has."""
    return f"{pipeline}-{claim.generation}-{claim.nonce}"


def _claims_before(catalog: Catalog, generation: int) -> Iterator[Claim]:
    """Yield the claims before a generation, as far as they are kept and can be read."""
    for earlier in range(max(1, generation - KEPT), generation):
        try:
            claim = read_record(catalog.store, generation_key(earlier), Claim, "a claim")
        except (ObjectMissingError, DamagedError):
            continue
        except (OSError, ChandyError) as error:
            log.warning("cannot read the record of an earlier life", generation=earlier, error=str(error))
            continue
        # Those of the first version have none.
        if claim.nonce:
            yield claim
