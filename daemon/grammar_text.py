"""Grammars as clients write them: llguidance's Lark is taken as it is, GBNF is translated."""

from llguidance.gbnf_to_lark import gbnf_to_lark

from .errors import InvalidRequestError

_MAX_GBNF = 32 * 1024  # characters; the translation reads them one by one


def lark_of(grammar: str, param: str) -> str:
    """The grammar in Lark's syntax. GBNF is told by its "::=". Raises InvalidRequestError that names the place."""
    if "::=" not in grammar:
        return grammar
    if len(grammar) > _MAX_GBNF:
        raise InvalidRequestError(f"{param} has {len(grammar)} characters; at most {_MAX_GBNF} are allowed", param)
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # it has no class of its own for all of its faults
        raise InvalidRequestError(f"{param} is not a grammar in GBNF: {error}", param) from None
