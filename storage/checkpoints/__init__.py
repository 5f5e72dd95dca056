"""Checkpoints in a store: manifests, the files of snapshots, fencing, savepoints, retention and verification."""
