// Codex CLI: one question after the other in the same session, with what it did.
//
// `way` is how it is told of the server: "custom" as a provider of its own; "command" as one whose key a command
// prints, whose catalogue it reads; "openai" in the place of OpenAI, to which it speaks by WebSocket. `more` is further
// configuration.

import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";

const [url, model, way, more, ...questions] = process.argv.slice(2);
const home = `${process.cwd()}/codex`;
const ways = {
  custom: [
    `model_provider = "antiphon"`,
    `[model_providers.antiphon]
name = "Antiphon"
base_url = "${url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0`,
  ],
  command: [
    `model_provider = "antiphon"`,
    `[model_providers.antiphon]
name = "Antiphon"
base_url = "${url}"
wire_api = "responses"

[model_providers.antiphon.auth]
command = "printenv"
args = ["OPENAI_API_KEY"]`,
  ],
  openai: [`openai_base_url = "${url}"`, ""],
};
const [option, table] = ways[way];
mkdirSync(home);
writeFileSync(
  `${home}/config.toml`,
  `model = "${model}"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
${option}
${more}

[analytics]
enabled = false

${table}
`,
);

function codex(...command) {
  const binary = `${import.meta.dirname}/node_modules/.bin/codex`;
  const { status, stdout, stderr } = spawnSync(binary, ["exec", ...command], {
    env: { ...process.env, CODEX_HOME: home, CODEX_API_KEY: process.env.OPENAI_API_KEY },
    stdio: ["ignore", "pipe", "pipe"],
    encoding: "utf8",
  });
  if (status !== 0) throw new Error(stdout + stderr);
  const events = stdout.trim().split("\n").map((line) => JSON.parse(line));
  const items = events.filter((event) => event.type === "item.completed").map((event) => event.item);
  const of = (type) => items.filter((item) => item.type === type);
  return {
    ran: of("command_execution").map((item) => [item.exit_code, item.aggregated_output]),
    called: of("mcp_tool_call").map((item) => [item.tool, item.arguments, item.status]),
    changed: of("file_change").flatMap((item) => item.changes.map(({ path, kind }) => [kind, path])),
    said: of("agent_message").map((item) => item.text),
    warned: of("error").map((item) => item.message),
    counted: events.at(-1).usage.output_tokens > 0,
  };
}

const options = ["--skip-git-repo-check", "--json"];
const answers = questions.map((question, index) =>
  codex(...(index ? ["resume", "--last"] : []), ...options, question),
);
console.log(JSON.stringify(answers));
