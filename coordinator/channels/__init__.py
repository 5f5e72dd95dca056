"""Channels between the queries of a pipeline: who reads what another one writes, and what is on its way at a cut."""
