"""Writes state from outside of its query: a savepoint whose state comes from DataFrames."""
