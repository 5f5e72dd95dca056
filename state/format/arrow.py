"""The Arrow type of keys and values as bytes; in a module of its own, for a state host loads nothing of Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

BYTES: Final = pa.large_binary()
"""With it, no array is too short for what a batch holds."""
