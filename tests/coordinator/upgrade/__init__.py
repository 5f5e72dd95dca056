"""Tests of the upgrade with proof."""
