"""Errors of the serving side.

RequestError(ValueError)          the request cannot be served as it is; the text says what to change
├── InvalidRequestError           a field has a wrong value (`param` names it)
└── ContextLengthError            prompt (+ max_tokens) does not fit the context
OverloadedError(RuntimeError)     the queue is full; come back in `retry_after` seconds
EngineError(RuntimeError)         the engine failed or is stopping; not the client's fault
└── ModelNotLoadedError           a known model could not be loaded; it is tried again in `retry_after` seconds
"""


class RequestError(ValueError):
    """The request cannot be served as it is. `param` names the field, `code` is OpenAI's error code if there is one."""

    code: str | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A field of the request has a wrong value."""


class ContextLengthError(RequestError):
    """The prompt, or the prompt and max_tokens together, exceed the context."""

    code = "context_length_exceeded"


class OverloadedError(RuntimeError):
    """The queue is full."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineError(RuntimeError):
    """The engine failed or is stopping."""


class ModelNotLoadedError(EngineError):
    """A model that the server knows could not be loaded."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
