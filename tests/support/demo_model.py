"""The real demo model, shared by all tests and with the user's own cache: built by the first who asks."""

from functools import cache
from pathlib import Path

from isotherm.daemon.paths import cache_folder
from isotherm.daemon.tokenizer import Tokenizer
from isotherm.experts.demo import build_demo, demo_source
from isotherm.experts.model import open_model


@cache
def demo_tokenizer() -> Tokenizer:
    """The tokenizer of the demo model and of the dense one."""
    return Tokenizer.from_gguf(open_model(demo_source()).checkpoint.metadata)


def demo_path() -> Path:
    """The demo's GGUF; a build takes up to a minute, half a GB of memory and 430 MiB of the cache folder."""
    return build_demo(
        cache_folder(),
        progress=lambda stage, done, total: None,
        tokenise=lambda text: demo_tokenizer().encode(text, add_special=False),
    )
