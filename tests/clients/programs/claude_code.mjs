// Claude Code: a task that needs a command, a new file and an edit, then a question in the same session.
// Without a file: two questions to a model that is too small for tools, and for Claude Code's own instructions.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

const [url, model, file] = process.argv.slice(2);
const binary = `claude-code-${process.platform}-${process.arch}/claude`;

function claude(...command) {
  const options = ["--output-format", "stream-json", "--verbose", "--model", model];
  const { status, stdout, stderr } = spawnSync(
    `${import.meta.dirname}/node_modules/@anthropic-ai/${binary}`,
    [...command, ...options, "--allowedTools", "Bash,Write,Edit"],
    {
      env: {
        PATH: process.env.PATH,
        HOME: process.env.HOME,
        ANTHROPIC_BASE_URL: url.replace(/\/v1$/, ""),
        ANTHROPIC_API_KEY: process.env.OPENAI_API_KEY,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
        DISABLE_AUTOUPDATER: "1",
      },
      stdio: ["ignore", "pipe", "pipe"],
      encoding: "utf8",
    },
  );
  if (status !== 0) throw new Error(stdout + stderr);
  const events = stdout.trim().split("\n").map((line) => JSON.parse(line));
  const blocks = events
    .filter((event) => event.type === "assistant")
    .flatMap((event) => event.message.content);
  const of = (type) => blocks.filter((block) => block.type === type);
  return {
    thought: of("thinking").map((block) => block.thinking),
    used: of("tool_use").map((block) => block.name),
    said: of("text").map((block) => block.text),
    result: events.at(-1).result,
    usage: events.at(-1).usage,
  };
}

function works() {
  const first = claude("-p", "Run it.");
  const second = claude("--continue", "-p", "What ran?");
  delete first.usage;
  delete second.usage;
  return [first, second, readFileSync(file, "utf8")];
}

function talks() {
  const system = "You are a helpful assistant. Answer in one short sentence.";
  const small = ["--tools", "", "--system-prompt", system];
  return [
    claude(...small, "-p", "What is the capital of France?"),
    claude(...small, "--continue", "-p", "And of Italy?"),
  ];
}

console.log(JSON.stringify(file ? works() : talks()));
