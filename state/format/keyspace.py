"""Where an operator keeps what in a shard: the one place that knows how a shard's keys begin.

| key | value |
|---|---|
| ``00 ...`` | the shard's own |
| ``msgpack(name) key`` | the value of a state variable, or the header of a list or a map |
| ``01 msgpack(name) part key`` | a further part of a large list or map; ``part`` is 4 bytes, big-endian |
| ``02 e time statekey`` | looks after what expires: empty; the state whose key follows may have expired at ``time`` |
| ``02 p time key`` | a processing-time timer of ``key``: empty |
| ``02 t time key`` | an event-time timer of ``key``: empty |

``key`` are the canonical bytes of the key (``keys.py``), ``time`` is a signed number of milliseconds in 8 bytes
whose order as bytes is that of the number. A name as msgpack text is self-delimiting and begins with a byte from
a0 to bf or from d9 to db: so no two variables share a key, and none has one of the other kinds.
"""

from __future__ import annotations

import struct
from typing import Final

import msgpack

HIDDEN: Final = "$"
"""Names of variables that an operator keeps for itself begin with it; a processor's own may not."""
PROCESSING_TIMERS: Final = b"\x02p"
EVENT_TIMERS: Final = b"\x02t"
EXPIRY: Final = b"\x02e"

_PART: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">Q")
_SIGN: Final = 1 << 63
_MAX_TIME: Final = _SIGN - 1


def value_prefix(name: str) -> bytes:
    """Return what comes before a key's bytes where a variable has its value or its header."""
    packed: bytes = msgpack.packb(name)
    return packed


def part_prefix(name: str) -> bytes:
    """Return what all further parts of a variable begin with, whatever their key and number."""
    return b"\x01" + value_prefix(name)


def part_key(prefix: bytes, part: int, key: bytes) -> bytes:
    """Return where a further part of a key's list or map is; ``prefix`` is ``part_prefix`` of the variable."""
    return prefix + _PART.pack(part) + key


def timed_key(prefix: bytes, time_ms: int, key: bytes) -> bytes:
    """Return a key that is found by its time: ``prefix`` is that of the timers or of ``EXPIRY``."""
    return prefix + _TIME.pack(time_ms + _SIGN) + key


def split_timed(data: bytes) -> tuple[int, bytes]:
    """Return the time and the key of what ``timed_key`` made."""
    return _TIME.unpack_from(data, 2)[0] - _SIGN, data[10:]


def due(prefix: bytes, until_ms: int) -> tuple[bytes, bytes]:
    """Return the first key and the end of the range that holds all times up to, and including, ``until_ms``."""
    stop = after(prefix) if until_ms >= _MAX_TIME else timed_key(prefix, until_ms + 1, b"")
    return prefix, stop


def after(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with ``prefix``: the least key after them.

    No prefix of this module is made of ff bytes only, so there is one.
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def variable_of(state_key: bytes) -> bytes:
    """Return the ``value_prefix`` with which the key of a value or header begins."""
    first = state_key[0]
    if 0xA0 <= first <= 0xBF:
        return state_key[: 1 + first - 0xA0]
    width = 1 << (first - 0xD9)
    return state_key[: 1 + width + int.from_bytes(state_key[1 : 1 + width], "big")]
