"""WHEN things run: command line, engine loop, scheduler, paged KV cache, sampling and text."""
