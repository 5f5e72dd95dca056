"""What travels to tasks as bytes."""

from __future__ import annotations

from pyspark import cloudpickle

from ..errors import DefinitionError


def pickled(value: object) -> bytes:
    """Return a processor, or what holds one, by cloudpickle.

    Raises:
        DefinitionError: it cannot be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:
        found = f"one that cannot: {type(error).__name__}: {error}"
        raise DefinitionError("processor", "an object that can be pickled", found) from error
    return data
