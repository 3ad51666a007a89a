// Vercel's AI SDK: a tool loop, full and streamed, an object, and an image, through each provider that can speak to us.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // stdout is for the fact
const [url, name, provider, way] = process.argv.slice(2);
const apiKey = process.env.OPENAI_API_KEY;

const openai = createOpenAI({ baseURL: url, apiKey });
const model = {
  anthropic: () => createAnthropic({ baseURL: url, apiKey })(name),
  "openai.chat": () => openai.chat(name),
  "openai.responses": () => openai.responses(name),
  "openai-compatible": () =>
    createOpenAICompatible({
      name: "antiphon",
      baseURL: url,
      apiKey,
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(name),
  "open-responses": () =>
    createOpenResponses({ name: "antiphon", url: `${url}/responses`, apiKey })(name),
}[provider]();

const calls = [];
const request = {
  model,
  prompt: "How is the weather in Rome?",
  tools: {
    get_weather: tool({
      description: "The weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: (input) => {
        calls.push(["get_weather", input]);
        return input.city === "Rome" ? "sunny, 21 degrees" : "unknown";
      },
    }),
  },
  stopWhen: stepCountIs(4),
  maxRetries: 0,
};

async function generate() {
  const { text, totalUsage } = await generateText(request);
  return { text, calls, streamed: false, counted: totalUsage.outputTokens > 0 };
}

async function stream() {
  const onError = ({ error }) => {
    throw error;
  };
  const result = streamText({ ...request, onError });
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  const text = await result.text; // that of the last step; the pieces are of every step
  const streamed = pieces.length > 1 && pieces.join("").endsWith(text);
  return { text, calls, streamed, counted: (await result.totalUsage).outputTokens > 0 };
}

async function object() {
  const city = z.object({ name: z.string(), hills: z.number().int() });
  const output = Output.object({ schema: city });
  return { parsed: (await generateText({ model, prompt: "Describe Rome.", output, maxRetries: 0 })).output };
}

async function image() {
  const png =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const content = [
    { type: "text", text: "What is this?" },
    { type: "image", image: png, mediaType: "image/png" },
  ];
  const { text } = await generateText({ model, messages: [{ role: "user", content }], maxRetries: 0 });
  return { text };
}

console.log(JSON.stringify(await { generate, stream, object, image }[way]()));
