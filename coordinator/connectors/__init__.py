"""Transactional sinks for targets that people use, one module for each; all keep to the two-phase contract."""
