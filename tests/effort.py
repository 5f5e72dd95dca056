"""How many examples the tests by chance try: few in every run, ``CHANDY_EXAMPLES`` times as many in a long one."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

IS_LONG: Final = "CHANDY_EXAMPLES" in os.environ
"""Whether the examples are more than usual, and other ones in every run."""
_TIMES: Final = float(os.environ.get("CHANDY_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """Return how many examples a test tries that has the usual number in every run."""
    return max(1, round(usual * _TIMES))


def until_found(steps: int) -> settings:
    """Return settings for a state machine that must find a bug which was put in on purpose.

    It stops at the first example that shows the bug, and makes it no smaller: that would take most of the time. The
    budget is many times what any of the bugs takes, so whether it is found depends on no change of a name or a rule. In
    a long run the examples are other ones each time.

    Args:
        steps: of one example.
    """
    return settings(
        max_examples=examples(5000),
        stateful_step_count=steps,
        derandomize=not IS_LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
