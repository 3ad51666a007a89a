// The view of decisions: questions about a text, and the probability of each option as a bar.

import { html, useState, useStored } from "./html.js";
import { curl } from "./apis.js";
import { json, key } from "./api.js";

const PATH = "v1/decisions";
const KINDS = { choice: "Choice", score: "Scale", predicate: "Yes or no" };
const MANY = 0.5; // below this label mass the model wants to say something else
const EXAMPLE = {
  text: "I was charged twice for my order, and nobody answers. Please fix this today!",
  questions: [
    { kind: "choice", asked: "Which team should handle this?", options: "billing: payments and refunds\nshipping: parcels\nsales" },
    { kind: "score", asked: "How urgent is it?", options: "can wait\nthis week\ntoday" },
    { kind: "predicate", asked: "Is the customer angry?", options: "" },
  ],
};

// The options of a question: one a line, with its meaning after a colon.
function readOptions(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const [name, ...rest] = line.split(":");
    const description = rest.join(":").trim();
    return description ? { name: name.trim(), description } : { name: name.trim() };
  });
}

function readQuestion({ kind, asked, options }) {
  const named = readOptions(options);
  if (kind === "predicate") return { type: kind, instructions: asked };
  if (kind === "score") return { type: kind, instructions: asked, levels: named.map(({ name, ...rest }) => ({ label: name, ...rest })) };
  return { type: kind, instructions: asked, choices: named.map(({ name, ...rest }) => ({ value: name, ...rest })) };
}

export function Decisions({ models, model, choose }) {
  const [form, setForm] = useStored("decisions", EXAMPLE);
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  const change = (fields) => setForm({ ...form, ...fields });
  const questions = form.questions;
  const setQuestion = (index, fields) => change({ questions: questions.map((each, at) => (at === index ? { ...each, ...fields } : each)) });
  const body = { model, input: form.text, questions: questions.map(readQuestion), x_diagnostics: true };
  const decide = async (event) => {
    event.preventDefault();
    setRunning(true);
    try {
      setResult({ asked: questions, ...(await json(PATH, { body })) });
      setError(null);
    } catch (failure) {
      setError(failure);
    }
    setRunning(false);
  };
  return html`<section class="view decisions" aria-labelledby="decisions-title">
    <h2 id="decisions-title">Decisions</h2>
    <p>Ask about a text. The model answers with the probability of each option, and writes nothing.</p>
    <div class="deciding"><form onSubmit=${decide} aria-label="Questions about a text">
      <label>Model that decides <select value=${model} onChange=${(event) => choose(event.target.value)}>
        ${(models ?? []).filter((each) => each.decides !== false).map((each) => html`<option key=${each.id} value=${each.id}>${each.id}</option>`)}
      </select></label>
      <label>Text <textarea rows="4" value=${form.text} onInput=${(event) => change({ text: event.target.value })}></textarea></label>
      ${questions.map((question, index) => html`<${Question} key=${index} number=${index + 1} question=${question}
        change=${(fields) => setQuestion(index, fields)}
        remove=${questions.length > 1 && (() => change({ questions: questions.filter((_, at) => at !== index) }))} />`)}
      <div class="bar">
        <button type="button" onClick=${() => change({ questions: [...questions, { kind: "predicate", asked: "", options: "" }] })}>Add a question</button>
        <button type="button" onClick=${() => setForm(EXAMPLE)}>Example</button>
        <span class="grow"></span>
        <button class="main" disabled=${running || !model}>${running ? "Deciding …" : "Decide"}</button>
      </div>
    </form>
    <div>
      ${error && html`<p class="error" role="alert">${error.message}</p>`}
      <div role="status" aria-live="polite">${result && html`<${Answers} result=${result} />`}</div>
    </div></div>
    <details class="code"><summary>This request as code</summary><pre tabindex="0">${curl(PATH, body, Boolean(key.get()))}</pre></details>
  </section>`;
}

function Question({ number, question, change, remove }) {
  return html`<fieldset><legend>Question ${number}</legend>
    <div class="bar">
      <label>Kind <select value=${question.kind} onChange=${(event) => change({ kind: event.target.value })}>
        ${Object.entries(KINDS).map(([kind, name]) => html`<option key=${kind} value=${kind}>${name}</option>`)}
      </select></label>
      <span class="grow"></span>
      ${remove && html`<button type="button" onClick=${remove} aria-label=${`Remove question ${number}`}>×</button>`}
    </div>
    <label>Question <input value=${question.asked} onInput=${(event) => change({ asked: event.target.value })} /></label>
    ${question.kind !== "predicate" && html`<label>${question.kind === "score" ? "Levels, the lowest first" : "Options"}, one a line; what one means after a colon
      <textarea rows="3" spellcheck=${false} value=${question.options} onInput=${(event) => change({ options: event.target.value })}></textarea></label>`}
  </fieldset>`;
}

function Answers({ result }) {
  return html`${result.answers.map((answer, index) => html`<${Answer} key=${index} answer=${answer} asked=${result.asked[index].asked} known=${result.x_diagnostics[index]} />`)}
    <p class="about">${result.model}, ${result.usage.input_tokens} tokens, ${result.usage.input_tokens_details.cached_tokens} of them cached</p>`;
}

function Answer({ answer, asked, known }) {
  const rows = answer.type === "predicate"
    ? [["yes", answer.probability], ["no", 1 - answer.probability]]
    : answer.probabilities.map((each) => [String(each.label ?? each.value), each.probability]);
  const facts = [
    answer.score !== undefined && `score ${answer.score.toFixed(2)}`,
    answer.confidence !== undefined && `confidence ${answer.confidence.toFixed(2)}`,
    known.label_mass !== null && `label mass ${known.label_mass.toFixed(2)}`,
    known.orders > 1 && `${known.orders} orders`,
    known.calibration && `calibrated by ${known.calibration.name}`,
  ].filter(Boolean);
  return html`<article class="turn answer" aria-label=${asked}><h3>${asked}</h3>
    <dl class="bars">${rows.map(([name, probability]) => html`<div key=${name}><dt>${name}</dt>
      <dd><meter min="0" max="1" value=${probability} aria-label=${name}></meter> <span>${(100 * probability).toFixed(1)} %</span></dd></div>`)}</dl>
    ${known.label_mass !== null && known.label_mass < MANY && html`<p class="doubt">The model wants to say something else: it answers with one of the options with probability ${known.label_mass.toFixed(2)} only.</p>`}
    ${known.truncated && html`<p class="doubt">Some of these are upper bounds: the server of the model did not tell them.</p>`}
    <footer class="facts-line">${facts.join(" · ")}</footer></article>`;
}
