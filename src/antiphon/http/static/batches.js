// The view of batches: files of requests are sent, watched with a bar, cancelled, and their results downloaded.

import { html, useEffect, useState } from "./html.js";
import { json, request } from "./api.js";

const EVERY = 1000; // milliseconds
const LISTED = 20; // batches of a page of the list
const ENDED = ["completed", "failed", "expired", "cancelled"];
const SHOWN = 20; // errors of a file
const FIRST = 64 * 1024; // bytes of a file in which its first line is looked for

export function Batches() {
  const [listed, setListed] = useState(null);
  const [more, setMore] = useState(false);
  const [sending, setSending] = useState(false);
  const [error, setError] = useState(null);
  const read = async (after) => {
    try {
      const page = await json(`v1/batches?limit=${LISTED}${after ? `&after=${after}` : ""}`);
      setListed((before) => [...(after ? before : []), ...page.data]);
      setMore(page.has_more);
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  };
  useEffect(() => void read(), []);
  const send = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    setSending(true);
    try {
      const form = new FormData();
      form.append("purpose", "batch");
      form.append("file", file);
      const uploaded = await json("v1/files", { body: form });
      const wanted = { input_file_id: uploaded.id, endpoint: await endpointOf(file), completion_window: "24h" };
      const batch = await json("v1/batches", { body: wanted });
      setListed((before) => [batch, ...(before ?? [])]);
      setError(null);
    } catch (failure) {
      setError(failure);
    }
    setSending(false);
  };
  return html`<section class="view" aria-labelledby="batches-title">
    <h2 id="batches-title">Batches</h2>
    <p>All of this key, newest first. A batch is a file with a request on each line, which is answered while nobody else needs the model.</p>
    <div class="inline">
      <label class="file">${sending ? "Sending…" : "Send a file"} <input type="file" accept=".jsonl,.ndjson,application/jsonl" disabled=${sending} onChange=${send} /></label>
      <span class="grow"></span>
      <button onClick=${() => read()}>Refresh</button>
    </div>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    <ul class="jobs">${(listed ?? []).map((each) => html`<${Batch} key=${each.id} known=${each} />`)}</ul>
    ${listed && !listed.length && html`<p>None yet.</p>`}
    ${more && html`<button onClick=${() => read(listed[listed.length - 1].id)}>Show older</button>`}
  </section>`;
}

// The endpoint of a file is the `url` of its first line. If that is no JSON, the server says what is wrong.
async function endpointOf(file) {
  const [line] = (await file.slice(0, FIRST).text()).split("\n");
  try {
    return JSON.parse(line).url ?? "/v1/chat/completions";
  } catch {
    return "/v1/chat/completions";
  }
}

// `known` is its entry in the list: a batch that has ended is not requested again.
function Batch({ known }) {
  const [batch, setBatch] = useState(known);
  const [error, setError] = useState(null);
  useEffect(() => {
    let over = false;
    let timer;
    const poll = async () => {
      try {
        const now = await json(`v1/batches/${known.id}`);
        if (over) return;
        setBatch(now);
        if (!ENDED.includes(now.status)) timer = setTimeout(poll, EVERY);
      } catch (failure) {
        if (!over) setError(failure);
      }
    };
    setBatch(known);
    if (!ENDED.includes(known.status)) poll();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [known]);
  const { total, completed, failed } = batch.request_counts;
  const wrong = batch.errors?.data ?? [];
  const cancel = () => json(`v1/batches/${batch.id}/cancel`, { body: {} }).then(setBatch, setError);
  return html`<li>
    <div class="bar">
      <code class="id">${batch.id}</code> <span class="tag">${batch.status}</span>
      <span class="grow"></span>
      ${!ENDED.includes(batch.status) && html`<button disabled=${batch.status === "cancelling"} onClick=${cancel}>Cancel</button>`}
      ${batch.output_file_id && html`<button onClick=${() => download(batch.output_file_id).catch(setError)}>Results</button>`}
      ${batch.error_file_id && html`<button onClick=${() => download(batch.error_file_id).catch(setError)}>Errors</button>`}
    </div>
    <progress class="lines" aria-label=${`Lines of ${batch.id}`} max=${total || 1} value=${completed + failed}></progress>
    <p class="about">${completed} of ${total} answered${failed ? `, ${failed} failed` : ""}; ${batch.model ?? "no model"}, ${batch.endpoint}, <time>${new Date(batch.created_at * 1000).toLocaleString()}</time></p>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    ${wrong.length > 0 && html`<ul class="wrong">${wrong.slice(0, SHOWN).map((each, index) => html`<li key=${index}>${each.line ? `Line ${each.line}: ` : ""}${each.message}</li>`)}
      ${wrong.length > SHOWN && html`<li>and ${wrong.length - SHOWN} more</li>`}</ul>`}
  </li>`;
}

// The request needs the key, so a link to the file would not do.
async function download(id) {
  const { filename } = await json(`v1/files/${id}`);
  const url = URL.createObjectURL(await (await request(`v1/files/${id}/content`)).blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), EVERY);
}
