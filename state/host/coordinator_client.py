"""A host's connection to its coordinator: the calls of ``Control``, and the order stream that renews its lease."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol, get_args

import attrs
from pyarrow import flight

from ...storage import runtime
from ...storage.errors import ChandyError
from ...storage.logs import logger
from ..errors import CoordinatorLostError
from ..rpc.calls import ActionClient
from ..rpc.messages import Control, DiskSpace, Endpoint, HostHello, HostPulse, Message, Reply, reply_of
from ..rpc.orders import Order

_log = logger(__name__)
_RETRY_SECONDS: Final = 0.2
PULSE_SECONDS: Final = 1.0
"""The pause between two words that the host lives."""


class CoordinatorLink(Control, Protocol):
    """A host's connection to its coordinator, for use from many threads.

    All calls raise what the coordinator raised, or ``CoordinatorLostError``.
    """

    @property
    def address(self) -> str:
        """Where the coordinator is."""
        ...

    def orders(self, hello: HostHello) -> Iterator[Order]:
        """Register a host, and yield its orders as they come."""
        ...


class CoordinatorClient:
    """``CoordinatorLink`` over Arrow Flight."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.address = endpoint.address
        self.client = ActionClient(
            endpoint.address, endpoint.token, CoordinatorLostError, identity=endpoint.identity
        )

    def send(self, message: Message[Reply]) -> Reply:  # noqa: D102 - see Control
        return self.client.call(type(message).__name__, message, reply_of(type(message)))

    def orders(self, hello: HostHello) -> Iterator[Order]:  # noqa: D102 - see CoordinatorLink
        return self.client.stream("orders", hello, get_args(Order))


@attrs.define
class Lease:
    """How long a host may run without a message from its coordinator."""

    seconds: float
    clock: Callable[[], float] = runtime.monotonic
    _renewed: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Restart the time."""
        self._renewed = self.clock()

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self.clock() - self._renewed > self.seconds


@attrs.define
class Pulse:
    """Tells the coordinator again and again that the host lives.

    Each time it first writes to the host's directory: if the disk does not answer, the host is of no more use than a
    stopped process.
    """

    control: Control
    host: str
    directory: Path
    pause: float = PULSE_SECONDS
    stopped: runtime.Flag = attrs.field(factory=runtime.flag)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Beat on a thread for the length of the ``with``. Nothing is written into the directory afterwards."""
        thread = runtime.thread(target=self.beat, name="pulse")
        thread.start()
        try:
            yield
        finally:
            self.stopped.set()
            # It may be waiting for the coordinator, and then it has written.
            thread.join(PULSE_SECONDS)

    def beat(self) -> None:
        """Go on until ``stopped``. Run it on a thread of its own."""
        while not self.stopped.wait(self.pause):
            # A full disk is no silence, and without a coordinator the lease ends the host.
            with contextlib.suppress(OSError):
                (self.directory / "pulse").write_bytes(b"")
            with contextlib.suppress(ChandyError, flight.FlightError):
                self.control.send(HostPulse(self.host, self._disk()))

    def _disk(self) -> DiskSpace | None:
        try:
            found = shutil.disk_usage(self.directory)
        except OSError:
            return None
        return DiskSpace(found.free, found.total)


@attrs.define
class OrderStream:
    """Follows the coordinator's orders as long as the host lives, and reopens the stream when it breaks.

    Every message renews the lease. The coordinator sends the first as soon as it has registered the host.
    """

    coordinator: CoordinatorLink
    hello: HostHello
    obey: Callable[[Order], None]
    lease: Lease
    welcomed: runtime.Flag = attrs.field(factory=runtime.flag)
    """Set when the first message has arrived."""
    stopped: runtime.Flag = attrs.field(factory=runtime.flag)

    def follow(self) -> None:
        """Obey orders until ``stopped``. Run it on a thread of its own."""
        while not self.stopped.is_set():
            try:
                for order in self.coordinator.orders(self.hello):
                    self.lease.renew()
                    self.welcomed.set()
                    self._obey(order)
            except (ChandyError, flight.FlightError) as error:
                _log.warning("order stream broken", error=str(error))
            self.stopped.wait(_RETRY_SECONDS)

    def _obey(self, order: Order) -> None:
        try:
            self.obey(order)
        except Exception as error:  # noqa: BLE001 - an order that fails must not end the lease
            _log.error("order failed", order=type(order).__name__, error=repr(error))
