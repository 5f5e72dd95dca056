"""Carries out what the protocol decides: threads, storage, and the calls from and to the state hosts."""
