"""The errors of an export."""

from __future__ import annotations

from ...storage.errors import RefusedError


class ExportError(RefusedError):
    """A checkpoint cannot be exported as it is, or not into this directory. Nothing was written."""
