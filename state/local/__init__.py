"""What lives on one machine beyond a process: locks, private directories, workspaces, changelogs."""
