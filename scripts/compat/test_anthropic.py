"""What applications do with the anthropic client: messages, streams, tools, token counts, errors."""

import os

import anthropic
import pytest

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# The client knows no temperature; the API does.
ASKED = {"model": MODEL, "max_tokens": 24, "extra_body": {"temperature": 0}}
TOOL = {
    "name": "find_city",
    "description": "Looks up a city.",
    "input_schema": {
        "type": "object",
        "properties": {"is_capital": {"type": "boolean"}},
        "required": ["is_capital"],
        "additionalProperties": False,
    },
}
client = anthropic.Anthropic(base_url=os.environ["DJINN_URL"], api_key="none", max_retries=0)


def test_a_message_is_answered():
    answer = client.messages.create(messages=QUESTION, **ASKED)
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_the_stream_helper_joins_what_the_whole_answer_has():
    whole = client.messages.create(messages=QUESTION, **ASKED)
    with client.messages.stream(messages=QUESTION, **ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_tokens_are_counted_as_they_are_used():
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be short.")
    answer = client.messages.create(messages=QUESTION, system="Be short.", **ASKED)
    cached = (answer.usage.cache_read_input_tokens or 0) + (answer.usage.cache_creation_input_tokens or 0)
    assert counted.input_tokens == answer.usage.input_tokens + cached


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "find_city"}])
def test_a_demanded_call_is_answered(choice):
    # One call, and room for it.
    choice = choice | {"disable_parallel_tool_use": True}
    asked = ASKED | {"max_tokens": 96}
    with client.messages.stream(messages=QUESTION, tools=[TOOL], tool_choice=choice, **asked) as stream:
        kinds = [event.type for event in stream]
        called = stream.get_final_message()
    [use] = [block for block in called.content if block.type == "tool_use"]
    assert "input_json" in kinds
    assert use.name == "find_city" and isinstance(use.input["is_capital"], bool)
    assert called.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Paris, 2 million people"}
    messages = [*QUESTION, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(messages=messages, **ASKED)
    assert after.content[0].type == "text"


@pytest.mark.parametrize(
    "error, arguments",
    [
        (anthropic.NotFoundError, {"model": "no-such-model", "max_tokens": 8}),
        (anthropic.BadRequestError, {"model": MODEL, "max_tokens": 0}),
    ],
)
def test_an_error_has_its_class(error, arguments):
    with pytest.raises(error) as raised:
        client.messages.create(messages=QUESTION, **arguments)
    assert raised.value.body["error"]["type"] in ("not_found_error", "invalid_request_error")
