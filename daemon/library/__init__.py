"""Models on this machine: pulled from a hub, kept in a folder, found by name. Nothing of a model is run as code."""
