"""What is on the disk of one machine: locks, private directories, workspaces, changelogs."""
