"""Shapes: how each format of calls is written, for the grammars by which calls are enforced."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .formats import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters one by one: `opening` with {key} and {text} (whether it is a string) filled in, the value, `closing`.
    bare: strings stand without quotes."""

    opening: str
    closing: str = ""
    between: str = ""
    bare: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """begin, then calls with `between` between them, then end. A call: opening, name, middle, arguments, closing.

    parameters: None where the arguments are a JSON object. numbered: a colon and a number follow the name. single: the
    format allows no second call.
    """

    begin: str = ""
    opening: str
    middle: str
    closing: str = ""
    between: str = ""
    end: str = ""
    parameters: Parameters | None = None
    numbered: bool = False
    single: bool = False


_JSON = Shape(opening='{"name": "', middle='", "arguments": ', closing="}", between="\n")
_LIST = replace(_JSON, between=", ", end="]")
_DEEPSEEK = Shape(
    begin="<｜tool▁calls▁begin｜>",
    opening="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    closing="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
)
_SHAPES: Mapping[str, Shape] = {
    "json": _JSON,
    "hermes": replace(_JSON, opening='<tool_call>\n{"name": "', closing="}\n</tool_call>"),
    "llama3_json": replace(_JSON, middle='", "parameters": ', between="; "),
    "mistral": replace(_LIST, begin="[TOOL_CALLS]["),
    "granite": replace(_LIST, begin="<|tool_call|>["),
    "minimax_m1": replace(_JSON, begin="<tool_calls>\n", end="\n</tool_calls>"),
    "deepseek": _DEEPSEEK,
    "kimi_k2": Shape(
        begin="<|tool_calls_section_begin|>",
        opening="<|tool_call_begin|>functions.",
        middle="<|tool_call_argument_begin|>",
        closing="<|tool_call_end|>",
        end="<|tool_calls_section_end|>",
        numbered=True,
    ),
    "harmony": Shape(
        opening="<|channel|>commentary to=functions.", middle=" <|constrain|>json<|message|>", single=True
    ),
    "pythonic": Shape(
        begin="[",
        opening="",
        middle="(",
        closing=")",
        between=", ",
        end="]",
        parameters=Parameters(opening="{key}=", between=", ", bare=False),
    ),
    "qwen3_coder": Shape(
        opening="<tool_call>\n<function=",
        middle=">\n",
        closing="</function>\n</tool_call>",
        between="\n",
        parameters=Parameters(opening="<parameter={key}>\n", closing="\n</parameter>\n"),
    ),
    "glm": Shape(
        opening="<tool_call>",
        middle="\n",
        closing="</tool_call>",
        between="\n",
        parameters=Parameters(opening="<arg_key>{key}</arg_key>\n<arg_value>", closing="</arg_value>\n"),
    ),
    "minimax": Shape(
        begin="<minimax:tool_call>\n",
        opening='<invoke name="',
        middle='">\n',
        closing="</invoke>\n",
        end="</minimax:tool_call>",
        parameters=Parameters(opening='<parameter name="{key}">', closing="</parameter>\n"),
    ),
    "deepseek_v3.2": Shape(
        begin="<｜DSML｜function_calls>\n",
        opening='<｜DSML｜invoke name="',
        middle='">\n',
        closing="</｜DSML｜invoke>\n",
        end="</｜DSML｜function_calls>",
        parameters=Parameters(
            opening='<｜DSML｜parameter name="{key}" string="{text}">', closing="</｜DSML｜parameter>\n"
        ),
    ),
}


def shape_of(form: Format, template: str) -> Shape:
    """How this format writes calls. Two families have two forms, between which the template decides."""
    if form.name == "mistral" and "[ARGS]" in template:
        return Shape(opening="[TOOL_CALLS]", middle="[ARGS]")
    if form.name == "deepseek" and "```json" in template:
        opening, middle = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"
        return replace(_DEEPSEEK, opening=opening, middle=middle, closing="\n```<｜tool▁call▁end｜>", between="\n")
    return _SHAPES[form.name]
