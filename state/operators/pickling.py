"""Pickles what travels from the driver to the tasks."""

from __future__ import annotations

from pyspark import cloudpickle

from ..errors import invalid_argument


def pickled(value: object) -> bytes:
    """Return a processor, or an object that contains one, as bytes by cloudpickle.

    Raises:
        DefinitionError: the processor cannot be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        advice = "create locks, connections and the like in init, which runs in the task"
        raise invalid_argument("processor", "an object that can be pickled", found, advice) from error
    return data
