"""Adjacent events of a kind as one."""

from collections.abc import Iterable

from .events import CallArguments, ChatEvent, Reasoning, Text


def join_events(events: Iterable[ChatEvent]) -> tuple[ChatEvent, ...]:
    """The same events, neighbours joined where they tell of the same text, reasoning or arguments."""
    runs: list[list[ChatEvent]] = []
    for event in events:
        if runs and _continues(runs[-1][-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return tuple(run[0] if len(run) == 1 else _joined(run) for run in runs)


def _continues(last: ChatEvent, event: ChatEvent) -> bool:
    if isinstance(event, CallArguments):
        return isinstance(last, CallArguments) and last.index == event.index
    return isinstance(event, Text | Reasoning) and type(last) is type(event)


def _joined(run: list[ChatEvent]) -> ChatEvent:
    first = run[0]
    if isinstance(first, CallArguments):
        return CallArguments(first.index, "".join(each.json_text for each in run if isinstance(each, CallArguments)))
    kind = Text if isinstance(first, Text) else Reasoning
    return kind("".join(each.text for each in run if isinstance(each, Text | Reasoning)))
