// What a conversation shows: messages, reasoning, calls of tools as cards, and the form for their results.

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { CopyButton } from "./copy.js";
import { Markdown } from "./markdown.js";

// JSON text with lines and indentation. It is not parsed: it may not be complete yet, and its numbers stay as they are.
export function indented(text) {
  const out = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 20))}`;
  let before = "";
  for (const [found] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"?|[{}[\],:]|[^"{}[\],:]+/gs)) {
    const piece = found.trim();
    if (!piece) continue;
    const opened = before === "{" || before === "[";
    const closes = piece === "}" || piece === "]";
    if (closes) depth = Math.max(depth - 1, 0);
    if (opened !== closes || before === ",") out.push(line());
    out.push(piece === ":" ? ": " : piece);
    if (piece === "{" || piece === "[") depth += 1;
    before = piece;
  }
  return out.join("");
}

function Card({ kind, name, text }) {
  return html`<section class="call" aria-label=${`${kind} ${name}`}>
    <div class="bar"><span class="tag">${kind}</span><b>${name}</b><span class="grow"></span>${text && html`<${CopyButton} text=${text} />`}</div>
    ${text && html`<pre tabindex="0">${text}</pre>`}
  </section>`;
}

// Results are often JSON, and sometimes not.
function readable(text) {
  try {
    return typeof JSON.parse(text) === "object" ? indented(text) : text;
  } catch {
    return text;
  }
}

// Reasoning that is not shown has been generated before the first token that is.
function speed(turn, running) {
  const seconds = turn.first && turn.ended > turn.first ? (turn.ended - turn.first) / 1000 : 0;
  if (seconds < 0.05) return null;
  if (running) return `about ${((turn.steps - 1) / seconds).toFixed(0)} tokens/s`; // most events have one token
  const output = (turn.usage?.output ?? 0) - (turn.reasoning ? 0 : turn.usage?.reasoning ?? 0);
  return output > 1 ? `${((output - 1) / seconds).toFixed(1)} tokens/s` : null;
}

function facts(turn, running) {
  return [
    running && "answering …", !running && turn.finish, turn.usage && !running && `${turn.usage.input} → ${turn.usage.output} tokens`,
    turn.missed && `${turn.missed.tokens} tokens are not in the cache because of ${turn.missed.part}`,
    turn.first && `first token after ${Math.round(turn.first - turn.started)} ms`, speed(turn, running),
  ].filter(Boolean).join(" · ");
}

// Only what has changed is made anew: while an answer is streamed, its own turn.
export function Turn({ turn, running, openRecord, again }) {
  const run = useRef(again);
  run.current = again;
  return useMemo(() => shown(turn, running, openRecord, again && (() => run.current())), [turn, running, Boolean(again)]);
}

const asking = (again) => again && html`<button onClick=${again}>Try again</button>`;

function shown(turn, running, openRecord, again) {
  if (turn.role === "user")
    return html`<article class="turn user" aria-label="You"><div class="who">You</div>
      ${turn.images.map((url, index) => html`<img key=${index} src=${url} alt=${`Image ${index + 1}`} />`)}<div class="plain">${turn.text}</div>${asking(again)}</article>`;
  if (turn.role === "tool")
    return html`<article class="turn tool" aria-label="Results of tools"><div class="who">Results</div>
      ${turn.results.map((each) => html`<${Card} key=${each.id} kind="Result" name=${each.name} text=${readable(each.text)} />`)}${asking(again)}</article>`;
  return html`<article class="turn assistant" aria-label="Model"><div class="who">Model</div>
    ${turn.reasoning && html`<${Reasoning} text=${turn.reasoning} running=${running} first=${!turn.text && !turn.calls.length} />`}
    ${turn.text && html`<${Markdown} text=${turn.text} running=${running} />`}
    ${turn.calls.map((call) => html`<${Card} key=${call.id} kind="Call" name=${call.name} text=${running ? call.arguments : indented(call.arguments)} />`)}
    ${turn.error && html`<p class="error" role="alert">${turn.error}</p>`}
    <footer class="bar"><span class="facts-line">${facts(turn, running)}</span>
      ${turn.text && !running && html`<${CopyButton} text=${turn.text} />`}
      ${asking(again)}
      ${turn.id && html`<button onClick=${() => openRecord(turn.id)}>Details</button>`}
    </footer></article>`;
}

// Open while the model reasons, folded once it answers; who opens or folds it is obeyed.
function Reasoning({ text, running, first }) {
  const [chosen, setChosen] = useState(null);
  const open = chosen ?? (running && first);
  return html`<details class="reasoning" open=${open}><summary onClick=${(event) => {
    event.preventDefault();
    setChosen(!open);
  }}>${running && first ? "Reasoning …" : "Reasoning"}</summary><${Markdown} text=${text} running=${running} /></details>`;
}

export function Results({ calls, send }) {
  const [texts, setTexts] = useState(() => calls.map(() => ""));
  const first = useRef(null);
  useEffect(() => void first.current?.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    send(calls.map((call, index) => ({ id: call.id, name: call.name, text: texts[index] })));
  };
  return html`<form class="results" onSubmit=${submit} aria-label="Results of the calls">
    ${calls.map((call, index) => html`<label key=${call.id}>Result of <b>${call.name}</b>
      <textarea rows="2" ref=${index ? null : first} value=${texts[index]} onInput=${(event) => setTexts(texts.map((each, at) => (at === index ? event.target.value : each)))}></textarea></label>`)}
    <button class="main">Send the results</button>
  </form>`;
}
