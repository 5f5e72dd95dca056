"""The demo of an upgrade: a wrong version is found beside the running one, a right one takes over, and hands back."""
