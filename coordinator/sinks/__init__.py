"""What a sink is to the coordinator: its guarantee, and how it goes back to a checkpoint."""
