// The three APIs: a conversation as the page keeps it → a request, and the events of its stream → an answer.
//
// A conversation is a list of turns: {role: "user", text, images}, {role: "assistant", …answer},
// {role: "tool", results: [{id, name, text}]}. An answer is {id, text, reasoning, calls, finish, usage, error,
// missed}; a call is {id, name, arguments}, whose arguments are JSON text; `usage` is {input, output, reasoning} in tokens,
// where the reasoning is a part of the output; `missed` says which part of the request kept so many tokens from being in
// the engine's cache: {tokens, part}.

export const newAnswer = () => ({ role: "assistant", id: "", text: "", reasoning: "", calls: [], finish: null, usage: null, error: null });

// Tools as people paste them, in the form of any of the APIs, alone or in a list.
export function readTools(text) {
  if (!text.trim()) return [];
  const given = JSON.parse(text);
  return (Array.isArray(given) ? given : [given]).map((each) => {
    const tool = each.function ?? each;
    if (typeof tool.name !== "string") throw new Error("A tool needs a name.");
    return {
      name: tool.name,
      description: tool.description,
      parameters: tool.parameters ?? tool.input_schema ?? { type: "object", properties: {} },
    };
  });
}

const set = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null && value !== ""));
const parsed = (text) => {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return {};
  }
};
const plural = (list) => (list.length ? list : undefined);

const chat = {
  name: "Chat Completions",
  path: "v1/chat/completions",
  body(settings, turns) {
    const { tools, schema } = settings;
    return set({
      model: settings.model,
      messages: [...(settings.system ? [{ role: "system", content: settings.system }] : []), ...turns.flatMap(chat.message)],
      stream: true,
      stream_options: { include_usage: true },
      temperature: settings.temperature,
      top_p: settings.top_p,
      max_completion_tokens: settings.max_tokens,
      reasoning_effort: settings.effort,
      tools: plural(tools.map((tool) => ({ type: "function", function: tool }))),
      response_format: schema && { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
    });
  },
  message(turn) {
    if (turn.role === "tool") return turn.results.map((each) => ({ role: "tool", tool_call_id: each.id, content: each.text }));
    if (turn.role === "assistant") {
      const calls = turn.calls.map((each) => ({ id: each.id, type: "function", function: { name: each.name, arguments: each.arguments } }));
      return [set({ role: "assistant", content: turn.text || (calls.length ? undefined : ""), tool_calls: plural(calls) })];
    }
    const images = turn.images.map((url) => ({ type: "image_url", image_url: { url } }));
    return [{ role: "user", content: images.length ? [{ type: "text", text: turn.text }, ...images] : turn.text }];
  },
  take(answer, event) {
    answer.id ||= event.id ?? "";
    if (event.error) answer.error = event.error.message;
    if (event.usage) answer.usage = { input: event.usage.prompt_tokens, output: event.usage.completion_tokens, reasoning: event.usage.completion_tokens_details?.reasoning_tokens };
    const choice = event.choices?.[0];
    if (!choice) return;
    answer.finish = choice.finish_reason ?? answer.finish;
    answer.text += choice.delta.content ?? "";
    answer.reasoning += choice.delta.reasoning_content ?? "";
    for (const part of choice.delta.tool_calls ?? []) {
      const call = (answer.calls[part.index] ??= { id: part.id, name: "", arguments: "" });
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
    }
  },
};

// The id of the last answer: the server compares the prompt of the next one with its prompt.
const before = (turns) => turns.findLast((turn) => turn.role === "assistant" && turn.id)?.id;

const responses = {
  name: "Responses",
  path: "v1/responses",
  body(settings, turns) {
    const { tools, schema } = settings;
    return set({
      model: settings.model,
      instructions: settings.system,
      input: turns.flatMap(responses.items),
      stream: settings.background ? undefined : true,
      store: Boolean(settings.background),
      background: settings.background || undefined,
      temperature: settings.temperature,
      top_p: settings.top_p,
      max_output_tokens: settings.max_tokens,
      reasoning: settings.effort && { effort: settings.effort },
      tools: plural(tools.map((tool) => ({ type: "function", ...tool }))),
      text: schema && { format: { type: "json_schema", name: "answer", strict: true, schema } },
      prompt_cache_options: before(turns) && { comparison_response_id: before(turns) },
    });
  },
  items(turn) {
    if (turn.role === "tool") return turn.results.map((each) => ({ type: "function_call_output", call_id: each.id, output: each.text }));
    if (turn.role === "assistant") {
      const calls = turn.calls.map((each) => ({ type: "function_call", call_id: each.id, name: each.name, arguments: each.arguments }));
      return [...(turn.text ? [{ role: "assistant", content: turn.text }] : []), ...calls];
    }
    const images = turn.images.map((url) => ({ type: "input_image", image_url: url }));
    return [{ role: "user", content: images.length ? [{ type: "input_text", text: turn.text }, ...images] : turn.text }];
  },
  take(answer, event) {
    const { type, response } = event;
    if (response) {
      answer.id ||= response.id;
      if (response.usage) answer.usage = { input: response.usage.input_tokens, output: response.usage.output_tokens, reasoning: response.usage.output_tokens_details?.reasoning_tokens };
      if (response.status !== "in_progress" && response.status !== "queued") answer.finish = response.incomplete_details?.reason ?? response.status;
      if (response.error) answer.error = response.error.message;
      const found = response.prompt_cache_diagnostics;
      if (found?.type === "cache_miss") answer.missed = { tokens: found.cache_missed_tokens, part: found.part };
    }
    if (type === "error") answer.error = event.message ?? event.error?.message;
    if (type === "response.output_text.delta") answer.text += event.delta;
    if (type === "response.reasoning_text.delta" || type === "response.reasoning.delta") answer.reasoning += event.delta;
    if (type === "response.output_item.added" && event.item.type === "function_call")
      answer.calls.push({ item: event.item.id, id: event.item.call_id, name: event.item.name, arguments: "" });
    if (type === "response.function_call_arguments.delta")
      answer.calls.find((call) => call.item === event.item_id).arguments += event.delta;
  },
};

const messages = {
  name: "Messages",
  path: "v1/messages",
  body(settings, turns) {
    const { tools, schema } = settings;
    const reasons = settings.effort && settings.effort !== "none"; // without `thinking` this API has none
    const output = set({ effort: reasons ? settings.effort : undefined, format: schema && { type: "json_schema", schema } });
    return set({
      model: settings.model,
      max_tokens: settings.max_tokens ?? 1024,
      system: settings.system,
      messages: turns.map(messages.message),
      stream: true,
      temperature: settings.temperature === null ? undefined : Math.min(settings.temperature, 1),
      top_p: settings.top_p,
      thinking: reasons ? { type: "adaptive" } : undefined,
      output_config: Object.keys(output).length ? output : undefined,
      tools: plural(tools.map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters }))),
      diagnostics: before(turns) && { previous_message_id: before(turns) },
    });
  },
  message(turn) {
    if (turn.role === "tool")
      return { role: "user", content: turn.results.map((each) => ({ type: "tool_result", tool_use_id: each.id, content: each.text })) };
    if (turn.role === "assistant") {
      const calls = turn.calls.map((each) => ({ type: "tool_use", id: each.id, name: each.name, input: parsed(each.arguments) }));
      return { role: "assistant", content: calls.length ? [...(turn.text ? [{ type: "text", text: turn.text }] : []), ...calls] : turn.text };
    }
    const images = turn.images.map((url) => {
      const [, type, data] = /^data:([^;]+);base64,(.*)$/s.exec(url);
      return { type: "image", source: { type: "base64", media_type: type, data } };
    });
    return { role: "user", content: images.length ? [...images, { type: "text", text: turn.text }] : turn.text };
  },
  take(answer, event) {
    const { type, delta } = event;
    if (type === "error") answer.error = event.error.message;
    if (type === "message_start") {
      answer.id = event.message.id;
      answer.usage = { input: event.message.usage.input_tokens, output: 0 };
      answer.blocks = {};
      const reason = event.message.diagnostics?.cache_miss_reason;
      if (reason?.part) answer.missed = { tokens: reason.cache_missed_input_tokens, part: reason.part };
    }
    if (type === "content_block_start" && event.content_block.type === "tool_use") {
      const call = { id: event.content_block.id, name: event.content_block.name, arguments: "" };
      answer.blocks[event.index] = call;
      answer.calls.push(call);
    }
    if (type === "content_block_delta") {
      answer.text += delta.text ?? "";
      answer.reasoning += delta.thinking ?? "";
      if (delta.partial_json) answer.blocks[event.index].arguments += delta.partial_json;
    }
    if (type === "message_delta") {
      answer.finish = delta.stop_reason;
      answer.usage = { input: event.usage.input_tokens ?? answer.usage.input, output: event.usage.output_tokens, reasoning: event.usage.output_tokens_details?.thinking_tokens };
    }
  },
};

export const APIS = { chat, responses, messages };

// The same request for a terminal and for a program.

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export const asCurl = (api, body, keyed) => curl(APIS[api].path, body, keyed);

// A request to this path for curl, which takes its key from a variable.
export function curl(path, body, keyed) {
  const url = new URL(path, document.baseURI);
  return [
    `curl -N ${url}`,
    `  -H 'content-type: application/json'`,
    ...(keyed ? [`  -H "authorization: Bearer $ANTIPHON_API_KEY"`] : []),
    `  -d ${quoted(JSON.stringify(body, null, 2))}`,
  ].join(" \\\n");
}

function literal(value, indent) {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const entries = Array.isArray(value)
    ? value.map((each) => inner + literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return entries.length ? `${open}\n${entries.join(",\n")},\n${indent}${close}` : open + close;
}

export function asPython(api, body, keyed) {
  const own = keyed ? `os.environ["ANTIPHON_API_KEY"]` : `"none"`;
  const [library, client, call, base] = {
    chat: ["openai", "OpenAI", "chat.completions.create", "v1"],
    responses: ["openai", "OpenAI", "responses.create", "v1"],
    messages: ["anthropic", "Anthropic", "messages.create", "."],
  }[api];
  const url = String(new URL(base, document.baseURI)).replace(/\/$/, "");
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  const reading = body.stream ? ["for event in answer:", "    print(event)"] : ["print(answer)"];
  return [
    ...(keyed ? ["import os", ""] : []),
    `from ${library} import ${client}`,
    "",
    `client = ${client}(base_url=${JSON.stringify(url)}, api_key=${own})`,
    `answer = client.${call}(`,
    ...fields,
    ")",
    ...reading,
    "",
  ].join("\n");
}
