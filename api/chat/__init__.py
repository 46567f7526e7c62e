"""Conversations, whatever dialect a client speaks: what it wishes, and what happens to each choice."""
