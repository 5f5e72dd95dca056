"""Checkpoints, savepoints and fast Python state for Spark Structured Streaming.

This is the package ``chandy`` itself (see setup.cfg). The names that programs import are in ``__init__.pyi``. Each is
imported when it is first used: workers and state hosts start through this package and must not load the driver.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
