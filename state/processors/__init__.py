"""Runs PySpark's StatefulProcessor on the engine: its handle, its kinds of state, its timers and its two styles."""
