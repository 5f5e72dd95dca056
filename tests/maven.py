"""Servers that run on Java: Maven resolves their class paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.servers.maven import NoJavaServerError as NoJavaServerError
from benchmarks.servers.maven import class_path as class_path
from benchmarks.servers.maven import program as program


@contextmanager
def or_skip(what: str, *, unless: str) -> Iterator[None]:
    """Skip the test if the block finds nothing to run a server with.

    Args:
        what: the server.
        unless: an environment variable. If it is ``1``, the error is raised instead.
    """
    try:
        yield
    except NoJavaServerError as error:
        if os.environ.get(unless) == "1":
            raise
        pytest.skip(f"no {what} here: {error}")
