"""Barriers and cuts: where a checkpoint stands between batches, and the task that passes it."""
