"""Barriers: where a checkpoint stands between the batches of a query, and the task that passes it."""
