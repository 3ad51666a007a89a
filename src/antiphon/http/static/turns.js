// What a conversation shows: messages, reasoning, calls of tools as cards, and the form for their results.

import { html, useEffect, useRef, useState } from "./html.js";
import { CopyButton } from "./copy.js";
import { Markdown } from "./markdown.js";

// JSON text with lines and indentation. It is not parsed: it may not be complete yet, and its numbers stay as they are.
export function indented(text) {
  const out = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 20))}`;
  let before = "";
  for (const [found] of text.matchAll(/"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^"{}[\],:]+/gs)) {
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

function facts(turn, running) {
  const seconds = turn.first && turn.ended > turn.first ? (turn.ended - turn.first) / 1000 : 0;
  const rate = turn.usage?.output > 1 && seconds > 0.05 && !running ? `${((turn.usage.output - 1) / seconds).toFixed(1)} tokens/s` : null;
  return [
    running && "answering …", turn.finish, turn.usage && !running && `${turn.usage.input} → ${turn.usage.output} tokens`,
    turn.missed && `${turn.missed.tokens} tokens are not in the cache because of ${turn.missed.part}`,
    turn.first && `first token after ${Math.round(turn.first - turn.started)} ms`, rate,
  ].filter(Boolean).join(" · ");
}

export function Turn({ turn, running, openRecord }) {
  if (turn.role === "user")
    return html`<article class="turn user" aria-label="You"><div class="who">You</div>
      ${turn.images.map((url, index) => html`<img key=${index} src=${url} alt=${`Image ${index + 1}`} />`)}<div class="plain">${turn.text}</div></article>`;
  if (turn.role === "tool")
    return html`<article class="turn tool" aria-label="Results of tools"><div class="who">Results</div>
      ${turn.results.map((each) => html`<${Card} key=${each.id} kind="Result" name=${each.name} text=${readable(each.text)} />`)}</article>`;
  return html`<article class="turn assistant" aria-label="Model"><div class="who">Model</div>
    ${turn.reasoning && html`<details class="reasoning" open=${Boolean(running) && !turn.text}><summary>Reasoning</summary><div class="plain">${turn.reasoning}</div></details>`}
    ${turn.text && html`<${Markdown} text=${turn.text} running=${Boolean(running)} />`}
    ${turn.calls.map((call) => html`<${Card} key=${call.id} kind="Call" name=${call.name} text=${running ? call.arguments : indented(call.arguments)} />`)}
    ${turn.error && html`<p class="error" role="alert">${turn.error}</p>`}
    <footer class="bar"><span class="facts-line">${facts(turn, running)}</span>
      ${turn.text && !running && html`<${CopyButton} text=${turn.text} />`}
      ${turn.id && html`<button onClick=${() => openRecord(turn.id)}>Details</button>`}
    </footer></article>`;
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
