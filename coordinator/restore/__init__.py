"""What a pipeline begins from: checkpoints, what killed processes have left, and the directories of its queries."""
