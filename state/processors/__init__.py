"""PySpark's StatefulProcessor on the engine: its handle, kinds of state, timers, and its two styles."""
