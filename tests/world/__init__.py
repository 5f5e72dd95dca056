"""The world in which the product runs in a simulator: one thread, its own time, and every choice from a seed."""
