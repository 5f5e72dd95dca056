"""The layout of a shard's keys: which prefix holds which of an operator's states, timers and indexes.

| key | value |
|---|---|
| ``00 ...`` | the shard's own |
| ``msgpack(name) key`` | the value of a state variable, or the header of a list or a map |
| ``01 msgpack(name) part key`` | a further part of a large list or map; ``part`` is 4 bytes, big-endian |
| ``02 d time batch number key`` | a dead letter of ``key``, see ``operators.dead_letters`` |
| ``02 e time statekey`` | an entry of the expiry index: empty; the state at ``statekey`` may have expired at ``time`` |
| ``02 w time key`` | ``key`` may have a window of event time that ends at ``time``: empty |
| ``02 p time key`` | a processing-time timer of ``key``: empty |
| ``02 t time key`` | an event-time timer of ``key``: empty |

``key`` is the key's canonical bytes (``keys.py``). ``time`` is a signed number of milliseconds in 8 bytes that sort
like the number. ``batch`` has 8 bytes and ``number`` 4, both unsigned and big-endian. A name as msgpack text is
self-delimiting and begins with a byte from a0 to bf or from d9 to db. So no two variables share a key, and no variable
has a key of another kind.
"""

from __future__ import annotations

import struct
from typing import Final

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .arrow import BYTES, bounds_of, from_numpy, scalar

HIDDEN: Final = "$"
"""The first character of the variables that an operator keeps for itself; a processor's own must not begin with it."""
PROCESSING_TIMERS: Final = b"\x02p"
EVENT_TIMERS: Final = b"\x02t"
EXPIRY: Final = b"\x02e"
WINDOWS: Final = b"\x02w"
DEAD_LETTERS: Final = b"\x02d"
LETTERS: Final = f"{HIDDEN}dead_letters"
"""The name under which dead letters are read; no state can have it."""

IN_PART: Final = b"\x01"
"""The first byte of the keys of further parts."""
_TIMED: Final = 2

_PART: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">Q")
_LETTER: Final = struct.Struct(">QI")
_SIGN: Final = 1 << 63
_MAX_TIME: Final = _SIGN - 1
_TIMED_WIDTH: Final = 2 + _TIME.size
"""How many bytes of a timed key are in front of the key that it was given."""


def value_prefix(name: str) -> bytes:
    """Return the prefix of the keys under which a variable has its values or headers."""
    packed: bytes = msgpack.packb(name)
    return packed


def part_prefix(name: str) -> bytes:
    """Return the prefix of all further parts of a variable, whatever their key and number."""
    return IN_PART + value_prefix(name)


def part_key(prefix: bytes, part: int, key: bytes) -> bytes:
    """Return the key of a further part of a list or map; ``prefix`` is the ``part_prefix`` of the variable."""
    return prefix + _PART.pack(part) + key


def timed_key(prefix: bytes, time_ms: int, key: bytes) -> bytes:
    """Return a key that sorts by its time; ``prefix`` is that of the timers, ``EXPIRY`` or ``WINDOWS``."""
    return prefix + _TIME.pack(time_ms + _SIGN) + key


def timed_keys(prefix: bytes, times_ms: npt.NDArray[np.int64], keys: pa.Array) -> pa.Array:
    """Return what ``timed_key`` returns, for columns of times and keys; of type ``BYTES``."""
    unsigned = (times_ms.astype(np.int64).view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8")
    times = pa.Array.from_buffers(pa.binary(_TIME.size), len(keys), [None, pa.py_buffer(unsigned)])
    return pc.binary_join_element_wise(
        scalar(prefix, BYTES), times.cast(pa.binary()).cast(BYTES), keys, scalar(b"", BYTES)
    )


def split_timed(data: bytes) -> tuple[int, bytes]:
    """Return the time and the key that ``timed_key`` was given."""
    return _TIME.unpack_from(data, 2)[0] - _SIGN, data[_TIMED_WIDTH:]


def letter_key(time_ms: int, batch: int, number: int, key: bytes) -> bytes:
    """Return the key of a dead letter. It sorts by the time of the batch; ``number`` tells those of a batch apart."""
    return timed_key(DEAD_LETTERS, time_ms, _LETTER.pack(batch, number) + key)


def split_letter(data: bytes) -> tuple[int, int, int, bytes]:
    """Return the time, the batch, the number and the key that ``letter_key`` was given."""
    time, rest = split_timed(data)
    batch, number = _LETTER.unpack_from(rest)
    return time, batch, number, rest[_LETTER.size :]


def named_by(timed: pa.Array) -> pa.Array:
    """Return the keys that ``timed_keys`` was given, of type ``BYTES``."""
    # Not by binary_slice, which fails for some lengths (seen with pyarrow 26). Each row becomes two, the second stays.
    bounds = bounds_of(timed)
    halves = np.empty(2 * len(timed) + 1, np.int64)
    halves[::2] = bounds
    halves[1::2] = bounds[:-1] + _TIMED_WIDTH
    parts = pa.Array.from_buffers(BYTES, len(halves) - 1, [None, pa.py_buffer(halves), timed.buffers()[2]])
    return parts.take(from_numpy(np.arange(1, len(parts), 2)))


def due(prefix: bytes, until_ms: int) -> tuple[bytes, bytes]:
    """Return the start and the end of the range of keys with times up to and including ``until_ms``."""
    stop = after(prefix) if until_ms >= _MAX_TIME else timed_key(prefix, until_ms + 1, b"")
    return prefix, stop


def after(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with ``prefix``: the least key after them.

    It exists, because no prefix of this module consists of ff bytes only.
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def variable_of(state_key: bytes) -> bytes:
    """Return the ``value_prefix`` of a value's or header's key."""
    first = state_key[0]
    if 0xA0 <= first <= 0xBF:
        return state_key[: 1 + first - 0xA0]
    width = 1 << (first - 0xD9)
    return state_key[: 1 + width + int.from_bytes(state_key[1 : 1 + width], "big")]


def owner_of(entry_key: bytes) -> tuple[str, bytes]:
    """Return the name of the variable and the canonical key that an entry belongs to.

    The key of a variable that the operator keeps for itself, such as its timers, begins with ``HIDDEN``.
    """
    if entry_key.startswith(DEAD_LETTERS):
        return LETTERS, split_letter(entry_key)[3]
    if entry_key[0] == _TIMED:
        _, rest = split_timed(entry_key)
        if entry_key[:2] == EXPIRY:
            return owner_of(rest)
        return f"{HIDDEN}{'windows' if entry_key[:2] == WINDOWS else 'timers'}", rest
    in_part = entry_key[:1] == IN_PART
    prefix = variable_of(entry_key[in_part:])
    return msgpack.unpackb(prefix), entry_key[in_part + len(prefix) + _PART.size * in_part :]
