"""The checkpoint protocol: pure state machines and decisions over values; no I/O, no thread, no clock."""
