"""What task, state host and coordinator say to each other, and how: messages, Arrow Flight, a task's access."""
