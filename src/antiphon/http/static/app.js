// The page: its views, the settings of a request, and a conversation.

import { html, render, useEffect, useRef, useState, useStored, Markdown } from "./html.js";
import { APIS, asCurl, asPython, newAnswer, readTools } from "./apis.js";
import { events, json, key, RequestError, request } from "./api.js";
import { AnswerRecord } from "./record.js";
import { Batches } from "./batches.js";
import { Decisions } from "./decisions.js";
import { Background, Server } from "./server.js";

const VIEWS = { chat: "Chat", decisions: "Decisions", background: "Background", batches: "Batches", server: "Server" };
const DEFAULTS = {
  api: "chat", model: "", system: "", temperature: null, top_p: null, max_tokens: null,
  effort: "", tools: "", schema: "", background: false,
};
const WIDE = matchMedia("(min-width: 901px)").matches; // on a small screen the conversation comes first
const EXAMPLE_TOOL = JSON.stringify({
  name: "get_weather",
  description: "The current weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
}, null, 2);
const EXAMPLE_SCHEMA = JSON.stringify({
  type: "object",
  properties: { name: { type: "string" }, year: { type: "integer" } },
  required: ["name", "year"],
  additionalProperties: false,
}, null, 2);

function App() {
  const [view, setView] = useState("chat");
  const [settings, setSettings] = useStored("settings", DEFAULTS);
  const [models, setModels] = useState(null);
  const [loadError, setLoadError] = useState(null);
  const [recordId, setRecordId] = useState(null);
  const [turns, setTurns] = useState([]);
  const change = (fields) => setSettings({ ...DEFAULTS, ...settings, ...fields });
  const load = async () => {
    try {
      const { data } = await json("v1/models?limit=1000");
      setModels(data);
      setLoadError(null);
      if (!data.some((each) => each.id === settings.model)) change({ model: data[0]?.id ?? "" });
    } catch (error) {
      setLoadError(error);
    }
  };
  useEffect(() => void load(), []);
  const opener = useRef(null);
  const openRecord = (id) => {
    opener.current = document.activeElement;
    setRecordId(id);
  };
  const closeRecord = () => {
    setRecordId(null);
    opener.current?.focus();
  };
  return html`
    <a class="skip" href="#main">Skip to the conversation</a>
    <header class="top">
      <h1>Antiphon</h1>
      <${Tabs} view=${view} choose=${setView} />
      <span class="grow"></span>
      <${Key} changed=${load} />
      <${Theme} />
    </header>
    ${loadError && loadError.status !== 401 && html`<p class="error" role="alert">${loadError.message} <button onClick=${load}>Try again</button></p>`}
    <div class=${`body${recordId ? " with-record" : ""}`}>
      <main><div id="main" tabindex="-1" role="tabpanel" aria-labelledby=${`tab-${view}`}>
        <div class="chat-view" hidden=${view !== "chat"}>
          <${Settings} settings=${{ ...DEFAULTS, ...settings }} change=${change} models=${models} />
          <${Conversation} settings=${{ ...DEFAULTS, ...settings }} models=${models} turns=${turns} setTurns=${setTurns}
            openRecord=${openRecord} toBackground=${() => setView("background")} />
        </div>
        ${view === "decisions" && html`<${Decisions} models=${models} model=${settings.model} choose=${(model) => change({ model })} />`}
        ${view === "server" && html`<${Server} />`}
        ${view === "background" && html`<${Background} openRecord=${openRecord} />`}
        ${view === "batches" && html`<${Batches} />`}
      </div></main>
      ${recordId && html`<${AnswerRecord} id=${recordId} close=${closeRecord} />`}
    </div>`;
}

function Tabs({ view, choose }) {
  const names = Object.keys(VIEWS);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(view) + step + names.length) % names.length];
    choose(next);
    document.getElementById(`tab-${next}`).focus();
  };
  return html`<div role="tablist" aria-label="Views" onKeyDown=${move}>
    ${names.map((name) => html`<button key=${name} id=${`tab-${name}`} role="tab" aria-selected=${view === name} aria-controls="main"
      tabindex=${view === name ? 0 : -1} onClick=${() => choose(name)}>${VIEWS[name]}</button>`)}
  </div>`;
}

function Theme() {
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const [theme, setTheme] = useStored("theme", null);
  const now = theme ?? preferred;
  useEffect(() => void (document.documentElement.dataset.theme = now), [now]);
  const other = now === "dark" ? "light" : "dark";
  return html`<button onClick=${() => setTheme(other)} aria-label=${`Switch to ${other} colours`}>${now === "dark" ? "Light" : "Dark"}</button>`;
}

function Key({ changed }) {
  const dialog = useRef(null);
  const [value, setValue] = useState(key.get());
  const [required, setRequired] = useState(false);
  useEffect(() => {
    const ask = () => {
      setRequired(true);
      if (!dialog.current.open) dialog.current.showModal();
    };
    addEventListener("antiphon-key-required", ask);
    return () => removeEventListener("antiphon-key-required", ask);
  }, []);
  const save = (event) => {
    event.preventDefault();
    key.set(value.trim());
    dialog.current.close();
    setRequired(false);
    changed();
  };
  return html`<button onClick=${() => dialog.current.showModal()}>${key.get() ? "Key ✓" : "Key"}</button>
    <dialog ref=${dialog} aria-labelledby="key-title">
      <form onSubmit=${save}>
        <h2 id="key-title">API key</h2>
        <p>${required ? "This server requires a key." : "The key that is sent with requests."} It is kept until this tab is closed.</p>
        <label>Key <input type="password" autocomplete="off" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
        <div class="bar"><button type="button" onClick=${() => dialog.current.close()}>Cancel</button><button class="main">Save</button></div>
      </form>
    </dialog>`;
}

function Slider({ label, value, change, min, max, step, initial }) {
  const id = `set-${label.replaceAll(" ", "-")}`;
  return html`<div class="slider">
    <label for=${id}>${label}</label>
    <output for=${id}>${value === null ? "default" : value}</output>
    <input id=${id} type="range" min=${min} max=${max} step=${step} value=${value ?? initial} class=${value === null ? "unset" : ""}
      aria-valuetext=${value === null ? "the model's default" : String(value)} onInput=${(event) => change(Number(event.target.value))} />
    <button type="button" disabled=${value === null} onClick=${() => change(null)} aria-label=${`${label}: the model's default`}>×</button>
  </div>`;
}

function Area({ label, value, change, example, check, rows = 4 }) {
  let wrong = null;
  try {
    check?.(value);
  } catch (error) {
    wrong = error.message;
  }
  const id = `set-${label.replaceAll(" ", "-")}`;
  return html`<div class="area">
    <div class="bar"><label for=${id}>${label}</label><span class="grow"></span>
      ${example && html`<button type="button" onClick=${() => change(value ? "" : example)}>${value ? "Clear" : "Example"}</button>`}</div>
    <textarea id=${id} rows=${rows} spellcheck=${false} value=${value} aria-invalid=${Boolean(wrong)} aria-describedby=${wrong ? `${id}-wrong` : undefined}
      onInput=${(event) => change(event.target.value)}></textarea>
    ${wrong && html`<p class="error" id=${`${id}-wrong`}>${wrong}</p>`}
  </div>`;
}

const readSchema = (text) => (text.trim() ? JSON.parse(text) : undefined);

function Settings({ settings, change, models }) {
  const messages = settings.api === "messages";
  const context = models?.find((each) => each.id === settings.model)?.max_model_len ?? 4096;
  return html`<details class="settings" open=${WIDE}><summary>Settings</summary>
  <form aria-label="Settings" onSubmit=${(event) => event.preventDefault()}>
    <fieldset class="apis"><legend>API</legend>
      ${Object.entries(APIS).map(([name, api]) => html`<label key=${name}><input type="radio" name="api" value=${name} checked=${settings.api === name}
        onChange=${() => change({ api: name })} />${api.name}</label>`)}
    </fieldset>
    <label>Model <select value=${settings.model} onChange=${(event) => change({ model: event.target.value })}>
      ${(models ?? []).map((each) => html`<option key=${each.id} value=${each.id}>${each.id}</option>`)}
    </select></label>
    <${Area} label="System message" value=${settings.system} change=${(system) => change({ system })} rows=${2} />
    <${Slider} label="Temperature" min=${0} max=${messages ? 1 : 2} step=${0.05} initial=${1} value=${settings.temperature} change=${(temperature) => change({ temperature })} />
    <${Slider} label="Top p" min=${0.05} max=${1} step=${0.05} initial=${1} value=${settings.top_p} change=${(top_p) => change({ top_p })} />
    <${Slider} label="Max tokens" min=${16} max=${Math.min(context, 32768)} step=${16} initial=${1024} value=${settings.max_tokens} change=${(max_tokens) => change({ max_tokens })} />
    <label>Reasoning effort <select value=${settings.effort} onChange=${(event) => change({ effort: event.target.value })}>
      <option value="">the model's default</option>${["none", "low", "medium", "high"].map((each) => html`<option key=${each}>${each}</option>`)}
    </select></label>
    <${Area} label="Tools as JSON" value=${settings.tools} change=${(tools) => change({ tools })} example=${EXAMPLE_TOOL} check=${readTools} />
    <${Area} label="Schema of the answer" value=${settings.schema} change=${(schema) => change({ schema })} example=${EXAMPLE_SCHEMA} check=${readSchema} />
    ${settings.api === "responses" && html`<label class="check"><input type="checkbox" checked=${settings.background} onChange=${(event) => change({ background: event.target.checked })} /> In the background</label>`}
  </form></details>`;
}

function Conversation({ settings, models, turns, setTurns, openRecord, toBackground }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [running, setRunning] = useState(null);
  const [announcement, setAnnouncement] = useState("");
  const box = useRef(null);
  const end = useRef(null);
  const model = models?.find((each) => each.id === settings.model);
  const takesImages = model?.input_modalities?.includes("image");
  const last = turns[turns.length - 1];
  const awaitingResults = !running && last?.role === "assistant" && last.calls.length > 0;

  let draftBody = null;
  let wrong = null;
  const body = (list) => {
    const background = settings.background && settings.api === "responses";
    return APIS[settings.api].body({ ...settings, background, tools: readTools(settings.tools), schema: readSchema(settings.schema) }, list);
  };
  const draft = text || images.length ? [...turns, { role: "user", text, images }] : turns;
  try {
    draftBody = body(draft);
  } catch (error) {
    wrong = error.message;
  }

  const answer = async (list) => {
    if (settings.background && settings.api === "responses") {
      try {
        await json(APIS.responses.path, { body: body(list) });
        toBackground();
      } catch (error) {
        setTurns([...list, { ...newAnswer(), error: error.message }]);
      }
      return;
    }
    const stop = new AbortController();
    const api = APIS[settings.api];
    const partial = { ...newAnswer(), api: settings.api, started: performance.now(), first: null };
    setRunning(stop);
    setAnnouncement("Answering.");
    setTurns([...list, { ...partial }]);
    let frame = 0;
    const show = () => {
      frame = 0;
      partial.ended = performance.now();
      setTurns([...list, { ...partial, calls: partial.calls.map((call) => ({ ...call })) }]);
    };
    try {
      for await (const event of events(await request(api.path, { body: body(list), signal: stop.signal }))) {
        api.take(partial, event);
        if (partial.first === null && (partial.text || partial.reasoning || partial.calls.length)) partial.first = performance.now();
        frame ||= requestAnimationFrame(show);
      }
    } catch (error) {
      if (stop.signal.aborted) partial.finish = "stopped";
      else partial.error = error instanceof RequestError || error instanceof Error ? error.message : String(error);
    }
    cancelAnimationFrame(frame);
    show();
    setRunning(null);
    setAnnouncement(partial.error ? `The answer failed: ${partial.error}` : partial.finish === "stopped" ? "Stopped." : "The answer is complete.");
    box.current?.focus();
  };
  const send = (event) => {
    event?.preventDefault();
    if (running || wrong || awaitingResults || !(text.trim() || images.length) || !settings.model) return;
    const list = [...turns, { role: "user", text, images }];
    setText("");
    setImages([]);
    setTurns(list);
    answer(list);
  };
  const attach = async (event) => {
    const read = (file) => new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(file);
    });
    setImages([...images, ...(await Promise.all([...event.target.files].map(read)))]);
    event.target.value = "";
  };
  const keys = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  useEffect(() => {
    const escape = (event) => event.key === "Escape" && running?.abort();
    addEventListener("keydown", escape);
    return () => removeEventListener("keydown", escape);
  }, [running]);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns]);
  return html`<section class="conversation" aria-label="Conversation">
    <div class="turns" role="log" aria-live="off" aria-busy=${Boolean(running)} tabindex="0" aria-label="Messages">
      ${!turns.length && html`<div class="empty"><p>Ask ${settings.model ? html`<b>${settings.model}</b>` : "a model"} something.</p>
        <p>Enter sends the message, Shift+Enter begins a new line, Escape stops the answer. “Details” shows the prompt, the raw text of the model, and the events decoded from it.</p></div>`}
      ${turns.map((turn, index) => html`<${Turn} key=${index} turn=${turn} running=${running && index === turns.length - 1} openRecord=${openRecord} />`)}
      ${awaitingResults && html`<${Results} key=${turns.length} calls=${last.calls} send=${(results) => {
        const list = [...turns, { role: "tool", results }];
        setTurns(list);
        answer(list);
      }} />`}
      <div ref=${end}></div>
    </div>
    <p class="sr-only" role="status">${announcement}</p>
    <form class="composer" onSubmit=${send}>
      ${images.length > 0 && html`<ul class="images">${images.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Image ${index + 1}`} />
        <button type="button" onClick=${() => setImages(images.filter((_, at) => at !== index))} aria-label=${`Remove image ${index + 1}`}>×</button></li>`)}</ul>`}
      <label class="sr-only" for="message">Message</label>
      <textarea id="message" ref=${box} rows="3" value=${text} placeholder=${awaitingResults ? "Send the results of the calls first" : "Message"} disabled=${awaitingResults}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>
      <div class="bar">
        ${takesImages && html`<label class="file">Add images <input type="file" accept="image/*" multiple onChange=${attach} /></label>`}
        <button type="button" onClick=${() => setTurns([])} disabled=${running || !turns.length}>New conversation</button>
        <span class="grow"></span>
        ${running
          ? html`<button type="button" class="stop" onClick=${() => running.abort()}>Stop</button>`
          : html`<button class="main" disabled=${Boolean(wrong) || awaitingResults || !(text.trim() || images.length)}>Send</button>`}
      </div>
    </form>
    <${Code} api=${settings.api} body=${draftBody} wrong=${wrong} />
  </section>`;
}

function Turn({ turn, running, openRecord }) {
  if (turn.role === "user")
    return html`<article class="turn user" aria-label="You"><div class="who">You</div>
      ${turn.images.map((url, index) => html`<img key=${index} src=${url} alt=${`Image ${index + 1}`} />`)}<div class="plain">${turn.text}</div></article>`;
  if (turn.role === "tool")
    return html`<article class="turn tool" aria-label="Results of tools"><div class="who">Results</div>
      ${turn.results.map((each) => html`<div key=${each.id}><b>${each.name}</b> <code>${each.text}</code></div>`)}</article>`;
  const seconds = turn.first && turn.ended > turn.first ? (turn.ended - turn.first) / 1000 : 0;
  const rate = turn.usage?.output > 1 && seconds > 0.05 && !running ? `${((turn.usage.output - 1) / seconds).toFixed(1)} tokens/s` : null;
  const facts = [
    running && "answering …", turn.finish, turn.usage && !running && `${turn.usage.input} → ${turn.usage.output} tokens`,
    turn.missed && `${turn.missed.tokens} tokens are not in the cache because of ${turn.missed.part}`,
    turn.first && `first token after ${Math.round(turn.first - turn.started)} ms`, rate,
  ].filter(Boolean);
  return html`<article class="turn assistant" aria-label="Model"><div class="who">Model</div>
    ${turn.reasoning && html`<details class="reasoning" open=${Boolean(running) && !turn.text}><summary>Reasoning</summary><div class="plain">${turn.reasoning}</div></details>`}
    ${turn.text && html`<${Markdown} text=${turn.text} />`}
    ${turn.calls.map((call) => html`<div class="call" key=${call.id}><b>${call.name}</b> <code>${call.arguments}</code></div>`)}
    ${turn.error && html`<p class="error" role="alert">${turn.error}</p>`}
    <footer class="bar"><span class="facts-line">${facts.join(" · ")}</span>
      ${turn.text && !running && html`<button onClick=${() => navigator.clipboard.writeText(turn.text)}>Copy</button>`}
      ${turn.id && html`<button onClick=${() => openRecord(turn.id)}>Details</button>`}
    </footer></article>`;
}

function Results({ calls, send }) {
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

function Code({ api, body, wrong }) {
  const [kind, setKind] = useState("curl");
  if (wrong) return html`<p class="error" role="status">The request is not valid: ${wrong}</p>`;
  const shown = { ...body };
  const code = kind === "curl" ? asCurl(api, shown, Boolean(key.get())) : asPython(api, shown, Boolean(key.get()));
  return html`<details class="code"><summary>This request as code</summary>
    <div class="bar" role="group" aria-label="Language">
      ${["curl", "Python"].map((each) => html`<button key=${each} type="button" aria-pressed=${kind === each} onClick=${() => setKind(each)}>${each}</button>`)}
      <span class="grow"></span><button type="button" onClick=${() => navigator.clipboard.writeText(code)}>Copy</button>
    </div>
    <pre tabindex="0">${code}</pre></details>`;
}

render(html`<${App} />`, document.getElementById("app"));
