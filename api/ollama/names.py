"""Names of models: Ollama's have a tag, and "latest" stands for none."""

from ..errors import UnknownModelError
from ..service import Service

_LATEST = ":latest"


def listed_name(model_id: str) -> str:
    """The name under which clients find the model: with a tag, since many add one themselves."""
    return model_id if ":" in model_id else model_id + _LATEST


def plain_name(name: str) -> str:
    """A model's id out of how clients write it."""
    return name.removesuffix(_LATEST)


def check_name(service: Service, name: str) -> None:
    """Raises UnknownModelError unless the name, with or without its tag, is the served model's, or there is none."""
    if name and name not in (service.model_id, listed_name(service.model_id)):
        raise UnknownModelError(
            f"model {name[:200]!r} is not served here; this server has {listed_name(service.model_id)!r}"
        )
