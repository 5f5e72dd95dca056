"""The method of a coordinator that says what there is to adopt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .adopt.adopter import Successor
from .adopt.findings import Adoption
from .operators import AddsOperators
from .sinks.recognition import sink_of
from .spark import plan
from .spark.writer_facts import check

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .wiring.assembly import Assembly


class AdoptsQueries(AddsOperators):
    """What a coordinator adopts queries of plain Spark with."""

    _parts: Assembly

    def adoption(
        self,
        path: str,
        writer: DataStreamWriter | None = None,
        *,
        name: str = "",
        table: str | None = None,
    ) -> Adoption:
        """Say what ``start(writer, adopt=path)`` would take over, and what is in the way. Nothing is changed.

        Args:
            path: the ``checkpointLocation`` of a plain Spark query, a local path.
            writer: the writer of the query that is to go on; None: say only what the checkpoint has.
            name, table: as for ``start``.

        Returns:
            What was found. ``print`` it, or ask ``is_possible``.

        Raises:
            AdoptionError: there is no checkpoint of Spark, or only a part of one.
            WriterError: the query cannot be checkpointed at all.
        """
        with self._growing():
            if writer is None:
                return self._parts.adopter.look(path)
            facts = plan.facts(writer, table=table)
            check(facts)
            return self._parts.adopter.look(path, Successor(name, facts, sink_of(writer, facts)))
