import json
from typing import Any

import pytest
from isotherm.daemon.chat_template import MAX_SOURCE, ChatTemplate
from isotherm.daemon.errors import InvalidRequestError
from isotherm.experts.errors import ModelError
from support.vocab import smollm2_metadata

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DUMP = "{{ messages | tojson }}"
HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[Any] | None = None, **kwargs: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(
        HELLO if messages is None else messages, **kwargs
    )


def seen(message: dict[str, Any]) -> dict[str, Any]:
    """The message as a template sees it."""
    return json.loads(render(DUMP, [message]))[0]


def refusal(source: str, messages: list[Any] | None = None, **kwargs: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        render(source, messages, **kwargs)
    return caught.value


def test_a_conversation_is_rendered() -> None:
    assert render(CHATML) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_the_generation_prompt_can_be_left_out() -> None:
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_the_template_of_a_real_model_is_rendered() -> None:
    text = render(smollm2_metadata()["tokenizer.chat_template"])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def test_blocks_leave_no_blank_lines_behind() -> None:
    assert render("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n") == "x\n"


def test_bos_and_eos_tokens_are_defined() -> None:
    """[34]"""
    assert render("{{ bos_token }}x{{ eos_token }}") == "<s>x</s>"


def test_tools_reach_the_template_and_an_empty_list_does_not() -> None:
    source = "{% if tools is not none %}{{ tools[0].function.name }}{% else %}none{% endif %}"
    assert render(source, tools=[{"type": "function", "function": {"name": "f"}}]) == "f"
    assert render(source, tools=[]) == "none"


def test_kwargs_reach_the_template() -> None:
    assert render("{{ enable_thinking }}", kwargs={"enable_thinking": False}) == "False"


@pytest.mark.parametrize("name", ["bos_token", "messages", "raise_exception", "tools"])
def test_kwargs_cannot_replace_what_the_server_sets(name: str) -> None:
    error = refusal(CHATML, kwargs={name: "x"})
    assert name in str(error) and error.param == "chat_template_kwargs"


def test_loop_controls_work() -> None:
    assert render("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_the_generation_tag_is_plain_output() -> None:
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhelloc"


def test_tojson_does_not_escape_html_or_unicode() -> None:
    assert render("{{ {'a': '<é&>'} | tojson }}") == '{"a": "<é&>"}'


def test_tojson_indents() -> None:
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'


def test_strftime_now_formats_the_date() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_raise_exception_becomes_the_clients_error_in_the_templates_words() -> None:
    """[34]"""
    error = refusal("{{ raise_exception('roles must alternate') }}")
    assert "roles must alternate" in str(error) and error.param == "messages"


def test_a_failing_template_becomes_the_clients_error() -> None:
    """[32]"""
    error = refusal("{{ messages[0].content + 1 }}")
    assert "can only concatenate str" in str(error) and error.param == "messages"


def test_a_model_without_a_template_points_to_completions() -> None:
    with pytest.raises(InvalidRequestError, match="/v1/completions"):
        ChatTemplate(None).render(HELLO)


def test_null_content_is_an_empty_string() -> None:
    """[32]"""
    assert seen({"role": "assistant", "content": None})["content"] == ""
    assert seen({"role": "assistant"})["content"] == ""


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert seen({"role": "user", "content": parts})["content"] == "a\nb"


def test_other_parts_are_refused_by_name() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    error = refusal(CHATML, [{"role": "user", "content": parts}])
    assert "messages[0].content[1]" in str(error) and "image_url" in str(error) and error.param == "messages"


@pytest.mark.parametrize("content", [5, {"type": "text"}, ["text"], [{"type": "text", "text": 5}]])
def test_malformed_content_is_refused(content: Any) -> None:
    assert "messages[0].content" in str(refusal(CHATML, [{"role": "user", "content": content}]))


def test_an_unknown_role_is_refused_with_the_known_ones_named() -> None:
    words = str(refusal(CHATML, [*HELLO, {"role": "wizard", "content": "x"}]))
    assert words.startswith("messages[1].role is 'wizard'; it must be one of system, developer, user, assistant, tool")


@pytest.mark.parametrize("message", ["hello", {}, {"role": None}, {"content": "x"}])
def test_a_message_without_a_role_is_refused(message: Any) -> None:
    assert "messages[1]" in str(refusal(CHATML, [*HELLO, message]))


def test_no_messages_are_refused() -> None:
    assert "at least one" in str(refusal(CHATML, []))


@pytest.mark.parametrize("calls", [[], None])
def test_empty_tool_calls_are_absent(calls: Any) -> None:
    """[33]"""
    assert "tool_calls" not in seen({"role": "assistant", "content": "x", "tool_calls": calls})


def test_tool_call_arguments_are_given_as_an_object() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    message = seen({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


@pytest.mark.parametrize("arguments", ["{broken", "[1]"])
def test_tool_call_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    message = seen({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_a_template_that_appends_the_arguments_to_a_string_gets_a_string() -> None:
    source = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}"
    for arguments in ('{"x": 1}', {"x": 1}):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        assert render(source, [{"role": "assistant", "tool_calls": [call]}]) == 'call {"x": 1}'


@pytest.mark.parametrize("calls", ["f()", ["f"]])
def test_malformed_tool_calls_are_refused(calls: Any) -> None:
    assert "messages[0].tool_calls" in str(refusal(CHATML, [{"role": "assistant", "tool_calls": calls}]))


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_given_under_both_names(name: str) -> None:
    """[35, 62]"""
    message = seen({"role": "assistant", "content": "x", name: "because"})
    assert message["reasoning"] == message["reasoning_content"] == "because"


def test_developer_is_system_unless_the_template_knows_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{# developer #}{{ messages[0].role }}", messages) == "developer"


def test_the_callers_messages_are_not_changed() -> None:
    message = {"role": "developer", "content": None, "tool_calls": []}
    render(DUMP, [message])
    assert message == {"role": "developer", "content": None, "tool_calls": []}


def test_a_template_that_does_not_compile_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="does not compile"):
        ChatTemplate("{% for %}")


def test_a_huge_template_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="limit"):
        ChatTemplate("x" * (MAX_SOURCE + 1))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ messages[0].update({'a': 1}) }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    """[69]"""
    refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ 10 ** 10000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%(a)1000000000d' % {'a': 1} }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10000000000) }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ 'a'.zfill(10000000000) }}",
        "{{ '\\t'.expandtabs(tabsize=10000000000) }}",
        "{{ messages[0].content | indent(10000000000, true) }}",
        "{{ {} | tojson(indent=10000000000) }}",
        "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=10) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    ],
)
def test_templates_cannot_ask_for_gigabytes(source: str) -> None:
    """[69]"""
    refusal(source)


@pytest.mark.parametrize("source", ["{{ 'a' | center(10000000000) }}", "{{ '%1000000000d' | format(1) }}"])
def test_filters_that_could_ask_for_gigabytes_are_absent(source: str) -> None:
    with pytest.raises(ModelError, match="No filter named"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ab' * 2 }}", "abab"),
        ("{{ 2 ** 10 }}", "1024"),
        ("{{ 'a' + 'b' }}", "ab"),
        ("{{ 7 % 4 }}", "3"),
        ("{{ '%02d' % 5 }}", "05"),
        ("{{ '{:>3}'.format(1) }}", "  1"),
        ("{{ '2024: {} %s'.format(1) % 2 }}", "2024: 1 2"),
        ("{{ 'a'.ljust(3) }}|", "a  |"),
        ("{{ 'a' | indent(2, true) }}", "  a"),
    ],
)
def test_small_uses_of_bounded_operators_work(source: str, text: str) -> None:
    assert render(source) == text
