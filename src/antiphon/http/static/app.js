// The page: its views, the settings of a request, and a conversation.

import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState, useStored } from "./html.js";
import { APIS, asCurl, asPython, newAnswer, readTools } from "./apis.js";
import { events, json, key, RequestError, request } from "./api.js";
import { ConversationList, newConversation, useConversations } from "./conversations.js";
import { CopyButton } from "./copy.js";
import { ACCEPTED, dragsFiles, pastedFiles, readImages } from "./images.js";
import { AnswerRecord } from "./record.js";
import { Batches } from "./batches.js";
import { Decisions } from "./decisions.js";
import { Background, Server } from "./server.js";
import { Results, Turn } from "./turns.js";

const VIEWS = { chat: "Chat", decisions: "Decisions", background: "Background", batches: "Batches", server: "Server" };
const DEFAULTS = {
  api: "chat", model: "", system: "", temperature: null, top_p: null, max_tokens: null,
  effort: "", tools: "", schema: "", background: false,
};
const WIDE = matchMedia("(min-width: 901px)").matches; // on a small screen the conversation comes first
const DARK = matchMedia("(prefers-color-scheme: dark)");
const focusMessage = () => requestAnimationFrame(() => document.getElementById("message")?.focus());
const NEAR = 80; // pixels from the end: who reads further above is left there
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
  const [conversation, setConversation] = useState(newConversation);
  const kept = useConversations();
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
  useEffect(() => {
    const refuse = (event) => dragsFiles(event) && event.preventDefault(); // else the browser leaves the page, and shows the file
    ["dragover", "drop"].forEach((type) => addEventListener(type, refuse));
    return () => ["dragover", "drop"].forEach((type) => removeEventListener(type, refuse));
  }, []);
  const begin = () => {
    setConversation(newConversation());
    setRecordId(null);
  };
  const openConversation = async (id) => {
    if (id === conversation.id) return;
    const turns = await kept.load(id);
    if (!turns) return;
    setConversation({ id, turns });
    setRecordId(null);
  };
  const beginAnother = () => {
    begin();
    focusMessage();
  };
  const removeConversations = (ids) => {
    kept.remove(ids);
    if (ids.includes(conversation.id)) begin();
  };
  const setTurns = (id, turns) => setConversation((now) => (now.id === id ? { id, turns } : now)); // an answer may end after another one is opened
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
          <div class="side">
            <button class="new" onClick=${beginAnother}>New conversation</button>
            <${ConversationList} kept=${kept} current=${conversation.id} open=${openConversation} remove=${removeConversations} wide=${WIDE} />
            <${Settings} settings=${{ ...DEFAULTS, ...settings }} change=${change} models=${models} />
          </div>
          <${Conversation} key=${conversation.id} settings=${{ ...DEFAULTS, ...settings }} models=${models} turns=${conversation.turns}
            setTurns=${(turns) => setTurns(conversation.id, turns)} save=${(turns) => kept.save(conversation.id, turns)} openRecord=${openRecord} toBackground=${() => setView("background")} />
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
    const now = names.indexOf(view);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = names[(to + names.length) % names.length];
    choose(next);
    document.getElementById(`tab-${next}`).focus();
  };
  return html`<div role="tablist" aria-label="Views" onKeyDown=${move}>
    ${names.map((name) => html`<button key=${name} id=${`tab-${name}`} role="tab" aria-selected=${view === name} aria-controls="main"
      tabindex=${view === name ? 0 : -1} onClick=${() => choose(name)}>${VIEWS[name]}</button>`)}
  </div>`;
}

// The colours are those of the system, also if they change, until the other ones are chosen here.
function Theme() {
  const [system, setSystem] = useState(DARK.matches ? "dark" : "light");
  const [theme, setTheme] = useStored("theme", null);
  useEffect(() => {
    const follow = () => setSystem(DARK.matches ? "dark" : "light");
    DARK.addEventListener("change", follow);
    return () => DARK.removeEventListener("change", follow);
  }, []);
  const now = theme ?? system;
  useLayoutEffect(() => void (document.documentElement.dataset.theme = now), [now]);
  const other = now === "dark" ? "light" : "dark";
  return html`<button onClick=${() => setTheme(other === system ? null : other)} aria-label=${`Switch to ${other} colours`}>${now === "dark" ? "Light" : "Dark"}</button>`;
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

function Conversation({ settings, models, turns, setTurns, save, openRecord, toBackground }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [running, setRunning] = useState(null);
  const [announcement, setAnnouncement] = useState("");
  const [notice, setNotice] = useState("");
  const [dragged, setDragged] = useState(false);
  const box = useRef(null);
  const streaming = useRef(null);
  const log = useRef(null);
  const end = useRef(null);
  const follow = useRef(true);
  const model = models?.find((each) => each.id === settings.model);
  const takesImages = model?.input_modalities?.includes("image");
  const last = turns[turns.length - 1];
  const awaitingResults = !running && last?.role === "assistant" && last.calls.length > 0;

  const given = useMemo(() => {
    try {
      return { tools: readTools(settings.tools), schema: readSchema(settings.schema) };
    } catch (error) {
      return { wrong: error.message };
    }
  }, [settings.tools, settings.schema]);
  const body = (list) => {
    const background = settings.background && settings.api === "responses";
    return APIS[settings.api].body({ ...settings, ...given, background }, list);
  };
  const draft = () => body(text || images.length ? [...turns, { role: "user", text, images }] : turns);

  const answer = async (list) => {
    follow.current = true;
    setTurns(list);
    save(list);
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
    streaming.current = stop;
    const api = APIS[settings.api];
    const partial = { ...newAnswer(), api: settings.api, started: performance.now(), first: null, steps: 0 };
    setRunning(stop);
    setAnnouncement("Answering.");
    setTurns([...list, { ...partial }]);
    let frame = 0;
    const shown = () => [...list, { ...partial, calls: partial.calls.map((call) => ({ ...call })) }];
    const show = () => {
      frame = 0;
      partial.ended = performance.now();
      setTurns(shown());
    };
    try {
      for await (const event of events(await request(api.path, { body: body(list), signal: stop.signal }))) {
        api.take(partial, event);
        if (partial.text || partial.reasoning || partial.calls.length) {
          partial.first ??= performance.now();
          partial.steps += 1;
        }
        frame ||= requestAnimationFrame(show);
      }
    } catch (error) {
      if (stop.signal.aborted) partial.finish = "stopped";
      else partial.error = error instanceof RequestError || error instanceof Error ? error.message : String(error);
    }
    cancelAnimationFrame(frame);
    show();
    save(shown());
    setRunning(null);
    setAnnouncement(partial.error ? `The answer failed: ${partial.error}` : partial.finish === "stopped" ? "Stopped." : "The answer is complete.");
    if (document.activeElement === document.body) box.current?.focus(); // the button that has stopped it is gone
  };
  const send = (event) => {
    event?.preventDefault();
    if (running || given.wrong || awaitingResults || !(text.trim() || images.length) || !settings.model) return;
    const list = [...turns, { role: "user", text, images }];
    setText("");
    setImages([]);
    setNotice("");
    answer(list);
  };
  const add = async (files) => {
    if (!files.length) return;
    if (!takesImages) return setNotice(`${settings.model || "The model"} does not take images.`);
    const { urls, said } = await readImages(files, images.length);
    setImages((now) => [...now, ...urls]);
    setNotice(said);
  };
  const attach = async (event) => {
    await add([...event.target.files]);
    event.target.value = "";
  };
  const paste = (event) => {
    const files = pastedFiles(event);
    if (!files.length) return;
    event.preventDefault();
    add(files);
  };
  const drag = (event) => {
    if (!dragsFiles(event)) return;
    event.preventDefault();
    setDragged(event.type === "dragover");
    if (event.type === "drop") add([...event.dataTransfer.files]);
  };
  const keys = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  useEffect(() => {
    const escape = (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && running?.abort();
    addEventListener("keydown", escape);
    return () => removeEventListener("keydown", escape);
  }, [running]);
  useEffect(() => () => streaming.current?.abort(), []); // another conversation is opened
  if (end.current) {
    const bottom = Math.min(log.current.getBoundingClientRect().bottom, innerHeight);
    follow.current ||= end.current.getBoundingClientRect().top < bottom + NEAR;
  }
  useEffect(() => {
    if (follow.current) end.current?.scrollIntoView({ block: "nearest" });
    follow.current = false;
  }, [turns]);
  return html`<section class=${`conversation${dragged ? " dragged" : ""}`} aria-label="Conversation" onDragOver=${drag} onDragLeave=${drag} onDrop=${drag} onPaste=${paste}>
    <div class="turns column" ref=${log} role="log" aria-live="off" aria-busy=${Boolean(running)} tabindex="0" aria-label="Messages">
      ${!turns.length && html`<div class="empty"><p>Ask ${settings.model ? html`<b>${settings.model}</b>` : "a model"} something.</p>
        <p>Enter sends the message, Shift+Enter begins a new line, Escape stops the answer. “Details” shows the prompt, the raw text of the model, and the events decoded from it.</p></div>`}
      ${turns.map((turn, index) => html`<${Turn} key=${index} turn=${turn} running=${Boolean(running) && turn === last} openRecord=${openRecord}
        again=${!running && turn === last && (() => answer(turn.role === "assistant" ? turns.slice(0, -1) : turns))} />`)}
      ${awaitingResults && html`<${Results} key=${turns.length} calls=${last.calls} send=${(results) => answer([...turns, { role: "tool", results }])} />`}
      <div ref=${end}></div>
    </div>
    <p class="sr-only" role="status">${announcement}</p>
    <div class="bottom column"><form class="composer" onSubmit=${send}>
      ${images.length > 0 && html`<ul class="images">${images.map((url, index) => html`<li key=${index}><img src=${url} alt=${`Image ${index + 1}`} />
        <button type="button" onClick=${() => setImages(images.filter((_, at) => at !== index))} aria-label=${`Remove image ${index + 1}`}>×</button></li>`)}</ul>`}
      <label class="sr-only" for="message">Message</label>
      <textarea id="message" ref=${box} rows="2" value=${text} placeholder=${awaitingResults ? "Send the results of the calls first" : "Message"} disabled=${awaitingResults}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>
      <p class="about" role="status">${notice}</p>
      <div class="bar">
        ${takesImages && html`<label class="file">Add images <input type="file" accept=${ACCEPTED} multiple onChange=${attach} /></label>`}
        <span class="grow"></span>
        ${running
          ? html`<button type="button" class="stop" onClick=${() => running.abort()}>Stop</button>`
          : html`<button class="main" disabled=${Boolean(given.wrong) || awaitingResults || !(text.trim() || images.length)}>Send</button>`}
      </div>
    </form>
    <${Code} api=${settings.api} make=${draft} wrong=${given.wrong} running=${running} /></div>
  </section>`;
}

function Code({ api, make, wrong, running }) {
  const [kind, setKind] = useState("curl");
  const [open, setOpen] = useState(false); // a long conversation is only written where it is looked at, and not with each token
  const code = useRef("");
  if (wrong) return html`<p class="error" role="status">The request is not valid: ${wrong}</p>`;
  if (open && !running) code.current = (kind === "curl" ? asCurl : asPython)(api, make(), Boolean(key.get()));
  return html`<details class="code" open=${open} onToggle=${(event) => setOpen(event.target.open)}><summary>This request as code</summary>
    <div class="bar" role="group" aria-label="Language">
      ${["curl", "Python"].map((each) => html`<button key=${each} type="button" aria-pressed=${kind === each} onClick=${() => setKind(each)}>${each}</button>`)}
      <span class="grow"></span><${CopyButton} text=${code.current} />
    </div>
    <pre tabindex="0">${code.current}</pre></details>`;
}

render(html`<${App} />`, document.getElementById("app"));
