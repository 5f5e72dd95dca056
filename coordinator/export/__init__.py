"""Writes a checkpoint as what plain Spark, without Chandy, goes on from."""
