"""The driver side of Chandy: ``CheckpointCoordinator``, its configuration, and the objects that it returns.

The public names are in ``__init__.pyi``. Each is imported when it is first used: the command line starts through this
package and must not load Spark.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
