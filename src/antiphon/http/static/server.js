// How the server is doing, and the responses that it answers in the background.

import { html, useEffect, useRef, useState, useKept, bytes } from "./html.js";
import { events, json, request } from "./api.js";

const EVERY = 2000; // milliseconds
const WINDOW = 10; // seconds over which a rate is taken

export function Server() {
  const [status, setStatus] = useState(null);
  const [error, setError] = useState(null);
  const history = useRef([]);
  useEffect(() => {
    let over = false;
    const poll = async () => {
      try {
        const now = await json("v1/status");
        if (over) return;
        history.current = [...history.current, { at: performance.now() / 1000, models: now.models }].filter((each, _, all) => all[all.length - 1].at - each.at <= WINDOW);
        setStatus(now);
        setError(null);
      } catch (failure) {
        if (!over) setError(failure);
      }
      if (!over) timer = setTimeout(poll, EVERY);
    };
    let timer = setTimeout(poll, 0);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, []);
  const rate = (model) => {
    const [first] = history.current;
    const last = history.current[history.current.length - 1];
    const before = first.models.find((each) => each.id === model.id);
    return first === last || !before ? null : (model.generated_tokens - before.generated_tokens) / (last.at - first.at);
  };
  return html`<section class="view" aria-labelledby="server-title">
    <h2 id="server-title">Server</h2>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${status && html`<dl class="facts">
        <div><dt>health</dt><dd>${status.health}</dd></div>
        <div><dt>version</dt><dd>${status.version}</dd></div>
        <div><dt>background responses under way</dt><dd>${status.background_running}</dd></div>
        <div><dt>insides kept, per key</dt><dd>${status.debug_answers || "none (--debug-answers)"}</dd></div>
      </dl>
      <div class="scroll" tabindex="0" role="region" aria-label="Models">
      <table>
        <caption>Models. Tokens are counted when a generation is over; the rate is of the last ${WINDOW} seconds.</caption>
        <thead><tr>${["Model", "State", "Running", "Waiting", "Memory", "Prompt tokens", "Generated tokens", "Tokens per second"].map((each) => html`<th scope="col" key=${each}>${each}</th>`)}</tr></thead>
        <tbody>${status.models.map((model) => html`<tr key=${model.id}>
          <th scope="row">${model.names.join(", ") || "–"}</th><td>${model.loaded ? "loaded" : "not loaded"}</td>
          <td>${model.running}</td><td>${model.waiting}</td><td>${bytes(model.memory_bytes)}</td>
          <td>${model.prompt_tokens}</td><td>${model.generated_tokens}</td><td>${rate(model)?.toFixed(1) ?? "–"}</td>
        </tr>`)}</tbody>
      </table></div>`}
  </section>`;
}

const RUNNING = ["queued", "in_progress"];

export function Background({ openInside }) {
  const [known, setKnown] = useKept("background", []);
  const [chosen, setChosen] = useState(null);
  const [wanted, setWanted] = useState("");
  const add = (event) => {
    event.preventDefault();
    const id = wanted.trim();
    if (!id) return;
    setKnown([id, ...known.filter((each) => each !== id)]);
    setChosen(id);
    setWanted("");
  };
  return html`<section class="view" aria-labelledby="background-title">
    <h2 id="background-title">Background responses</h2>
    <p>Those that this browser has created, with the settings “Responses” and “in the background”.</p>
    <form class="inline" onSubmit=${add}>
      <label>Another, by its id <input value=${wanted} onInput=${(event) => setWanted(event.target.value)} placeholder="resp_…" /></label>
      <button>Open</button>
    </form>
    <ul class="jobs">${known.map((id) => html`<${Job} key=${id} id=${id} open=${chosen === id} choose=${() => setChosen(chosen === id ? null : id)} openInside=${openInside}
      forget=${() => setKnown(known.filter((each) => each !== id))} />`)}</ul>
    ${!known.length && html`<p>None yet.</p>`}
  </section>`;
}

function Job({ id, open, choose, forget, openInside }) {
  const [response, setResponse] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let over = false;
    let timer;
    const poll = async () => {
      try {
        const now = await json(`v1/responses/${id}`);
        if (over) return;
        setResponse(now);
        if (RUNNING.includes(now.status)) timer = setTimeout(poll, EVERY);
      } catch (failure) {
        if (!over) setError(failure);
      }
    };
    poll();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [id]);
  const cancel = () => json(`v1/responses/${id}/cancel`, { body: {} }).then(setResponse, setError);
  return html`<li>
    <div class="bar">
      <button aria-expanded=${open} onClick=${choose}>${open ? "Hide log" : "Log"}</button>
      <code class="id">${id}</code> <span class="tag">${error ? error.message : (response?.status ?? "…")}</span>
      <span class="grow"></span>
      ${RUNNING.includes(response?.status) && html`<button onClick=${cancel}>Cancel</button>`}
      <button onClick=${() => openInside(id)}>Inside</button>
      <button onClick=${forget} aria-label=${`Forget ${id}`}>Forget</button>
    </div>
    ${open && html`<${Log} id=${id} ended=${() => json(`v1/responses/${id}`).then(setResponse, setError)} />`}
  </li>`;
}

function Log({ id, ended }) {
  const [lines, setLines] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      try {
        const found = [];
        for await (const event of events(await request(`v1/responses/${id}?stream=true`, { signal: stop.signal }))) {
          const { type, sequence_number: number, ...rest } = event;
          const last = found[found.length - 1];
          if (last?.type === type && type.endsWith(".delta")) found[found.length - 1] = { ...last, to: number, text: last.text + event.delta };
          else found.push({ type, from: number, to: number, text: event.delta ?? (rest.response ? rest.response.status : rest.item ? rest.item.type : "") });
          setLines([...found]);
        }
        ended();
      } catch (failure) {
        if (!stop.signal.aborted) setError(failure);
      }
    })();
    return () => stop.abort();
  }, [id]);
  return html`<div class="log" tabindex="0" role="region" aria-label=${`Log of ${id}`}>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    <ol>${lines.map((line) => html`<li key=${line.from}><span class="count">${line.from}${line.to > line.from ? `–${line.to}` : ""}</span> <b>${line.type}</b> ${line.text}</li>`)}</ol>
  </div>`;
}
