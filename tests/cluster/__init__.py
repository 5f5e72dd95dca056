"""Several machines: real Spark clusters on machines with their own network, files and processes."""
