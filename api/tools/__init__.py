"""Readers of what models write to call tools: a format a file."""
