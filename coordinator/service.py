"""The coordinator's Arrow Flight server: what state hosts call."""

from __future__ import annotations

import attrs

from ..state.link.messages import Ack, AskBatch, ClaimShards, Decline, HostHello, ShardsRestored, TaskFailure
from ..state.link.rpc import ActionServer, Call, Stream
from .checkpointing import Checkpointing


@attrs.frozen
class Service:
    """A server that runs."""

    address: str
    """Its Arrow Flight location."""
    server: ActionServer

    def shutdown(self) -> None:
        """End it; streams of orders end with it."""
        self.server.shutdown()


def serve(checkpointing: Checkpointing, host: str, token: str) -> Service:
    """Serve the control calls of state hosts on a free port of ``host``; every call must present the token."""
    actions: dict[str, Call | Stream] = {
        "ask": Call(AskBatch, checkpointing.ask),
        "claim": Call(ClaimShards, checkpointing.claim),
        "restored": Call(ShardsRestored, checkpointing.restored),
        "ack": Call(Ack, checkpointing.ack),
        "decline": Call(Decline, checkpointing.decline),
        "report": Call(TaskFailure, checkpointing.report),
        "orders": Stream(HostHello, checkpointing.orders),
    }
    server = ActionServer(f"grpc://{host}:0", token, actions)
    return Service(f"grpc://{host}:{server.port}", server)
