"""The kinds of targets and sources that Chandy brings: transactional sinks by the two-phase contract, and sources."""
