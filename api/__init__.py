"""The HTTP side. It talks to the engine only through `daemon.client` and the messages."""
