"""Replicas: copies of a state in other systems, which follow the pipeline from checkpoint to checkpoint."""
