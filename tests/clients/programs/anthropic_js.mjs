// @anthropic-ai/sdk: a tool round trip, full and streamed. Its accumulator checks more than Python's.

import Anthropic from "@anthropic-ai/sdk";

const [url, model, way] = process.argv.slice(2);
const weather = {
  name: "get_weather",
  description: "The weather in a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const getWeather = ({ city }) => (city === "Rome" ? "sunny, 21 degrees" : "unknown");

const client = new Anthropic({
  baseURL: url.replace(/\/v1$/, ""),
  apiKey: process.env.OPENAI_API_KEY,
  maxRetries: 0,
  timeout: 20_000,
});
const request = (messages) => ({
  model,
  max_tokens: 2000,
  messages,
  tools: [weather],
});

const ways = {
  create: async (messages) => [await client.messages.create(request(messages)), []],
  stream: async (messages) => {
    const deltas = [];
    const stream = client.messages.stream(request(messages)).on("text", (delta) => deltas.push(delta));
    return [await stream.finalMessage(), deltas];
  },
};

const messages = [{ role: "user", content: "How is the weather in Rome?" }];
const calls = [];
for (;;) {
  const [message, deltas] = await ways[way](messages);
  const used = message.content.filter((block) => block.type === "tool_use");
  if (used.length === 0) {
    const text = message.content.find((block) => block.type === "text").text;
    const streamed = deltas.length > 1 && deltas.join("") === text;
    console.log(JSON.stringify({ text, calls, streamed, counted: message.usage.output_tokens > 0 }));
    break;
  }
  messages.push({ role: "assistant", content: message.content });
  messages.push({
    role: "user",
    content: used.map((block) => {
      calls.push([block.name, block.input]);
      return { type: "tool_result", tool_use_id: block.id, content: getWeather(block.input) };
    }),
  });
}
