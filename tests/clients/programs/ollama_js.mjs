// ollama-js: a tool round trip, full and streamed, an answer of a schema, and all the rest.

import { Ollama } from "ollama";

const [url, model, way] = process.argv.slice(2);
const host = url.replace(/\/v1$/, "");
const client = new Ollama({ host, headers: { Authorization: `Bearer ${process.env.OPENAI_API_KEY}` } });
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
const getWeather = ({ city }) => (city === "Rome" ? "sunny, 21 degrees" : "unknown");

async function streamed(messages) {
  const deltas = [];
  const message = { role: "assistant", content: "", thinking: "", tool_calls: [] };
  let last;
  for await (const part of await client.chat({ model, messages, tools, stream: true })) {
    message.content += part.message.content;
    message.thinking += part.message.thinking ?? "";
    message.tool_calls.push(...(part.message.tool_calls ?? []));
    if (part.message.content) deltas.push(part.message.content);
    last = part;
  }
  return [{ ...last, message }, deltas];
}

async function roundTrip(ask) {
  const messages = [{ role: "user", content: "How is the weather in Rome?" }];
  const calls = [];
  for (;;) {
    const [answer, deltas] = await ask(messages);
    const { message } = answer;
    messages.push(message);
    if (!message.tool_calls?.length) {
      const whole = deltas.join("") === message.content;
      const counted = answer.eval_count > 0 && answer.total_duration > 0;
      return { text: message.content, calls, streamed: deltas.length > 1 && whole, counted };
    }
    for (const { function: { name, arguments: given } } of message.tool_calls) {
      calls.push([name, given]);
      messages.push({ role: "tool", tool_name: name, content: getWeather(given) });
    }
  }
}

const ways = {
  chat: () => roundTrip(async (messages) => [await client.chat({ model, messages, tools }), []]),
  stream: () => roundTrip(streamed),
  async schema() {
    const properties = { name: { type: "string" }, hills: { type: "integer" } };
    const format = { type: "object", properties, required: ["name", "hills"] };
    const messages = [{ role: "user", content: "Describe Rome." }];
    return { parsed: JSON.parse((await client.chat({ model, messages, format })).message.content) };
  },
  async others() {
    const shown = await client.show({ model });
    const refused = await client.pull({ model: "nobody" }).catch((error) => error.status_code);
    return {
      models: (await client.list()).models.map(({ name }) => name),
      running: (await client.ps()).models.map(({ name }) => name),
      tools: shown.capabilities.includes("tools"),
      vectors: (await client.embed({ model, input: ["a", "b"] })).embeddings.length,
      pulled: (await client.pull({ model })).status,
      version: typeof (await client.version()).version,
      text: (await client.generate({ model, prompt: "Hi" })).response,
      refused,
    };
  },
};

console.log(JSON.stringify(await ways[way]()));
