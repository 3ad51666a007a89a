// Conversations that are kept in this browser: their store, and the list of them.
//
// They are in IndexedDB, since images are larger than local storage may be: `heads` for the list, and `turns`, each by
// the id of the conversation. Nothing of this is sent to the server.

import { html, useEffect, useRef, useState } from "./html.js";

const LONGEST_TITLE = 60;

let opened = null;
const database = () => (opened ??= new Promise((done, failed) => {
  const request = indexedDB.open("antiphon", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("heads", { keyPath: "id" });
    request.result.createObjectStore("turns", { keyPath: "id" });
  };
  request.onsuccess = () => done(request.result);
  request.onerror = () => failed(request.error);
}));

// Runs `work` in a transaction over both stores, and returns the result of the request that it makes, once all is written.
async function transact(mode, work) {
  const transaction = (await database()).transaction(["heads", "turns"], mode);
  const request = work(transaction.objectStore("heads"), transaction.objectStore("turns"));
  return new Promise((done, failed) => {
    transaction.oncomplete = () => done(request?.result);
    transaction.onabort = () => failed(transaction.error);
  });
}

// Ids do not have to be secret, and `crypto.randomUUID` is missing without TLS.
export const newConversation = () => ({ id: [...crypto.getRandomValues(new Uint32Array(4))].map((each) => each.toString(36)).join("-"), turns: [] });

function titleOf(turns) {
  const [first] = turns;
  const line = first.text.trim().split("\n", 1)[0];
  if (!line) return first.images.length ? "Image" : "Conversation";
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line;
}

// What is kept, and the means to change it. `trouble` says why the browser keeps nothing.
export function useConversations() {
  const [heads, setHeads] = useState([]);
  const [trouble, setTrouble] = useState(null);
  const removed = useRef(new Set()); // an answer that ends later must not bring a removed conversation back
  const tried = async (work) => {
    try {
      return await work();
    } catch (error) {
      setTrouble(`This browser does not keep the conversations: ${error?.message ?? error}`);
      return null;
    }
  };
  const refresh = () => tried(async () => {
    const found = await transact("readonly", (store) => store.getAll());
    setHeads(found.sort((a, b) => b.changed - a.changed));
  });
  const save = (id, turns) => tried(async () => {
    if (removed.current.has(id) || !turns.length) return;
    await transact("readwrite", (store, all) => {
      store.put({ id, title: titleOf(turns), changed: Date.now() });
      all.put({ id, turns });
    });
    setTrouble(null);
    await refresh();
  });
  const load = (id) => tried(async () => (await transact("readonly", (_, all) => all.get(id)))?.turns);
  const remove = (ids) => tried(async () => {
    ids.forEach((id) => removed.current.add(id));
    await transact("readwrite", (store, all) => ids.forEach((id) => [store, all].forEach((each) => each.delete(id))));
    await refresh();
  });
  useEffect(() => {
    refresh();
    addEventListener("focus", refresh); // another tab may have changed them
    return () => removeEventListener("focus", refresh);
  }, []);
  return { heads, trouble, save, load, remove };
}

export function ConversationList({ kept, current, open, remove, wide }) {
  const [asked, setAsked] = useState(null); // what is to be deleted, if the same button is pressed again
  const list = useRef(null);
  const sure = (id, ids) => {
    if (asked !== id) return setAsked(id);
    setAsked(null);
    remove(ids);
    list.current.querySelector("summary").focus(); // the button is gone
  };
  const deleting = (id, ids, label) => html`<button class="delete" aria-label=${asked === id ? `Delete ${label} for good` : `Delete ${label}`}
    onClick=${() => sure(id, ids)} onBlur=${() => setAsked((now) => (now === id ? null : now))}>${asked === id ? "Delete?" : "×"}</button>`;
  return html`<details class="history" open=${wide} ref=${list}><summary>Conversations</summary>
    ${kept.trouble && html`<p class="error" role="alert">${kept.trouble}</p>`}
    ${!kept.heads.length && html`<p class="about">They are kept in this browser only.</p>`}
    <nav aria-label="Conversations"><ul>
      ${kept.heads.map(({ id, title, changed }) => html`<li key=${id}>
        <button class="open" aria-current=${id === current ? "true" : undefined} title=${new Date(changed).toLocaleString()} onClick=${() => open(id)}>${title}</button>
        ${deleting(id, [id], title)}</li>`)}
    </ul></nav>
    ${kept.heads.length > 1 && html`<div class="bar"><span class="grow about">All of them</span>${deleting("all", kept.heads.map((each) => each.id), "all conversations")}</div>`}
  </details>`;
}
