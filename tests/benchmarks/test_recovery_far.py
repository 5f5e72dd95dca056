"""The proxy that puts distance between client and server delays bytes, keeps their order, and holds back no more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks import far
from benchmarks.far import carry


class FarWorld:
    """A sender whose pieces come at given moments, a receiver that notes when it gets them, and a clock for both."""

    def __init__(self, pieces: Sequence[tuple[float, bytes]]) -> None:
        self.now = 0.0
        self.got: list[tuple[float, bytes]] = []
        self.taken = 0
        self._pieces = list(pieces)
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        await woken

    async def read(self) -> bytes:
        due, piece = self._pieces.pop(0)
        self.taken += 1
        if due > self.now:
            await self.sleep(due - self.now)
        return piece

    async def write(self, piece: bytes) -> None:
        self.got.append((self.now, piece))

    async def _advance(self) -> None:
        """Whenever all wait, let the time pass until the first of them is due."""
        while True:
            for _ in range(10):
                await asyncio.sleep(0)
            if self._sleepers:
                self._sleepers.sort(key=lambda sleeper: sleeper[0])
                self.now, woken = self._sleepers.pop(0)
                woken.set_result(None)

    async def _carry(self, delay: float) -> None:
        passing = asyncio.create_task(self._advance())
        await carry(self.read, self.write, delay, now=lambda: self.now, sleep=self.sleep)
        passing.cancel()

    def carry(self, delay: float) -> None:
        """Carry all pieces."""
        asyncio.run(asyncio.wait_for(self._carry(delay), 30))


def test_every_piece_arrives_in_order_and_as_late_as_the_way_is_long() -> None:
    world = FarWorld([(0.0, b"a"), (1.0, b"b"), (1.0, b"c"), (7.0, b"d"), (8.0, b"")])
    world.carry(3.0)
    assert world.got == [(3.0, b"a"), (4.0, b"b"), (4.0, b"c"), (10.0, b"d")]


def test_what_follows_at_once_does_not_wait_for_what_is_under_way() -> None:
    world = FarWorld([(0.0, bytes([number])) for number in range(100)] + [(0.0, b"")])
    world.carry(3.0)
    assert {moment for moment, _ in world.got} == {3.0}


def test_no_more_is_taken_than_may_be_under_way() -> None:
    world = FarWorld([(0.0, b"x") for _ in range(2 * far.UNDER_WAY)] + [(0.0, b"")])
    most: list[int] = []
    written = world.write

    async def write(piece: bytes) -> None:
        most.append(world.taken - len(world.got))
        await written(piece)

    world.write = write  # type: ignore[method-assign]
    world.carry(3.0)
    # One more has been read, and waits for its place.
    assert max(most) <= far.UNDER_WAY + 2
    assert len(world.got) == 2 * far.UNDER_WAY
