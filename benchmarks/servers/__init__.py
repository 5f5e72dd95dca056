"""Real servers on this machine, for benchmarks, demos and tests: each is a process that can be killed and started."""
