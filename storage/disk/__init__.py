"""Directories on this machine that are this user's alone, and the locks that say whether a process uses them."""
