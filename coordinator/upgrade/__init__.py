"""Runs batches of a pipeline again, apart from it: what another version of its program does with them."""
