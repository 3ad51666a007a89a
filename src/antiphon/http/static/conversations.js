// Conversations that are kept in this browser: their store, and the list of them.
//
// They are in IndexedDB, since images are larger than local storage may be: `heads` for the list, and `turns`, each by
// the id of the conversation. Nothing of this is sent to the server.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const LONGEST_TITLE = 60;
const MOST = 300; // conversations: of more, the oldest are deleted

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
  return new Promise((done, failed) => {
    transaction.onabort = () => failed(transaction.error);
    const request = work(transaction.objectStore("heads"), transaction.objectStore("turns"));
    transaction.oncomplete = () => done(request?.result);
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

const FULL = "This conversation is not kept: the browser gives the page no more room. Delete others to make some.";
const reason = (error) => (error?.name === "QuotaExceededError" ? FULL : `This browser does not keep conversations: ${error?.message ?? error}`);

const newestFirst = (heads) => heads.sort((a, b) => b.changed - a.changed);

// What is kept, and the means to change it. `trouble` says why the browser keeps nothing.
export function useConversations() {
  const [heads, setHeads] = useState([]);
  const [trouble, setTrouble] = useState(null);
  const removed = useRef(new Set()); // an answer that ends later must not bring a removed conversation back
  const tried = async (work) => {
    try {
      return await work();
    } catch (error) {
      setTrouble(reason(error));
      return null;
    }
  };
  const refresh = () => tried(async () => setHeads(newestFirst(await transact("readonly", (store) => store.getAll()))));
  const erase = (ids) => transact("readwrite", (...stores) => stores.forEach((store) => ids.forEach((id) => store.delete(id))));
  const save = (id, turns) => tried(async () => {
    if (removed.current.has(id) || !turns.length) return;
    await transact("readwrite", (store, all) => {
      store.put({ id, title: titleOf(turns), changed: Date.now() });
      all.put({ id, turns });
    });
    const old = newestFirst(await transact("readonly", (store) => store.getAll())).slice(MOST);
    if (old.length) await erase(old.map((each) => each.id));
    setTrouble(null);
    await refresh();
  });
  const load = (id) => tried(async () => (await transact("readonly", (_, all) => all.get(id)))?.turns);
  const remove = (ids) => tried(async () => {
    ids.forEach((id) => removed.current.add(id));
    await erase(ids);
    setTrouble(null);
    await refresh();
  });
  useEffect(() => {
    refresh();
    addEventListener("focus", refresh); // another tab may have changed them
    return () => removeEventListener("focus", refresh);
  }, []);
  return { heads, trouble, save, load, remove };
}

// One conversation of the list takes part in the order of Tab; the arrows lead to the others, Delete asks to delete.
export function ConversationList({ kept, current, open, remove, wide }) {
  const [reached, setReached] = useState(null); // the id of the one that Tab leads to
  const [doomed, setDoomed] = useState(null); // {ids, name}
  const list = useRef(null);
  const { heads } = kept;
  const at = (id) => heads.findIndex((each) => each.id === id);
  const position = Math.max(at(reached), at(reached) < 0 ? at(current) : 0, 0);
  const focus = (index) => {
    setReached(heads[index].id);
    list.current.querySelectorAll(".open")[index].focus();
  };
  const move = (event) => {
    const to = { ArrowDown: position + 1, ArrowUp: position - 1, Home: 0, End: heads.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focus(Math.min(Math.max(to, 0), heads.length - 1));
    } else if (event.key === "Delete") setDoomed({ ids: [heads[position].id], name: `“${heads[position].title}”` });
  };
  const decided = (really) => {
    setDoomed(null);
    if (!really) return;
    remove(doomed.ids);
    list.current.querySelector("summary").focus(); // what has been focused is gone
  };
  return html`<details class="history" open=${wide} ref=${list}><summary>Conversations</summary>
    ${kept.trouble && html`<p class="error" role="alert">${kept.trouble}</p>`}
    <nav aria-label="Conversations"><ul onKeyDown=${move}>
      ${heads.map(({ id, title, changed }, index) => {
        const reachable = index === position ? 0 : -1;
        return html`<li key=${id} onFocusIn=${() => setReached(id)}>
          <button class="open" tabindex=${reachable} aria-current=${id === current ? "true" : undefined} title=${new Date(changed).toLocaleString()} onClick=${() => open(id)}>${title}</button>
          <button class="delete" tabindex=${reachable} aria-label=${`Delete ${title}`} onClick=${() => setDoomed({ ids: [id], name: `“${title}”` })}>×</button></li>`;
      })}
    </ul></nav>
    <p class="about">Kept in this browser only${heads.length > 1 ? html`. <button class="link" onClick=${() => setDoomed({ ids: heads.map((each) => each.id), name: `all ${heads.length} conversations` })}>Delete all</button>` : "."}</p>
    ${doomed && html`<${Confirmation} name=${doomed.name} decided=${decided} />`}
  </details>`;
}

function Confirmation({ name, decided }) {
  const dialog = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []);
  const end = (really) => {
    dialog.current.close(); // gives the focus back
    decided(really);
  };
  return html`<dialog ref=${dialog} aria-labelledby="delete-title" onCancel=${(event) => { event.preventDefault(); end(false); }}>
    <h2 id="delete-title">Delete ${name}?</h2>
    <p>There is no copy of it on the server.</p>
    <div class="bar"><button onClick=${() => end(false)}>Cancel</button><button class="stop" onClick=${() => end(true)}>Delete</button></div>
  </dialog>`;
}
