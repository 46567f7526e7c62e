"""The dashboard at /ui."""
