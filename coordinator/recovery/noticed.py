"""What threads notice of a pipeline and leave to its supervisor to explain: to look for the cause may take long."""

from __future__ import annotations

import attrs

from .runs import Run


@attrs.frozen
class RunEnd:
    """A run has ended, for a reason that nobody has looked for yet."""

    run: Run
    error: Exception | None
    noticed_at: float
