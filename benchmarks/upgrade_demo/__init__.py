"""The demo of an upgrade: a wrong version is found beside the running one, and a right one takes over."""
