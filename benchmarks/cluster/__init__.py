"""A Spark cluster of several machines on this one, for tests, benchmarks and the demo."""
