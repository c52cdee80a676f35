// What applications do with @ai-sdk/openai-compatible: text, streams, tools, objects.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import assert from "node:assert/strict";
import { test } from "node:test";

const djinn = createOpenAICompatible({
  name: "djinn",
  baseURL: `${process.env.DJINN_URL}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = {
  model: djinn("smollm2"),
  prompt: "What is the capital of France?",
  temperature: 0,
  maxOutputTokens: 24,
  maxRetries: 0,
};
const schema = jsonSchema({
  type: "object",
  properties: { is_capital: { type: "boolean" } },
  required: ["is_capital"],
  additionalProperties: false,
});
const find_city = tool({
  description: "Looks up a city.",
  inputSchema: schema,
  execute: async ({ is_capital }) => ({ name: "Paris", is_capital }),
});

test("a text is generated and counted", async () => {
  const { text, usage } = await generateText(asked);
  assert.match(text, /Paris/);
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
});

test("a text streams", async () => {
  const result = streamText(asked);
  let text = "";
  for await (const piece of result.textStream) text += piece;
  assert.match(text, /Paris/);
  assert.ok((await result.usage).outputTokens > 0);
});

test("an object obeys its schema", async () => {
  const { output } = await generateText({ ...asked, output: Output.object({ schema }) });
  assert.equal(typeof output.is_capital, "boolean");
});

test("an agent calls a tool and gets its result", async () => {
  const { steps } = await generateText({
    ...asked,
    maxOutputTokens: 96,
    tools: { find_city },
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" }),
  });
  assert.equal(steps[0].toolResults[0].output.name, "Paris");
  assert.equal(steps.length, 2);
});

test("a call streams", async () => {
  const toolChoice = { type: "tool", toolName: "find_city" };
  const result = streamText({ ...asked, maxOutputTokens: 96, tools: { find_city }, toolChoice });
  const kinds = [];
  for await (const part of result.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("tool-call") && kinds.includes("tool-result"), kinds.join());
});
