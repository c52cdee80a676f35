"""What applications do with the openai client: streams, structured output, tools, errors."""

import os

import openai
import pytest
from pydantic import BaseModel

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 24}
# One call, and room for it.
CALLING = GREEDY | {"max_tokens": 96, "tool_choice": "required", "parallel_tool_calls": False}
client = openai.OpenAI(base_url=os.environ["DJINN_URL"] + "/v1", api_key="none", max_retries=0)


class City(BaseModel):
    """A schema whose every answer is short."""

    is_capital: bool


class FindCity(BaseModel):
    """Looks up a city."""

    is_capital: bool


TOOL = openai.pydantic_function_tool(FindCity, name="find_city")


def test_chat_answers_and_counts():
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)
    assert "Paris" in whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_stream_helper_joins_what_the_whole_answer_has():
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)
    with client.chat.completions.stream(
        messages=QUESTION, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_several_answers():
    answers = client.chat.completions.create(messages=QUESTION, model=MODEL, n=3, seed=1, max_tokens=8)
    assert [choice.index for choice in answers.choices] == [0, 1, 2]


def test_several_answers_stream_apart():
    chunks = client.chat.completions.create(messages=QUESTION, model=MODEL, n=2, seed=1, max_tokens=8, stream=True)
    ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1]


def test_parse_gives_an_object():
    parsed = client.chat.completions.parse(messages=QUESTION, response_format=City, **GREEDY)
    assert isinstance(parsed.choices[0].message.parsed, City)


def test_parse_streams():
    with client.chat.completions.stream(messages=QUESTION, response_format=City, **GREEDY) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)


def test_a_demanded_call_is_parsed():
    answer = client.chat.completions.parse(messages=QUESTION, tools=[TOOL], **CALLING)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "find_city"
    assert isinstance(call.function.parsed_arguments, FindCity)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_demanded_call_streams():
    with client.chat.completions.stream(messages=QUESTION, tools=[TOOL], **CALLING) as stream:
        kinds = [event.type for event in stream]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds
    assert isinstance(call.function.parsed_arguments, FindCity)


def test_a_conversation_goes_on_after_a_call():
    call = {"id": "call_1", "type": "function", "function": {"name": "find_city", "arguments": '{"is_capital": true}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Paris, 2 million people"},
    ]
    after = client.chat.completions.create(messages=messages, tools=[TOOL], **GREEDY)
    assert after.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_a_completion_streams_and_has_logprobs():
    asked = {"prompt": "One, two, three,", **GREEDY}
    text = client.completions.create(logprobs=2, **asked)
    assert len(text.choices[0].logprobs.tokens) == text.usage.completion_tokens
    chunks = client.completions.create(stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text.choices[0].text


def test_a_response_streams_is_kept_and_goes_on():
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}
    with client.responses.stream(input="What is the capital of France?", **asked) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    assert "Paris" in first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    after = client.responses.create(input="And of Italy?", previous_response_id=first.id, **asked)
    assert after.previous_response_id == first.id and after.usage.input_tokens > first.usage.input_tokens
    assert [item.type for item in client.responses.input_items.list(after.id)][0] == "message"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_response_is_parsed():
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 24}
    parsed = client.responses.parse(input="What is the capital of France?", text_format=City, **asked)
    assert isinstance(parsed.output_parsed, City)


def test_a_response_calls():
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 96}
    asked_to_call = asked | {"tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required"}
    called = client.responses.create(input="Is Paris a capital?", parallel_tool_calls=False, **asked_to_call)
    [call] = [item for item in called.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Paris, 2 million people"}
    after = client.responses.create(input=[result], previous_response_id=called.id, **asked)
    assert after.output_text


@pytest.mark.parametrize(
    "error, arguments",
    [
        (openai.NotFoundError, {"model": "no-such-model"}),
        (openai.BadRequestError, {"model": MODEL, "temperature": 5}),
        (openai.BadRequestError, {"model": MODEL, "audio": {"format": "wav", "voice": "ash"}}),
    ],
)
def test_an_error_names_its_field(error, arguments):
    with pytest.raises(error) as raised:
        client.chat.completions.create(messages=QUESTION, **arguments)
    assert raised.value.param in arguments
