// The views of the server's status, and of background responses.

import { html, useEffect, useRef, useState, bytes } from "./html.js";
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
    const written = (each) => each.generated_tokens + each.tokens_now;
    return first === last || !before ? null : Math.max(0, written(model) - written(before)) / (last.at - first.at);
  };
  return html`<section class="view" aria-labelledby="server-title">
    <h2 id="server-title">Server</h2>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${status && html`<dl class="facts">
        <div><dt>health</dt><dd>${status.health}</dd></div>
        <div><dt>version</dt><dd>${status.version}</dd></div>
        <div><dt>running background responses</dt><dd>${status.background_running}</dd></div>
        <div><dt>answers kept with details, per key</dt><dd>${status.debug_answers || "none (--debug-answers)"}</dd></div>
      </dl>
      <div class="scroll" tabindex="0" role="region" aria-label="Models">
      <table>
        <caption>Models. Tokens are counted when a request has ended. The rate is that of the last ${WINDOW} seconds.</caption>
        <thead><tr>${["Model", "State", "Slots", "Running", "Waiting", "Memory", "Prompt tokens", "Generated tokens", "Tokens per second"].map((each) => html`<th scope="col" key=${each}>${each}</th>`)}</tr></thead>
        <tbody>${status.models.map((model) => html`<tr key=${model.id}>
          <th scope="row">${model.names.join(", ") || "–"}</th><td>${model.loaded ? "loaded" : "not loaded"}</td>
          <td>${model.slots || "–"}</td><td>${model.running}</td><td>${model.waiting}</td><td>${bytes(model.memory_bytes)}</td>
          <td>${model.prompt_tokens}</td><td>${model.generated_tokens}</td><td>${rate(model)?.toFixed(1) ?? "–"}</td>
        </tr>`)}</tbody>
      </table></div>`}
  </section>`;
}

const RUNNING = ["queued", "in_progress"];

const LISTED = 20; // responses of a page of the list

export function Background({ openRecord }) {
  const [listed, setListed] = useState(null);
  const [more, setMore] = useState(false);
  const [named, setNamed] = useState([]);
  const [chosen, setChosen] = useState(null);
  const [wanted, setWanted] = useState("");
  const [error, setError] = useState(null);
  const read = async (after) => {
    try {
      const page = await json(`v1/responses?background=true&limit=${LISTED}${after ? `&after=${after}` : ""}`);
      setListed((before) => [...(after ? before : []), ...page.data]);
      setMore(page.has_more);
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  };
  useEffect(() => void read(), []);
  const open = (event) => {
    event.preventDefault();
    const id = wanted.trim();
    if (!id) return;
    setNamed([id, ...named.filter((each) => each !== id)]);
    setChosen(id);
    setWanted("");
  };
  const others = (listed ?? []).filter((each) => !named.includes(each.id));
  const job = (id, known) => html`<${Job} key=${id} id=${id} known=${known} open=${chosen === id} choose=${() => setChosen(chosen === id ? null : id)} openRecord=${openRecord} />`;
  return html`<section class="view" aria-labelledby="background-title">
    <h2 id="background-title">Background responses</h2>
    <p>All that are stored for this key, newest first. To create one, choose “Responses” and “In the background” in the settings of the chat.</p>
    <form class="inline" onSubmit=${open}>
      <label>Open by id <input value=${wanted} onInput=${(event) => setWanted(event.target.value)} placeholder="resp_…" /></label>
      <button>Open</button>
      <span class="grow"></span>
      <button type="button" onClick=${() => read()}>Refresh</button>
    </form>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    <ul class="jobs">${[...named.map((id) => job(id)), ...others.map((each) => job(each.id, each))]}</ul>
    ${listed && !listed.length && !named.length && html`<p>None yet.</p>`}
    ${more && html`<button onClick=${() => read(listed[listed.length - 1].id)}>Show older</button>`}
  </section>`;
}

// `known` is its entry in the list: a response that has ended is not requested again.
function Job({ id, known, open, choose, openRecord }) {
  const [response, setResponse] = useState(known ?? null);
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
    if (!known || RUNNING.includes(known.status)) poll();
    else setResponse(known);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [id, known]);
  const cancel = () => json(`v1/responses/${id}/cancel`, { body: {} }).then(setResponse, setError);
  return html`<li>
    <div class="bar">
      <button aria-expanded=${open} onClick=${choose}>${open ? "Hide log" : "Log"}</button>
      <code class="id">${id}</code> <span class="tag">${error ? error.message : (response?.status ?? "…")}</span>
      <span class="grow"></span>
      ${RUNNING.includes(response?.status) && html`<button onClick=${cancel}>Cancel</button>`}
      <button onClick=${() => openRecord(id)}>Details</button>
    </div>
    ${response && html`<p class="about">${response.model}, <time>${new Date(response.created_at * 1000).toLocaleString()}</time></p>`}
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
