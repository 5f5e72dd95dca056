"""Calls between Chandy's processes: Arrow Flight actions with JSON bodies and typed errors."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyarrow import flight

from ...storage.codec import from_json, to_json
from ...storage.errors import ChandyError, StorageError
from ...storage.logs import logger, named
from ..errors import PeerLostError, RemoteError
from .auth import TokenCheck, token_options
from .tls import Identity, connect

_log = logger(__name__)
T = TypeVar("T")


@attrs.frozen
class Call:
    """An action that takes one value and returns one or None."""

    request: type[Any]
    handle: Callable[[Any], Any]


@attrs.frozen
class Stream:
    """An action that takes one value and returns a stream of values of several classes.

    ``handle`` returns an iterator, which is closed when the client disconnects.
    """

    request: type[Any]
    handle: Callable[[Any], Iterator[Any]]


# --- errors across the wire ---------------------------------------------------------------------------------


def pack_error(error: Exception) -> flight.FlightServerError:
    """Return what a Flight handler has to raise for its caller to get ``error``."""
    if isinstance(error, RemoteError):
        name, message, fields = error.error, error.message, error.fields
    else:
        name, message = type(error).__name__, str(error)
        fields = _fields(error) if isinstance(error, ChandyError) else None
    document = {"error": name, "message": message, "fields": fields}
    return flight.FlightServerError(f"{name}: {message}", json.dumps(document).encode())


def unpack_error(error: Exception) -> ChandyError | None:
    """Return the error that ``pack_error`` packed, or None if this is not one.

    An error whose class is unknown on this side, or whose fields are not plain, becomes a ``RemoteError``.
    """
    try:
        document = json.loads(getattr(error, "extra_info", None) or b"")
        name, message, fields = document["error"], document["message"], document["fields"]
    except (ValueError, KeyError, TypeError):
        return None
    known = _classes(ChandyError).get(name)
    if known is not None and fields is not None:
        with contextlib.suppress(StorageError):
            return from_json(known, json.dumps(fields).encode())
    return RemoteError(name, message, fields)


def _fields(error: ChandyError) -> dict[str, Any] | None:
    kind: type[Any] = type(error)
    if not attrs.has(kind):
        return None
    try:
        return {field.name: json.loads(to_json(getattr(error, field.name))) for field in attrs.fields(kind)}
    except (TypeError, ValueError):
        return None


def _classes(base: type[ChandyError]) -> dict[str, type[ChandyError]]:
    found = {base.__name__: base}
    for subclass in base.__subclasses__():
        found |= _classes(subclass)
    return found


@contextlib.contextmanager
def handler_errors(action: str) -> Generator[None]:
    """Turn what a handler raises into what its caller receives as a typed error."""
    try:
        yield
    except flight.FlightError:
        raise
    except ChandyError as error:
        _log.info("refused", action=action, error=type(error).__name__, message=str(error))
        raise pack_error(error) from error
    except Exception as error:
        _log.error("failed", action=action, error=repr(error), traceback=traceback.format_exc())
        raise pack_error(error) from error


@contextlib.contextmanager
def caller_errors(address: str, lost: type[PeerLostError]) -> Generator[None]:
    """Turn what a Flight call raises into the peer's typed error or into ``lost``."""
    try:
        yield
    except flight.FlightUnauthenticatedError:
        raise
    except (flight.FlightError, pa.ArrowException, OSError, StopIteration) as error:
        raise unpack_error(error) or lost(address, str(error) or repr(error)) from error


# --- server and client --------------------------------------------------------------------------------------


class ActionServer(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server of JSON actions by name. Every call must have the token."""

    def __init__(
        self,
        location: str,
        token: str,
        actions: Mapping[str, Call | Stream],
        names: Mapping[str, str] | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Serve at a location.

        Args:
            location: Arrow Flight location.
            token: what every call must present.
            actions: by name.
            names: what lines that are logged during a call are about.
            identity: what a location with TLS proves itself with, and wants of its clients.
        """
        self._names = names or {}
        # Calls may come as soon as the base class is initialised.
        self.answer(actions)
        secured = identity.of_server() if identity else {}
        super().__init__(location, middleware={"token": TokenCheck(token)}, **secured)

    def answer(self, actions: Mapping[str, Call | Stream]) -> None:
        """Serve exactly these actions from now on."""
        self._actions = dict(actions)

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Return the name of each action with the class of its request."""
        return [(name, action.request.__name__) for name, action in self._actions.items()]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Serve one action."""
        with named(**self._names), handler_errors(action.type):
            known = self._actions.get(action.type)
            if known is None:
                raise RemoteError(
                    "UnknownActionError", f"expected one of {sorted(self._actions)}, found {action.type!r}"
                )
            request = from_json(known.request, action.body.to_pybytes())
            if isinstance(known, Call):
                return iter([flight.Result(to_json(known.handle(request)))])
            return _stream(action.type, context, known.handle(request))


def _disarm() -> None:
    """Let a forked child end: it has the finalizers of its parent's servers, and not the threads that they wait for."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = finalizer.peek()
        if found is not None and isinstance(found[0], ActionServer):
            finalizer.atexit = False


os.register_at_fork(after_in_child=_disarm)


def _stream(name: str, context: flight.ServerCallContext, values: Iterator[Any]) -> Iterator[flight.Result]:
    try:
        with handler_errors(name):
            for value in values:
                if context.is_cancelled():
                    return
                yield flight.Result(type(value).__name__.encode() + b" " + to_json(value))
    finally:
        if isinstance(values, Generator):
            values.close()


class ActionClient:
    """A client of an ``ActionServer``. It may be used from many threads."""

    def __init__(
        self,
        address: str,
        token: str,
        lost: type[PeerLostError] = PeerLostError,
        *,
        identity: Identity | None = None,
        timeout: float | None = None,
    ) -> None:
        """Connect when the first call is made.

        Args:
            address: Arrow Flight location.
            token: what the server wants of every call.
            lost: what is raised if there is no answer.
            identity: what a location with TLS wants.
            timeout: how long a call may take, in seconds. None: as long as the server lives.
        """
        self.address = address
        self.options = token_options(token, timeout)
        self._token = token
        self._lost = lost
        self.flight = connect(address, identity)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turn Flight's errors inside the ``with`` into typed ones."""
        return caller_errors(self.address, self._lost)

    def call(self, action: str, request: object, answer: type[T], timeout: float | None = None) -> T:
        """Call an action that returns one value, which may take so many seconds; None: as long as every call.

        Raises:
            ChandyError: what the peer raised; a ``RemoteError`` if its class is unknown here.
            PeerLostError: there is no answer; of the subclass that the constructor was given.
            FlightUnauthenticatedError: the peer has another token.
        """
        options = self.options if timeout is None else token_options(self._token, timeout)
        return from_json(answer, self._body(action, request, options))

    def tell(self, action: str, request: object) -> None:
        """Call an action that returns nothing. Errors are those of ``call``."""
        self._body(action, request, self.options)

    def stream(self, action: str, request: object, answers: tuple[type[Any], ...]) -> Iterator[Any]:
        """Call a streaming action and yield its values as they come. Errors are those of ``call``."""
        by_name = {type_.__name__: type_ for type_ in answers}
        with self.errors():
            results = self.flight.do_action(flight.Action(action, to_json(request)), self.options)
            for result in results:
                name, _, body = result.body.to_pybytes().partition(b" ")
                yield from_json(by_name[name.decode()], body)

    def close(self) -> None:
        """Close the connection."""
        self.flight.close()

    def _body(self, action: str, request: object, options: flight.FlightCallOptions) -> bytes:
        with self.errors():
            results = self.flight.do_action(flight.Action(action, to_json(request)), options)
            return bytes(next(iter(results)).body.to_pybytes())
