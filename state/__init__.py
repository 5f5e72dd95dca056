"""Keyed state: shards on RocksDB, the state hosts that serve them, and the processors that use them.

The public names are in ``__init__.pyi``. Each is imported when it is first used: a state host starts through this
package and must not load Spark.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
