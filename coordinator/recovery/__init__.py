"""Keeps the pipeline's queries running: restarts in place, restores from a checkpoint, recovers locally."""
