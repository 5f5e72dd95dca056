"""The HTTP API under ``/api/v1``: which requests there are, and their answers as JSON documents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final

import attrs
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...storage.codec import from_json, plain
from ...storage.errors import ChandyError, CodecError
from ..assigned_shard import AssignedShard
from ..checkpoint import Checkpoint
from ..protocol.errors import CheckpointError
from .documents import CheckpointDetails, Checkpoints, Overview, Problem, Recovery, Taken
from .facts import Source
from .openapi import Operation, description

PREFIX: Final = "/api/v1"
_WAIT_SECONDS: Final = 60.0
"""How long an answer waits for a checkpoint that was asked for."""
_LARGEST: Final = 64 * 1024
"""The most bytes that a request may have."""
_NOT_YET: Final = {503: Problem}
_ORDERED: Final = {
    200: Taken,
    202: Problem,
    400: Problem,
    403: Problem,
    409: Problem,
    413: Problem,
    **_NOT_YET,
}

Answer = Callable[[Request], Awaitable[Response]]
Read = Callable[[Source, Request], Any]
"""Returns a document, given the pipeline."""
Take = Callable[[Source, bytes], Future[Checkpoint]]
"""Takes a checkpoint, given the pipeline and the body of the request."""


@attrs.frozen(kw_only=True)
class Order:
    """A savepoint to be taken."""

    target: str | None = None
    """As for ``coordinator.savepoint``."""


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
    source: Callable[[], Source | None]
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

        def order(path: str, says: str, take: Take, **more: Any) -> tuple[Operation, Answer]:
            operation = Operation(path=f"{PREFIX}{path}", method="POST", says=says, answers=_ORDERED, **more)
            return operation, self._order(take)

        return [
            read("", "What the pipeline does now.", Overview, self._overview),
            read("/checkpoints", "The checkpoints of this driver.", Checkpoints, _checkpoints),
            read(
                "/checkpoints/{id}",
                "One of them, by operator and shard.",
                CheckpointDetails,
                _checkpoint,
                answers={404: Problem},
                parameters={"id": int},
            ),
            read("/assignment", "Which machine has which shard.", tuple[AssignedShard, ...], _assignment),
            read("/recoveries", "Starts and restarts, oldest first.", tuple[Recovery, ...], _recoveries),
            order("/checkpoints", "Take a checkpoint, and wait for it.", _take_checkpoint),
            order("/savepoints", "Take a savepoint, and wait for it.", _take_savepoint, body=Order),
        ]

    def _known(self) -> Source:
        if (source := self.source()) is None:
            raise _Refused(503, "the driver stands by, or takes the pipeline over")
        return source

    def _overview(self, source: Source, request: Request) -> Overview:
        return Overview.of(self.pipeline, source.facts())

    def _read(self, answer: Read) -> Answer:
        async def answered(request: Request) -> Response:
            # What is read is under a lock.
            return _json(200, await run_in_threadpool(answer, self._known(), request))

        return answered

    def _order(self, take: Take) -> Answer:
        async def answered(request: Request) -> Response:
            if not self.may_order:
                raise _Refused(403, "set CheckpointConfig.token: without one, anybody could send this")
            source, body = self._known(), await _body(request)
            try:
                future = await run_in_threadpool(take, source, body)
                # The checkpoint goes on, whatever becomes of who waits for it.
                waiting = asyncio.shield(asyncio.wrap_future(future))
                taken = await asyncio.wait_for(waiting, _WAIT_SECONDS)
            except TimeoutError:
                raise _Refused(202, f"it is not complete after {_WAIT_SECONDS:.0f} s, and goes on") from None
            except CheckpointError as error:
                raise _Refused(409, str(error)) from None
            except ChandyError as error:
                raise _Refused(400, str(error)) from None
            return _json(200, Taken.of(taken))

        return answered


def _checkpoints(source: Source, request: Request) -> Checkpoints:
    return Checkpoints.of(source.statistics())


def _checkpoint(source: Source, request: Request) -> CheckpointDetails:
    wanted = request.path_params["id"]
    if (known := source.statistics().checkpoint(wanted)) is not None:
        return CheckpointDetails.of(known)
    raise _Refused(404, f"this driver does not know checkpoint {wanted}, or does no more")


def _assignment(source: Source, request: Request) -> list[AssignedShard]:
    return list(source.assignment())


def _recoveries(source: Source, request: Request) -> list[Recovery]:
    return [Recovery.of(one) for one in source.recoveries()]


def _take_checkpoint(source: Source, body: bytes) -> Future[Checkpoint]:
    return source.checkpoint()


def _take_savepoint(source: Source, body: bytes) -> Future[Checkpoint]:
    try:
        order = from_json(Order, body or b"{}")
    except CodecError as error:
        raise _Refused(400, str(error)) from None
    return source.savepoint(order.target)


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
