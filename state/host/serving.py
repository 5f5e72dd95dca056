"""The Arrow Flight server of a host: JSON actions for calls, one Arrow exchange for a task's data."""

from __future__ import annotations

from pyarrow import flight

from ...storage.codec import from_json
from ..errors import ShardRefusedError
from ..rpc import messages
from ..rpc.calls import ActionServer, Call, Stream, handler_errors
from ..rpc.metrics import OperatorMetrics
from ..rpc.tls import Identity
from ..rpc.wire import (
    ANSWER,
    APPLY,
    COMMIT,
    FETCH,
    SCAN,
    STAGED,
    unpack_changes,
)
from .changes import Changes
from .state_host import StateHost
from .task_access import TaskAccess


def actions_of(state_host: StateHost) -> dict[str, Call | Stream]:
    """Return what a host answers, by the name of the action."""
    return {
        "begin": Call(messages.BeginTask, state_host.begin),
        "open": Call(messages.OpenShards, state_host.open),
        "read": Call(messages.ReadValues, state_host.read),
        "operator_metrics": Call(messages.AskMetrics, state_host.operator_metrics),
        "batches": Call(messages.AskBatches, state_host.batches),
        "report": Call(messages.TaskFailure, state_host.report),
        "host": Call(messages.AskHost, lambda _: messages.HostName(state_host.host)),
    }


class HostServer(ActionServer):
    """Serves the shards of a state host to tasks."""

    def __init__(
        self, location: str, token: str, state_host: StateHost, identity: Identity | None = None
    ) -> None:
        super().__init__(location, token, actions_of(state_host), identity=identity)
        self._state_host = state_host

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Serve one task's access as described in ``wire``. The descriptor holds its ``BeginTask``."""
        with handler_errors("exchange"):
            task = from_json(messages.BeginTask, descriptor.command)
            access = TaskAccess(task, self._state_host)
            writer.begin(ANSWER)
            for message in reader:
                match message.app_metadata.to_pybytes():
                    case value if value == FETCH:
                        for batch in access.fetch(message.data):
                            writer.write_batch(batch)
                    case value if value == SCAN:
                        writer.write_with_metadata(*access.scan(message.data).pack())
                    case value if value == APPLY:
                        access.collect(message.data)
                    case value if value.startswith(COMMIT):
                        measured = from_json(OperatorMetrics, value.removeprefix(COMMIT))
                        access.commit(measured)
                        writer.write_metadata(STAGED)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Serve another host that takes a shard over, as described in ``wire``. The ticket is its ``HandOver``."""
        with handler_errors("hand over"):
            return flight.GeneratorStream(
                *self._state_host.hand_over(from_json(messages.HandOver, ticket.ticket)).pack()
            )

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Stage on standbys what the owner of their shards has staged. The descriptor holds its ``Forward``."""
        with handler_errors("forward"):
            request = from_json(messages.Forward, descriptor.command)
            changes: dict[int, Changes] = {}
            for chunk in reader:
                for shard, columns in unpack_changes(chunk.data):
                    changes.setdefault(shard, Changes(f"{request.uid}/{shard}")).add_packed(columns)
            if (rows := sum(map(len, changes.values()))) != request.rows:
                raise ShardRefusedError(
                    f"batch {request.batch} of {request.uid} is not staged at the standbys",
                    f"{request.rows} changes",
                    f"{rows}, and then the end of the stream",
                )
            self._state_host.follow(request, changes)
