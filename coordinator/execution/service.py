"""The coordinator's Arrow Flight server: what state hosts call."""

from __future__ import annotations

import attrs
import pyarrow as pa

from ...state.rpc.calls import ActionServer, Call, Stream
from ...state.rpc.messages import (
    Ack,
    AskBatch,
    ClaimShards,
    Decline,
    HostHello,
    HostPulse,
    ShardNotOpened,
    ShardsRestored,
    TaskFailure,
)
from ..errors import SetupError
from .executor import CheckpointExecutor


@attrs.frozen
class Service:
    """A running server."""

    address: str
    """Its Arrow Flight location."""
    server: ActionServer

    def answer(self, executor: CheckpointExecutor) -> None:
        """Answer the calls of state hosts from now on."""
        actions: dict[str, Call | Stream] = {
            "ask": Call(AskBatch, executor.ask),
            "claim": Call(ClaimShards, executor.claim),
            "restored": Call(ShardsRestored, executor.restored),
            "not_opened": Call(ShardNotOpened, executor.not_opened),
            "ack": Call(Ack, executor.ack),
            "decline": Call(Decline, executor.decline),
            "pulse": Call(HostPulse, executor.pulse),
            "report": Call(TaskFailure, executor.report),
            "orders": Stream(HostHello, executor.orders),
        }
        self.server.answer(actions)

    def shutdown(self) -> None:
        """Stop the server; the streams of orders end with it."""
        self.server.shutdown()


def listen(host: str, token: str, pipeline: str) -> Service:
    """Listen on a free port of ``host``; every call must present the token.

    Raises:
        SetupError: the host is not an address of this machine.
    """
    try:
        server = ActionServer(f"grpc://{host}:0", token, {}, {"pipeline": pipeline})
    except pa.ArrowException as error:
        raise SetupError(
            "the coordinator cannot listen for state hosts",
            f"a free port of {host!r}",
            str(error),
            "set spark.driver.host to a name or an address of this machine that the executors reach",
        ) from error
    return Service(f"grpc://{host}:{server.port}", server)
