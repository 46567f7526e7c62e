"""Progress: how work that takes long tells how far it has come."""

from collections.abc import Callable

# progress(stage, done, total): the stage in words for people, and how many of its `total` units are done.
Progress = Callable[[str, int, int], None]
