// @anthropic-ai/sdk: a tool round trip in every way that the SDK has, an answer read by a schema, citations, batches.
// Its accumulator checks more than Python's.

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";

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

const asks = {
  create: async (messages) => [await client.messages.create(request(messages)), []],
  stream: async (messages) => {
    const deltas = [];
    const stream = client.messages.stream(request(messages)).on("text", (delta) => deltas.push(delta));
    return [await stream.finalMessage(), deltas];
  },
};
const question = { role: "user", content: "How is the weather in Rome?" };
const hello = { role: "user", content: "Hi" };
const textOf = (message) => message.content.find((block) => block.type === "text").text;

async function roundTrip(ask) {
  const messages = [question];
  const calls = [];
  for (;;) {
    const [message, deltas] = await ask(messages);
    const used = message.content.filter((block) => block.type === "tool_use");
    if (used.length === 0) {
      const text = textOf(message);
      const streamed = deltas.length > 1 && deltas.join("") === text;
      return { text, calls, streamed, counted: message.usage.output_tokens > 0 };
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
}

async function toolRunner() {
  const calls = [];
  const { name, description, input_schema: inputSchema } = weather;
  const run = (input) => {
    calls.push([name, input]);
    return getWeather(input);
  };
  const tools = [betaTool({ name, description, inputSchema, run })];
  const last = await client.beta.messages.toolRunner({ ...request([question]), tools });
  return { text: textOf(last), calls, streamed: false, counted: last.usage.output_tokens > 0 };
}

async function parse() {
  const schema = {
    type: "object",
    properties: { name: { type: "string" }, hills: { type: "integer" } },
    required: ["name", "hills"],
  };
  const message = await client.messages.parse({
    model,
    max_tokens: 1000,
    messages: [{ role: "user", content: "Describe Rome." }],
    output_config: { format: jsonSchemaOutputFormat(schema) },
  });
  return { parsed: message.parsed_output };
}

async function cite() {
  const source = { type: "text", media_type: "text/plain", data: "Rome is old. It has seven hills." };
  const content = [
    { type: "document", source, citations: { enabled: true } },
    { type: "text", text: "Quote it." },
  ];
  const told = [];
  const stream = client.messages
    .stream({ model, max_tokens: 99, messages: [{ role: "user", content }] })
    .on("citation", (citation) => told.push(citation.cited_text));
  const { citations } = (await stream.finalMessage()).content[0];
  return { told, kept: citations.map((each) => [each.type, each.cited_text]) };
}

async function all(pages) {
  const found = [];
  for await (const each of await pages) found.push(each);
  return found;
}

async function others() {
  const { batches } = client.messages;
  const count = await client.messages.countTokens({ model, messages: [hello] });
  const models = await all(client.models.list({ limit: 1 }));
  const params = { model, max_tokens: 99, messages: [hello] };
  const batch = await batches.create({ requests: [{ custom_id: "a", params }] });
  while ((await batches.retrieve(batch.id)).processing_status !== "ended") {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const results = await all(batches.results(batch.id));
  const listed = await all(batches.list());
  await batches.delete(batch.id);
  return {
    counted: count.input_tokens > 0,
    models: models.map((each) => each.id),
    results: results.map((each) => [each.custom_id, textOf(each.result.message)]),
    listed: listed.length === 1 && listed[0].id === batch.id,
    left: (await all(batches.list())).map((each) => each.id),
  };
}

const ways = {
  create: () => roundTrip(asks.create),
  stream: () => roundTrip(asks.stream),
  tool_runner: toolRunner,
  parse,
  cite,
  others,
};
console.log(JSON.stringify(await ways[way]()));
