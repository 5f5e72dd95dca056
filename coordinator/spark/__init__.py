"""Spark's internals: plans, sessions, settings, and the files of queries' checkpoint directories."""
