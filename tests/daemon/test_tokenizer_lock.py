"""A long text keeps nobody waiting but who sent it."""

import threading

from isotherm.daemon.tokenizer import Tokenizer
from support.vocab import smollm2_metadata


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer.from_gguf(smollm2_metadata())
    ended = threading.Event()
    text = "stone river light " * 60_000

    def encode() -> None:
        tokenizer.encode(text, add_special=False)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 5  # at most two if the interpreter's lock were held all the time
