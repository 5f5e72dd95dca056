"""Simulates distance between a client and a server: ``python -m benchmarks.far PORT TO SECONDS``.

The proxy forwards every byte so many seconds after it arrived, in either direction. Like real distance, it delays the
data and does not limit the throughput.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

PIECE: Final = 256 * 1024
"""Bytes that are read at a time."""
UNDER_WAY: Final = 256
"""The most pieces that are in flight in one direction. Then the sender waits."""


async def carry(
    read: Callable[[], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
    delay: float,
    *,
    now: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Forward pieces in order, each ``delay`` seconds after it arrived. An empty piece ends the stream.

    Args:
        read: returns the next piece.
        write: takes a piece.
        delay: in seconds.
        now: returns the time in seconds.
        sleep: waits for a number of seconds.
    """
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY)

    async def send() -> None:
        while True:
            piece = await read()
            await on_the_way.put((now() + delay, piece))
            if not piece:
                return

    async def arrive() -> None:
        while True:
            due, piece = await on_the_way.get()
            if (left := due - now()) > 0:
                await sleep(left)
            if not piece:
                return
            await write(piece)

    async with asyncio.TaskGroup() as both:
        both.create_task(send())
        both.create_task(arrive())


async def serve(port: int, to: int, delay: float) -> None:
    """Listen on a port of this machine, and connect each client to another port of it."""

    async def connect(near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection("127.0.0.1", to)
        try:
            await asyncio.gather(
                _one_way(near_reader, far, delay), _one_way(far_reader, near, delay), return_exceptions=True
            )
        finally:
            near.close()
            far.close()

    async with await asyncio.start_server(connect, "127.0.0.1", port) as server:
        await server.serve_forever()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    async def write(piece: bytes) -> None:
        writer.write(piece)
        await writer.drain()

    await carry(
        lambda: reader.read(PIECE), write, delay, now=asyncio.get_running_loop().time, sleep=asyncio.sleep
    )
    # The other direction may continue.
    if writer.can_write_eof():
        writer.write_eof()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
