// Markdown of models as safe HTML, block by block: while an answer is streamed, only its last block is rendered again.
//
// A block is what blank lines or a fence of code separate at the outermost level. A block of code is made here, without
// a parser, and text is only ever appended to it; all else becomes HTML through marked and DOMPurify. A reference to a
// link that another block defines stays as it was written.

import { html, useLayoutEffect, useRef } from "./html.js";
import { COPIED_MS, copied } from "./copy.js";
import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

marked.use({
  breaks: true, // a line of a model is a line
  renderer: {
    heading({ tokens, depth }) {
      const tag = `h${Math.min(depth + 1, 6)}`; // the page has a first one
      return `<${tag}>${this.parser.parseInline(tokens)}</${tag}>\n`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

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

// What is too long, or would take too long, stays text. A block that still grows is rendered with each delta, so its limits
// are lower. Some texts take the parser a time that grows with the square of their length.
const MOST_OPEN = 8000; // characters
const MOST_CLOSED = 20000;
const SLOW_MS = 30; // for a block: an open one is then not rendered again until it is closed
const PATIENCE_MS = 1000; // for all slow blocks of a text

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

// A block of code with its language, and a button that copies what is in its text node.
function codeBlock(language, text = "") {
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
  const node = document.createTextNode(text);
  pre.appendChild(document.createElement("code")).append(node);
  button.addEventListener("click", async () => {
    button.textContent = await copied(node.data);
    setTimeout(() => (button.textContent = "Copy code"), COPIED_MS);
  });
  return { block, node };
}

// The source as safe HTML, or null where it is nested deeper than the parser can follow.
function rendered(source) {
  let made;
  try {
    made = DOMPurify.sanitize(marked.parse(source), ALLOWED);
  } catch (error) {
    if (!(error instanceof RangeError) && !/call stack/.test(error.message)) throw error;
    return null;
  }
  for (const pre of made.querySelectorAll("pre")) pre.replaceWith(codeBlock("", pre.textContent.replace(/\n$/, "")).block);
  for (const table of made.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "scroll";
    frame.tabIndex = 0; // as for code
    table.replaceWith(frame);
    frame.append(table);
  }
  return made;
}

// A text that grows, in an element: its blocks one after the other, each in an element of its own.
class Document {
  #blocks = new Blocks();
  #shown = 0; // closed blocks
  #spent = 0; // milliseconds for slow closed blocks
  #place = null; // of the open block
  #grows = null; // {language, node} of code, or of a block that stays text, which has no language: it is only added to
  #slow = false; // the open block has taken too long

  constructor(root) {
    this.root = root;
  }

  take(text, done) {
    if (!this.#blocks.take(text, done)) {
      this.root.replaceChildren();
      this.#shown = this.#spent = 0;
      this.#next();
    }
    this.#place ??= this.root.appendChild(document.createElement("div"));
    const { closed } = this.#blocks;
    while (this.#shown < closed.length) this.#close(closed);
    const code = this.#blocks.openCode;
    if (code) this.#append(code.language, text.slice(code.from, code.to));
    else this.#open(this.#blocks.open);
  }

  #next() {
    this.#place = this.root.appendChild(document.createElement("div"));
    this.#grows = null;
    this.#slow = false;
  }

  // Shows the next closed block, and with it those that follow, as far as one call of the parser may take them.
  #close(closed) {
    let { source, code } = closed[this.#shown++];
    if (code) this.#append(code.language, code.text);
    else {
      const may = (next) => next && !next.code && source.length + next.source.length <= MOST_OPEN;
      while (may(closed[this.#shown])) source += closed[this.#shown++].source;
      const began = performance.now();
      const made = source.length <= MOST_CLOSED && this.#spent < PATIENCE_MS ? rendered(source) : null;
      const took = performance.now() - began;
      if (took > SLOW_MS) this.#spent += took;
      if (made) this.#place.replaceChildren(made);
      else this.#append(null, source);
    }
    this.#next();
  }

  #open(source) {
    const began = performance.now();
    const made = source.length <= MOST_OPEN && !this.#slow ? rendered(source) : null;
    this.#slow ||= performance.now() - began > SLOW_MS;
    if (!made) return this.#append(null, source);
    this.#grows = null;
    this.#place.replaceChildren(made);
  }

  // Adds what is new of a code, or of a text, whose language is null.
  #append(language, text) {
    if (this.#grows?.language !== language) {
      const { block, node } = language === null ? plain() : codeBlock(language);
      this.#place.replaceChildren(block);
      this.#grows = { language, node };
    }
    const { node } = this.#grows;
    if (text.length > node.length) node.appendData(text.slice(node.length));
    else if (text.length < node.length) node.deleteData(text.length, node.length);
  }
}

function plain() {
  const block = document.createElement("div");
  block.className = "plain";
  return { block, node: block.appendChild(document.createTextNode("")) };
}

export function Markdown({ text, running }) {
  const place = useRef(null);
  const shown = useRef(null);
  useLayoutEffect(() => (shown.current ??= new Document(place.current)).take(text, !running), [text, running]);
  return html`<div class="markdown" ref=${place}></div>`;
}
