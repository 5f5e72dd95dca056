"""The HTTP API under ``/api/v1``: which requests there are, and their answers as JSON documents."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import attrs
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...storage.checkpoints.journal import JournalEntry
from ...storage.codec import from_json, plain
from ...storage.errors import ChandyError, CodecError, RefusedError
from ...storage.logs import carried
from ..assigned_shard import AssignedShard
from ..checkpoint import Checkpoint
from ..errors import NotRescaledError, NotSwitchedError, PipelineNameError
from ..observer import Orders
from ..protocol.errors import CheckpointError, DrainError, NotCarriedOutError
from ..switch_orders import KEEP_OLD
from .documents import (
    CheckpointDetails,
    Done,
    DriverCheckpoints,
    Overview,
    Problem,
    Recovery,
    StateOfKey,
    Taken,
)
from .facts import ObservedPipeline
from .openapi import Operation, description

T = TypeVar("T")

PREFIX: Final = "/api/v1"
_WAIT_SECONDS: Final = 60.0
"""How long an answer waits for a checkpoint that was asked for."""
_STOP_SECONDS: Final = 1.0
"""How long an answer waits for what keeps a stop from beginning: the stop itself waits for the answer."""
_LARGEST: Final = 64 * 1024
"""The most bytes that a request may have."""
_NOT_YET: Final = {503: Problem}
_ORDERED: Final[dict[int, type]] = {
    202: Done,
    400: Problem,
    403: Problem,
    409: Problem,
    413: Problem,
    **_NOT_YET,
}

Answer = Callable[[Request], Awaitable[Response]]
Read = Callable[[ObservedPipeline, Request], Any]
"""Returns a document, given the pipeline."""
Carry = Callable[[Orders, Any], Future[Any]]
"""Carries an order out, given the pipeline and the order."""


@attrs.frozen
class Nothing:
    """Nothing more to say."""


@attrs.frozen(kw_only=True)
class SavepointOrder:
    """A savepoint to be taken."""

    target: str | None = None
    """As for ``coordinator.savepoint``."""


@attrs.frozen(kw_only=True)
class DrainOrder:
    """A machine to be emptied, see ``coordinator.drain``."""

    machine: str
    timeout: str = "10 min"
    """For how long to try; the answer may come earlier."""


@attrs.frozen(kw_only=True)
class RescaleOrder:
    """Another number of tasks for an operator, see ``coordinator.rescale``."""

    operator: str
    parallelism: int | None = None
    """Null: Spark's default parallelism."""
    timeout: str = "1 min"
    """For how long to wait for the running batch."""


@attrs.frozen(kw_only=True)
class HandOverOrder:
    """A shadow that is to take the pipeline over, see ``coordinator.switch``."""

    shadow: str | None = None
    """Its name; null: the only one."""
    timeout: str = "3 min"
    """For how long to wait for it; the answer may come earlier."""
    although_different: bool = False
    """Whether it is to lead although something differs."""
    keep_old: str = KEEP_OLD
    """How long the driver before follows it as a shadow."""


@attrs.frozen(kw_only=True)
class StopOrder:
    """The end of the pipeline, see ``coordinator.stop``."""

    savepoint: str | None = None
    """Target of a savepoint of the stopped pipeline; null: the last checkpoint is enough."""
    hand_over: bool = False
    """Whether a standby takes over."""


@attrs.define
class _Refused(Exception):
    """A request is answered by a problem."""

    status: int
    error: str


@attrs.frozen
class Api:
    """The API of one pipeline."""

    pipeline: str
    may_order: bool
    """Whether requests may take checkpoints: only if nobody can send one without a token."""
    source: Callable[[], ObservedPipeline | None]
    """Returns the pipeline; None while the driver does not lead it."""

    def routes(self, allowed: Callable[[Request], Response | None]) -> list[Route]:
        """Return the routes.

        Args:
            allowed: returns the answer to a request that has no right to another one; None to one that has.
        """
        made = []
        for operation, answer in self._answers():
            path = operation.path.replace("{id}", "{id:int}")
            made.append(Route(path, _guarded(allowed, answer), methods=[operation.method]))
        return made

    def described(self) -> dict[str, Any]:
        """Return the description of the API in OpenAPI."""
        return description(operation for operation, _ in self._answers())

    def _answers(self) -> list[tuple[Operation, Answer]]:
        def read(path: str, says: str, type_: Any, answer: Read, **more: Any) -> tuple[Operation, Answer]:
            answers = {200: type_, **more.pop("answers", {}), **_NOT_YET}
            operation = Operation(path=f"{PREFIX}{path}", method="GET", says=says, answers=answers, **more)
            return operation, self._read(answer)

        def order(
            path: str, says: str, body: type, carry: Carry, wait: float | None = None, done: str = ""
        ) -> tuple[Operation, Answer]:
            answers = {200: Done if done else Taken, **_ORDERED}
            operation = Operation(
                path=f"{PREFIX}{path}", method="POST", says=says, answers=answers, body=body
            )
            return operation, self._order(
                body, carry, (lambda _: Done(says=done)) if done else Taken.of, wait
            )

        return [
            read("", "What the pipeline does now.", Overview, self._overview),
            read("/checkpoints", "The checkpoints of this driver.", DriverCheckpoints, _checkpoints),
            read(
                "/checkpoints/{id}",
                "One of them, by operator and shard.",
                CheckpointDetails,
                _checkpoint,
                answers={404: Problem},
                parameters={"id": int},
            ),
            read("/assignment", "Which machine has which shard.", tuple[AssignedShard, ...], _assignment),
            read("/history", "What has failed, also in earlier lives.", tuple[JournalEntry, ...], _history),
            read("/recoveries", "Starts and restarts, oldest first.", tuple[Recovery, ...], _recoveries),
            read(
                "/state/{operator}",
                "What a state of a running operator has for a key.",
                StateOfKey,
                _state,
                answers={400: Problem, 404: Problem},
                parameters={"operator": str},
                query={"key": str, "state": str | None},
            ),
            order("/checkpoints", "Take a checkpoint, and wait for it.", Nothing, _take_checkpoint),
            order("/savepoints", "Take a savepoint, and wait for it.", SavepointOrder, _take_savepoint),
            order(
                "/drain",
                "Move all shards of a machine.",
                DrainOrder,
                _drain,
                done="the machine has no shards",
            ),
            order(
                "/rescale",
                "Have another number of tasks run an operator.",
                RescaleOrder,
                _rescale,
                done="the operator is rescaled",
            ),
            order(
                "/switch",
                "Have a shadow take the pipeline over.",
                HandOverOrder,
                _switch,
                done="the shadow leads",
            ),
            order("/stop", "Stop the pipeline.", StopOrder, _stop, _STOP_SECONDS, "the pipeline is stopped"),
        ]

    def _known(self) -> ObservedPipeline:
        if (source := self.source()) is None:
            raise _Refused(503, "the driver stands by, or takes the pipeline over")
        return source

    def _overview(self, source: ObservedPipeline, request: Request) -> Overview:
        return Overview.of(self.pipeline, source.facts())

    def _read(self, answer: Read) -> Answer:
        async def answered(request: Request) -> Response:
            # What is read is under a lock.
            return _json(200, await run_in_threadpool(answer, self._known(), request))

        return answered

    def _order(self, body: type, carry: Carry, done: Callable[[Any], object], wait: float | None) -> Answer:
        async def answered(request: Request) -> Response:
            if not self.may_order:
                raise _Refused(403, "set Page.token: without one, anybody could send this")
            source, given, seconds = self._known(), await _body(request), wait or _WAIT_SECONDS
            try:
                order: Any = from_json(body, given or b"{}")
            except CodecError as error:
                raise _Refused(
                    400, f"the body is not what {request.url.path} takes: {error.reason}"
                ) from None
            try:
                future = await run_in_threadpool(carry, _running(source), order)
                # What was ordered goes on, whatever becomes of who waits for it.
                waiting = asyncio.shield(asyncio.wrap_future(future))
                found = await asyncio.wait_for(waiting, seconds)
            except TimeoutError:
                return _json(202, Done(says=f"it is not complete after {seconds:g} s, and goes on"))
            except (
                CheckpointError,
                DrainError,
                NotCarriedOutError,
                NotRescaledError,
                NotSwitchedError,
            ) as error:
                raise _Refused(409, str(error)) from None
            except ChandyError as error:
                raise _Refused(400, str(error)) from None
            return _json(200, done(found))

        return answered


def _running(source: ObservedPipeline) -> Orders:
    if source.orders is None:
        raise _Refused(503, "no driver is asked: this is what the storage has")
    return source.orders


def _checkpoints(source: ObservedPipeline, request: Request) -> DriverCheckpoints:
    return DriverCheckpoints.of(source.statistics())


def _checkpoint(source: ObservedPipeline, request: Request) -> CheckpointDetails:
    wanted = request.path_params["id"]
    if (known := source.statistics().checkpoint(wanted)) is not None:
        return CheckpointDetails.of(known)
    raise _Refused(404, f"this driver does not know checkpoint {wanted}, or does no more")


def _assignment(source: ObservedPipeline, request: Request) -> list[AssignedShard]:
    return list(source.assignment())


def _history(source: ObservedPipeline, request: Request) -> list[JournalEntry]:
    return list(source.history())


def _recoveries(source: ObservedPipeline, request: Request) -> list[Recovery]:
    return [Recovery.of(one) for one in source.recoveries()]


def _state(source: ObservedPipeline, request: Request) -> StateOfKey:
    operator = request.path_params["operator"]
    try:
        key = json.loads(request.query_params["key"])
    except (KeyError, ValueError, RecursionError):
        raise _Refused(400, "key=... is needed as JSON: a value, or a list or an object of them") from None
    try:
        return StateOfKey.of(
            operator, key, _running(source).get(operator, key, request.query_params.get("state"))
        )
    except PipelineNameError as error:
        raise _Refused(404, str(error)) from None
    except RefusedError as error:
        raise _Refused(400, str(error)) from None
    except ChandyError as error:
        raise _Refused(503, str(error)) from None


def _take_checkpoint(orders: Orders, order: Nothing) -> Future[Checkpoint]:
    return orders.checkpoint()


def _take_savepoint(orders: Orders, order: SavepointOrder) -> Future[Checkpoint]:
    return orders.savepoint(order.target)


def _drain(orders: Orders, order: DrainOrder) -> Future[None]:
    return _in_a_thread("chandy-drain", lambda: orders.drain(order.machine, order.timeout))


def _rescale(orders: Orders, order: RescaleOrder) -> Future[None]:
    return _in_a_thread(
        "chandy-rescale", lambda: orders.rescale(order.operator, order.parallelism, order.timeout)
    )


def _switch(orders: Orders, order: HandOverOrder) -> Future[None]:
    return _in_a_thread(
        "chandy-switch",
        lambda: orders.switch(
            order.shadow,
            order.timeout,
            although_different=order.although_different,
            keep_old=order.keep_old,
        ),
    )


def _stop(orders: Orders, order: StopOrder) -> Future[object]:
    return _in_a_thread("chandy-stop", lambda: orders.stop(order.savepoint, hand_over=order.hand_over))


def _in_a_thread(name: str, act: Callable[[], T]) -> Future[T]:
    """Do something in a thread of its own: it may take long, and the server's threads are few."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, ChandyError):
                raise

    threading.Thread(target=carried(run), name=name, daemon=True).start()
    return future


async def _body(request: Request) -> bytes:
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > _LARGEST:
            raise _Refused(413, f"more than {_LARGEST} bytes")
    return found


def _guarded(allowed: Callable[[Request], Response | None], answer: Answer) -> Answer:
    async def checked(request: Request) -> Response:
        if (refusal := allowed(request)) is not None:
            return refusal
        try:
            return await answer(request)
        except _Refused as refused:
            return _json(refused.status, Problem(error=refused.error))

    return checked


def _json(status: int, document: object) -> Response:
    return JSONResponse(plain(document), status)
