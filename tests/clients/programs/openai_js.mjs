// openai-node: a tool round trip, full and streamed. Its accumulators check more than any other client's.

import OpenAI from "openai";

const [url, model, api, way] = process.argv.slice(2);
const weather = {
  name: "get_weather",
  description: "The weather in a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};
const getWeather = ({ city }) => (city === "Rome" ? "sunny, 21 degrees" : "unknown");

const client = new OpenAI({ baseURL: url, maxRetries: 0, timeout: 20_000 });

const chat = {
  request: (messages) => ({ model, messages, tools: [{ type: "function", function: weather }] }),
  async create(messages) {
    return [await client.chat.completions.create(this.request(messages)), []];
  },
  async stream(messages) {
    const usage = { stream_options: { include_usage: true } };
    const stream = client.chat.completions.stream({ ...this.request(messages), ...usage });
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    return [await stream.finalChatCompletion(), deltas];
  },
  text: (completion) => completion.choices[0].message.content,
  tokens: (completion) => completion.usage.completion_tokens,
  said: (completion) => [completion.choices[0].message],
  calls: (completion) =>
    (completion.choices[0].message.tool_calls ?? []).map((call) => ({ id: call.id, ...call.function })),
  result: (call, content) => ({ role: "tool", tool_call_id: call.id, content }),
};

const responses = {
  request: (input) => ({ model, input, tools: [{ type: "function", ...weather }], store: false }),
  async create(input) {
    return [await client.responses.create(this.request(input)), []];
  },
  async stream(input) {
    const stream = client.responses.stream(this.request(input));
    const deltas = [];
    stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
    return [await stream.finalResponse(), deltas];
  },
  text: (response) => response.output_text,
  tokens: (response) => response.usage.output_tokens,
  said: (response) => response.output,
  calls: (response) =>
    response.output
      .filter((item) => item.type === "function_call")
      .map((item) => ({ id: item.call_id, name: item.name, arguments: item.arguments })),
  result: (call, output) => ({ type: "function_call_output", call_id: call.id, output }),
};

async function roundTrip(kind) {
  const history = [{ role: "user", content: "How is the weather in Rome?" }];
  const calls = [];
  for (;;) {
    const [answer, deltas] = await kind[way](history);
    const asked = kind.calls(answer);
    if (asked.length === 0) {
      const text = kind.text(answer);
      const streamed = deltas.length > 1 && deltas.join("") === text;
      return { text, calls, streamed, counted: kind.tokens(answer) > 0 };
    }
    history.push(...kind.said(answer));
    for (const call of asked) {
      const input = JSON.parse(call.arguments);
      calls.push([call.name, input]);
      history.push(kind.result(call, getWeather(input)));
    }
  }
}

console.log(JSON.stringify(await roundTrip({ chat, responses }[api])));
