"""Upgrade with proof: batches that have been run are run again by another version of the program, and compared."""
