// The record of an answer: its prompt, the raw text of the model, and the events decoded from it.

import { html, useEffect, useState } from "./html.js";
import { json } from "./api.js";

const visible = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥");
const inline = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥");

// The probability of a token as one of ten colours, from probable to improbable.
const colour = (logprob) => (logprob === null ? "none" : Math.min(9, Math.floor((1 - Math.exp(logprob)) * 10)));
const percent = (logprob) => (logprob === null ? "unknown" : `${(Math.exp(logprob) * 100).toFixed(1)} %`);

export function AnswerRecord({ id, close }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const load = () => {
    setError(null);
    json(`v1/debug/${encodeURIComponent(id)}`).then(setFound, setError);
  };
  useEffect(() => {
    setFound(null);
    load();
  }, [id]);
  return html`<aside class="record" aria-labelledby="record-title">
    <header>
      <h2 id="record-title" tabindex="-1" ref=${(each) => each && !each.dataset.seen && ((each.dataset.seen = "1"), each.focus())}>Details</h2>
      <code class="id">${id}</code>
      <span class="grow"></span>
      <button onClick=${load}>Refresh</button>
      <button onClick=${close} aria-label="Close the details">Close</button>
    </header>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${!found && !error && html`<p role="status">Loading …</p>`}
    ${found && html`<${Summary} found=${found} />
      ${found.generations.map((each, index) => html`<${Generation} key=${index} each=${each} index=${index} many=${found.generations.length > 1} />`)}`}
  </aside>`;
}

function Summary({ found }) {
  const verdicts = [...found.generations.flatMap((each) => each.verdicts), ...found.unmet];
  const facts = { model: found.served_model ?? found.model, dialect: found.dialect, finish: found.finish, request: found.request_id };
  return html`<dl class="facts">
      ${Object.entries(facts).filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
    <section aria-label="Verdicts">
      <h3>Verdicts</h3>
      ${verdicts.length
        ? html`<ul class="verdicts">${verdicts.map((each, index) => html`<li key=${index}>${each}</li>`)}</ul>`
        : html`<p class="good">The markup has no errors, and all demands are met.</p>`}
    </section>`;
}

function Generation({ each, index, many }) {
  return html`<section class="generation" aria-label=${`Generation ${index + 1}`}>
    ${many && html`<h3>Generation ${index + 1}, choice ${each.choice}</h3>`}
    <${Prompt} prompt=${each.prompt} />
    <${RawText} each=${each} />
    <details open=${Boolean(each.constraint)}>
      <summary>Constraint ${each.constraint ? `(${each.constraint.type})` : "(none)"}</summary>
      ${each.constraint
        ? html`<pre tabindex="0">${each.constraint.text}</pre>
          ${each.constraint.triggers?.length > 0 && html`<p>It applies after the first of these texts: ${each.constraint.triggers.map((text) => html`<code>${visible(text)}</code> `)}</p>`}`
        : html`<p>The engine may generate any text.</p>`}
    </details>
    <details>
      <summary>Parameters of the engine and of the decoder</summary>
      <pre tabindex="0">${JSON.stringify({ max_tokens: each.max_tokens, sampling: each.sampling, reading: each.reading }, null, 2)}</pre>
    </details>
  </section>`;
}

function Prompt({ prompt }) {
  if (prompt.messages)
    return html`<details open>
      <summary>Messages as they were sent to the server of the model</summary>
      <pre tabindex="0">${JSON.stringify(prompt.messages, null, 2)}</pre>
    </details>`;
  const count = prompt.tokens?.length;
  return html`<details open>
    <summary>Prompt${count === undefined ? "" : `, ${count} tokens`}${prompt.media ? `, ${prompt.media} media` : ""}</summary>
    <div class="raw" role="group" aria-label="The rendered prompt" tabindex="0">
      ${prompt.tokens === null
        ? visible(prompt.text)
        : prompt.tokens.map((token, index) => html`<span key=${index} class=${token.special ? "special" : "piece"} title=${`token ${token.id}`}>${visible(token.text)}</span>`)}
    </div>
  </details>`;
}

// Steps whose events are deltas of one kind are one row: they are most of an answer.
function rows(each) {
  const found = [];
  for (const step of each.steps) {
    const kinds = step.events.map((event) => event.type);
    const delta = kinds.length === 1 && kinds[0].endsWith("_delta") ? kinds[0] : null;
    const last = found[found.length - 1];
    const tokens = step.tokens.length ? step.tokens : [{ id: null, text: step.text || (step.pieces ?? []).map((piece) => piece.text).join(""), logprob: null, top: [] }];
    if (delta && last?.delta === delta) {
      last.tokens.push(...tokens);
      last.events[0] = { ...last.events[0], text: last.events[0].text + step.events[0].text, count: last.events[0].count + 1 };
      continue;
    }
    // Text that the decoder holds back is in the row of the events that it becomes.
    const row = last?.events.length === 0 ? last : { delta, tokens: [], events: [] };
    if (row !== last) found.push(row);
    else row.delta = delta;
    row.tokens.push(...tokens);
    row.events.push(...step.events.map((event) => ({ ...event, count: 1 })));
  }
  const end = each.end.map((event) => ({ ...event, count: 1 }));
  const last = found[found.length - 1];
  if (last?.events.length === 0) last.events = end;
  else if (end.length) found.push({ delta: null, tokens: [], events: end });
  return found;
}

const MOST_ROWS = 400;

function RawText({ each }) {
  const [token, setToken] = useState(null);
  const [all, setAll] = useState(false);
  const lines = rows(each);
  const shown = all ? lines : lines.slice(0, MOST_ROWS);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tokens = [...event.currentTarget.querySelectorAll("button.token")];
    tokens[tokens.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  };
  let first = true;
  return html`<details open>
    <summary>Raw text and events</summary>
    <p class="legend"><span>probable</span>${[0, 2, 4, 6, 8, 9].map((step) => html`<i key=${step} class=${`heat-${step}`}></i>`)}<span>improbable; select a token to see its alternatives</span></p>
    <table class="steps" onKeyDown=${move}>
      <thead><tr><th scope="col">Raw text</th><th scope="col">Events</th></tr></thead>
      <tbody>
        ${shown.map((row, at) => html`<tr key=${at}>
          <td>${row.tokens.map((each, index) => {
            const reached = first;
            first = false;
            return html`<button key=${index} type="button" class=${`token heat-${colour(each.logprob)}${each.text ? "" : " hidden"}`}
              tabindex=${reached ? 0 : -1} aria-label=${`${each.text || "hidden token"}, ${percent(each.logprob)}`}
              aria-pressed=${token === each} onFocus=${() => setToken(each)} onClick=${() => setToken(each)}>${inline(each.text) || "∅"}</button>`;
          })}</td>
          <td>${row.events.map((event, index) => html`<${EventLine} key=${index} event=${event} />`)}</td>
        </tr>`)}
      </tbody>
    </table>
    ${lines.length > shown.length && html`<button onClick=${() => setAll(true)}>Show all ${lines.length} rows</button>`}
    <div class="alternatives" role="status">
      ${token && html`<p><code>${inline(token.text) || "∅"}</code> ${token.id !== null && html`token ${token.id}, `}${percent(token.logprob)}</p>`}
      ${token?.top.length > 0 && html`<ol>${token.top.map((each) => html`<li key=${each.id}><code>${inline(each.text) || "∅"}</code> <meter min="0" max="1" value=${Math.exp(each.logprob)} aria-label=${percent(each.logprob)}></meter> ${percent(each.logprob)}</li>`)}</ol>`}
    </div>
  </details>`;
}

function EventLine({ event }) {
  const { type, count, text, raw, usage, ...rest } = event;
  const fields = Object.entries(rest).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");
  return html`<div class=${`event ${type}`}>
    <b>${type}</b>${count > 1 && html` <span class="count">×${count}</span>`}${fields && html` <span>${fields}</span>`}
    ${text !== undefined && html` <q>${inline(text)}</q>`}
    ${text === undefined && raw && html` <code>${inline(raw)}</code>`}
  </div>`;
}
