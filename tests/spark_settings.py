"""What the Spark sessions of tests have in common: no pages, few partitions, and little work while nothing happens."""

from __future__ import annotations

from typing import Final

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without data, a query would ask its sources a hundred times a second.
    "spark.sql.streaming.pollingDelay": "50ms",
}
LOCAL: Final = _QUIET | {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
"""For sessions on this machine."""
WITH_EXECUTORS: Final = _QUIET | {"spark.python.daemon.module": "chandy.state.operators.daemon"}
"""For sessions with executors, as docs/cluster.md advises."""
