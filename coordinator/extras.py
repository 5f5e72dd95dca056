"""Optional packages: the error that is raised if one is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import SetupError


@contextmanager
def needs_extra(name: str, *, what: str, needed: str) -> Iterator[None]:
    """Explain an import of this block that fails.

    Args:
        name: of the extra that has the package, such as ``kafka``.
        what: cannot be done without it, as a short sentence.
        needed: the package, in words.

    Raises:
        SetupError: it cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise SetupError(
            what, needed, f"none that can be imported ({error})", f"install it: pip install 'chandy[{name}]'"
        ) from error
