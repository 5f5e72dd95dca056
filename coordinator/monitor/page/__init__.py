"""The pages that people look at: what they say, computed from facts and statistics (``view``), and its HTML."""
