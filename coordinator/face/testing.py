"""What users test with: processors without a JVM, pipelines on real Spark, and sinks of their own on their targets.

Each name is imported when it is first used: who tests a processor needs neither Spark nor pytest.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("chandy", __file__)
