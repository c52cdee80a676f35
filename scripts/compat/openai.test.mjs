// What applications do with the npm package openai: streams, tools, structured output, errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.DJINN_URL}/v1`, apiKey: "none", maxRetries: 0 });
const asked = {
  model: "smollm2",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  temperature: 0,
  max_tokens: 24,
};
const schema = {
  type: "object",
  properties: { is_capital: { type: "boolean" } },
  required: ["is_capital"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "find_city", description: "Looks up a city.", parameters: schema } };

test("a stream joins what the whole answer has", async () => {
  const whole = await client.chat.completions.create(asked);
  assert.match(whole.choices[0].message.content, /Paris/);
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  assert.equal(final.usage.completion_tokens, whole.usage.completion_tokens);
});

test("structured output is an object of its schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "city", strict: true, schema } };
  const answer = await client.chat.completions.parse({ ...asked, response_format });
  assert.equal(typeof JSON.parse(answer.choices[0].message.content).is_capital, "boolean");
});

test("runTools calls a function and goes on with its result", async () => {
  const seen = [];
  const runner = client.chat.completions.runTools(
    {
      ...asked,
      stream: true,
      max_tokens: 96,
      tool_choice: { type: "function", function: { name: "find_city" } },
      tools: [{
        type: "function",
        function: {
          ...tool.function,
          parse: JSON.parse,
          function: (city) => {
            seen.push(city);
            return "Paris, 2 million people";
          },
        },
      }],
    },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  assert.equal(typeof seen[0].is_capital, "boolean");
  assert.ok(runner.messages.some((message) => message.role === "tool"));
});

test("a response streams", async () => {
  const { messages, max_tokens, ...rest } = asked;
  const stream = client.responses.stream({ ...rest, input: messages[0].content, max_output_tokens: max_tokens });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  const final = await stream.finalResponse();
  assert.equal(kinds[0], "response.created");
  assert.match(final.output_text, /Paris/);
});

test("a client that leaves ends its stream", async () => {
  const stream = await client.chat.completions.create({ ...asked, max_tokens: 200, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    stream.controller.abort();
  }
  assert.equal((await client.models.list()).data[0].id, "smollm2");
});

test("an error names its field", async () => {
  const refused = client.chat.completions.create({ ...asked, temperature: 5 });
  await assert.rejects(refused, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
});
