"""The models that one daemon knows, and which of them are loaded."""
