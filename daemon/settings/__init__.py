"""Settings: what a daemon is told by its file and its flags, and where each value comes from."""
