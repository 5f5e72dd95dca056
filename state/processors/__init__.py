"""Runs PySpark's StatefulProcessor on the engine: its handle, its kinds of state, its timers and its two styles.

A new kind of state is a ``Variable`` in a module beside ``value_state``, a member of ``StateKind`` in
``storage.checkpoints.manifest`` and a getter in ``handle``. Then ``reader.stored`` and ``reader.lookup`` learn it,
and ``tests/state/processors/test_processor_model.py`` drives it beside a plain dict.
"""
