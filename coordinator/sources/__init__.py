"""What Chandy does about the sources of queries beyond what Spark does: the contract, and the sources of one query."""
