"""Pickles what travels from the driver to the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import attrs
from pyspark import cloudpickle

from ..errors import DefinitionError
from ..user_code import text_of

T = TypeVar("T")


@attrs.frozen
class Pickled(Generic[T]):
    """A processor, or an object that contains one, as bytes by cloudpickle. ``of`` makes those that can be loaded."""

    _data: bytes
    _operator: str

    @classmethod
    def of(cls, value: T, operator: str) -> Pickled[T]:
        """Pickle an object, on the driver.

        Args:
            value: the object.
            operator: uid of the operator whose processor it is or contains, for errors.

        Raises:
            DefinitionError: it cannot be pickled, or not be loaded again.
        """
        with _refusing(operator, "be pickled"):
            made: Pickled[T] = cls(cloudpickle.dumps(value), operator)  # type: ignore[no-untyped-call]
        made.load()
        return made

    def load(self) -> T:
        """Return a copy of the object.

        Raises:
            DefinitionError: it cannot be loaded in this process.
        """
        with _refusing(self._operator, "be loaded again from its pickle"):
            value: T = cloudpickle.loads(self._data)
        return value


@contextmanager
def _refusing(operator: str, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise DefinitionError(
            f"the processor of operator {operator!r} cannot be sent to tasks",
            f"an object that can {what}",
            f"{type(error).__name__}: {text_of(error)}",
            "create locks, connections and the like in init, which runs in the task, keep the value of a broadcast "
            "variable in place of it, and install all modules on all executors",
        ) from error
