"""Sinks that publish a checkpoint's output once it is complete: the contract, staging, and the order of commits."""
