"""Ollama's native API, as far as its clients need it of a server with one model."""
