"""Keeps the pipeline's queries running: restart in place, restore from a checkpoint, local recovery."""
