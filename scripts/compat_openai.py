"""What applications do with the openai client, against a server: streams, tools, errors."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
model = client.models.list().data[0].id
passed = 0


def check(name, holds):
    global passed
    if not holds:
        sys.exit(f"failed: {name}")
    passed += 1


messages = [{"role": "user", "content": "What is the capital of France?"}]
whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
check("a chat answers", "Paris" in whole.choices[0].message.content)
check("usage adds up", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)

with client.chat.completions.stream(
    model=model, messages=messages, temperature=0, max_tokens=24, stream_options={"include_usage": True}
) as stream:
    kinds = {event.type for event in stream}
    final = stream.get_final_completion()
check("the stream helper joins what the whole answer has",
      final.choices[0].message.content == whole.choices[0].message.content)
check("the stream helper sees content and its end", {"content.delta", "content.done"} <= kinds)
check("the stream has the usage", final.usage == whole.usage)

answers = client.chat.completions.create(model=model, messages=messages, n=3, seed=1, max_tokens=8)
check("several answers", [choice.index for choice in answers.choices] == [0, 1, 2])

parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "find_city", "parameters": parameters}}]
call = {"id": "call_1", "type": "function", "function": {"name": "find_city", "arguments": '{"city": "Paris"}'}}
messages += [
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Paris, 2 million people"},
]
after = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0, max_tokens=16)
check("a conversation goes on after a call", after.choices[0].message is not None)

text = client.completions.create(model=model, prompt="One, two, three,", temperature=0, max_tokens=8, logprobs=2)
check("a completion has log-probabilities", len(text.choices[0].logprobs.tokens) == text.usage.completion_tokens)
chunks = client.completions.create(model=model, prompt="One, two, three,", temperature=0, max_tokens=8, stream=True)
check("a completion streams", "".join(chunk.choices[0].text for chunk in chunks) == text.choices[0].text)

for error, arguments in [
    (openai.NotFoundError, {"model": "no-such-model"}),
    (openai.BadRequestError, {"model": model, "temperature": 5}),
    (openai.BadRequestError, {"model": model, "audio": {"format": "wav", "voice": "ash"}}),
]:
    try:
        client.chat.completions.create(messages=messages[:1], **arguments)
        check(f"{error.__name__} is raised", False)
    except error as raised:
        check("an error names its field", raised.param in arguments)
print(f"{passed} checks passed")
