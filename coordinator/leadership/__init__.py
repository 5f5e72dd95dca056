"""Which driver leads a pipeline: its lease and record, drivers that wait, and the rule by which one takes over."""
