"""Calls between task, state host and coordinator: messages, Arrow Flight, a task's access to its shards."""
