// Markdown of models as safe HTML, block by block: while an answer is streamed, only its last block is rendered again.
//
// A block is what blank lines or a fence of code separate at the outermost level. A block of code is made here, without
// a parser, and text is only ever appended to it; all else becomes HTML through marked and DOMPurify. A reference to a
// link that another block defines stays as it was written.

import { html, useLayoutEffect, useRef } from "./html.js";
import { COPIED_MS, copied } from "./copy.js";
import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

// A model may write anything: nothing that sends, plays, loads or looks like a part of the page.
const ALLOWED = {
  ALLOWED_TAGS: ("a b blockquote br code dd del details dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small "
    + "strong sub summary sup table tbody td tfoot th thead tr u ul var").split(" "),
  ALLOWED_ATTR: ["align", "alt", "colspan", "href", "open", "rowspan", "src", "start", "title"],
  ALLOWED_URI_REGEXP: /^https?:/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
  if (node.tagName === "IMG" && !node.src.startsWith("data:")) node.replaceWith(node.alt || "[image]"); // loading it would tell its server of the conversation
});

// Longer blocks stay text. One that still grows is rendered with each delta, so its limit is lower.
const MOST_OPEN = 8000;
const MOST_CLOSED = 20000;

const FENCE = /^( *)(`{3,}|~{3,})/;
const ENDS_FENCE = /^ *(`{3,}|~{3,})[ \t]*$/;
const MAY_END_FENCE = /^ *[`~]*$/;
const LISTED = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
const INDENTED = /^(?: {2}|\t)/;

// Splits a text that grows into blocks. Each line is read once.
export class Blocks {
  closed = []; // {source, code}, where code is null, or {language, text}
  start = 0; // of the open block
  #text = "";
  #read = 0; // the start of the first line that is not complete
  #done = false;
  #fence = null; // {mark, own, from}: `own` if the block is nothing but code, which begins at `from`
  #blank = false;
  #list = false;

  // True if `text` continues the text before; if not, all begins anew.
  take(text, done) {
    const continued = !this.#done && text.startsWith(this.#text);
    if (!continued) this.#reset();
    this.#text = text;
    for (let end; (end = text.indexOf("\n", this.#read)) >= 0; ) this.#line(text.slice(this.#read, end), end + 1);
    if (done && this.#read < text.length) this.#line(text.slice(this.#read), text.length);
    if (done) this.#close(text.length, this.#fence?.own ? text.length : null);
    this.#done = done;
    return continued;
  }

  get open() {
    return this.#text.slice(this.start);
  }

  // The code of the open block, if it is one: where it begins and, so far, ends.
  get openCode() {
    if (!this.#fence?.own) return null;
    const mayEnd = MAY_END_FENCE.test(this.#text.slice(this.#read));
    return { language: this.#fence.language, from: this.#fence.from, to: mayEnd ? this.#read : this.#text.length };
  }

  #reset() {
    this.closed = [];
    this.start = 0;
    this.#read = 0;
    this.#fence = null;
    this.#blank = false;
    this.#list = false;
  }

  #close(end, codeEnd = null) {
    const source = this.#text.slice(this.start, end);
    if (source.trim()) {
      const code = codeEnd === null ? null : { language: this.#fence.language, text: this.#text.slice(this.#fence.from, codeEnd) };
      this.closed.push({ source, code });
    }
    this.start = end;
    this.#fence = null;
    this.#blank = false;
    this.#list = false;
  }

  #line(line, next) {
    const at = this.#read;
    this.#read = next;
    if (this.#fence) {
      const ends = ENDS_FENCE.exec(line)?.[1];
      if (!ends?.startsWith(this.#fence.mark)) return;
      if (this.#fence.own) this.#close(next, at);
      else this.#fence = null;
      return;
    }
    if (!line.trim()) {
      this.#blank = true;
      return;
    }
    const fence = FENCE.exec(line);
    const own = fence && !fence[1] && !line.slice(fence[2].length).includes("`");
    const continues = this.#list ? INDENTED.test(line) || LISTED.test(line) : /^(?: {4}|\t)/.test(line);
    if (own || (this.#blank && !continues)) this.#close(at);
    if (this.start === at || !this.#text.slice(this.start, at).trim()) this.#list = LISTED.test(line);
    this.#blank = false;
    if (fence) this.#fence = { mark: fence[2], own: Boolean(own), from: next, language: line.slice(fence[2].length).trim().split(/\s/)[0] };
  }
}

// A block of code with its language, and a button that copies it. The text is in the text node `code`.
function codeBlock(language, text) {
  const block = document.createElement("div");
  block.className = "code-block";
  const head = block.appendChild(document.createElement("div"));
  head.className = "code-head";
  head.appendChild(document.createElement("span")).textContent = language.slice(0, 40);
  const button = head.appendChild(document.createElement("button"));
  button.type = "button";
  button.textContent = "Copy code";
  const pre = block.appendChild(document.createElement("pre"));
  pre.tabIndex = 0; // it scrolls: the keyboard has to reach it
  const code = document.createTextNode(text);
  pre.appendChild(document.createElement("code")).append(code);
  button.addEventListener("click", async () => {
    button.textContent = await copied(code.data);
    setTimeout(() => (button.textContent = "Copy code"), COPIED_MS);
  });
  return { block, code };
}

function rendered(source, most) {
  if (source.length > most) return plain(source);
  let made;
  try {
    made = DOMPurify.sanitize(marked.parse(source), ALLOWED);
  } catch (error) {
    if (!(error instanceof RangeError) && !/call stack/.test(error.message)) throw error;
    return plain(source); // nested deeper than the parser can follow
  }
  for (const pre of made.querySelectorAll("pre")) pre.replaceWith(codeBlock("", pre.textContent).block);
  return made;
}

function plain(source) {
  const made = document.createElement("div");
  made.className = "plain";
  made.textContent = source;
  return made;
}

export function Markdown({ text, running }) {
  const place = useRef(null);
  const state = useRef(null);
  useLayoutEffect(() => {
    const root = place.current;
    const now = (state.current ??= { blocks: new Blocks(), shown: 0, open: null });
    if (!now.blocks.take(text, !running)) {
      root.replaceChildren();
      Object.assign(now, { shown: 0, open: null });
    }
    now.open ??= root.appendChild(document.createElement("div"));
    for (; now.shown < now.blocks.closed.length; now.shown++) {
      const { source, code } = now.blocks.closed[now.shown];
      show(now, code, source, MOST_CLOSED);
      now.open = root.appendChild(document.createElement("div"));
      now.code = null;
    }
    const code = now.blocks.openCode;
    if (code) show(now, { language: code.language, text: text.slice(code.from, code.to) }, "", 0);
    else show(now, null, now.blocks.open, MOST_OPEN);
  }, [text, running]);
  return html`<div class="markdown" ref=${place}></div>`;
}

// Shows a block in the last element. To code that is there already, only what is new is added.
function show(now, code, source, most) {
  if (!code) {
    now.code = null;
    now.open.replaceChildren(...(source.trim() ? [rendered(source, most)] : []));
    return;
  }
  if (!now.code) {
    const made = codeBlock(code.language, "");
    now.open.replaceChildren(made.block);
    now.code = made.code;
  }
  if (code.text.length > now.code.length) now.code.appendData(code.text.slice(now.code.length));
  else if (code.text.length < now.code.length) now.code.deleteData(code.text.length, now.code.length);
}
