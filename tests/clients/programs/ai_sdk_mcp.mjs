// Vercel's AI SDK: a tool of an MCP server that OpenAI's provider names, whose call is approved, full and streamed.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false; // stdout is for the fact
const [url, name, server, way] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: url, apiKey: process.env.OPENAI_API_KEY });

const tools = {
  mcp: openai.tools.mcp({ serverLabel: "sums", serverUrl: server, requireApproval: "always" }),
};

async function ask(messages) {
  const request = { model: openai.responses(name), messages, tools, stopWhen: stepCountIs(4), maxRetries: 0 };
  if (way !== "streamed") return generateText(request);
  const onError = ({ error }) => {
    throw error;
  };
  const result = streamText({ ...request, onError });
  for await (const _ of result.fullStream);
  return { text: await result.text, content: await result.content, response: await result.response };
}

const messages = [{ role: "user", content: "2 + 3?" }];
const first = await ask(messages);
const requests = first.content.filter((part) => part.type === "tool-approval-request");
const content = requests.map((part) => ({
  type: "tool-approval-response",
  approvalId: part.approvalId,
  approved: true,
  providerExecuted: true,
}));
const second = await ask([...messages, ...first.response.messages, { role: "tool", content }]);
const ran = second.content.filter((part) => part.type === "tool-result").map((part) => part.output.output);
const asked = requests.map(({ toolCall }) => ["sums", toolCall.toolName.split(".").at(-1), toolCall.input]);
console.log(JSON.stringify({ text: second.text, asked, ran }));
