// Codex CLI: a task that needs a command, then a question in the same session.

import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";

const [url, model] = process.argv.slice(2);
const home = `${process.cwd()}/codex`;
mkdirSync(home);
writeFileSync(
  `${home}/config.toml`,
  `model = "${model}"
model_provider = "antiphon"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.antiphon]
name = "Antiphon"
base_url = "${url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`,
);

function codex(...command) {
  const binary = `${import.meta.dirname}/node_modules/.bin/codex`;
  const { status, stdout, stderr } = spawnSync(binary, ["exec", ...command], {
    env: { ...process.env, CODEX_HOME: home },
    stdio: ["ignore", "pipe", "pipe"],
    encoding: "utf8",
  });
  if (status !== 0) throw new Error(stdout + stderr);
  const events = stdout.trim().split("\n").map((line) => JSON.parse(line));
  const items = events.filter((event) => event.type === "item.completed").map((event) => event.item);
  const ran = items.filter((item) => item.type === "command_execution");
  const said = items.filter((item) => item.type === "agent_message");
  return {
    ran: ran.map((item) => [item.exit_code, item.aggregated_output]),
    said: said.map((item) => item.text),
    counted: events.at(-1).usage.output_tokens > 0,
  };
}

const first = codex("--skip-git-repo-check", "--json", "Run it.");
const second = codex("resume", "--last", "--skip-git-repo-check", "--json", "What ran?");
console.log(JSON.stringify([first, second]));
