// Used by all modules of the page: templates without a build step, and Markdown of models as safe HTML.

import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

export const html = htm.bind(h);
export { render, Fragment, useEffect, useLayoutEffect, useRef, useState };

// A model may write anything: no forms, no styles, and links open elsewhere, without this page.
const ALLOWED = { FORBID_TAGS: ["style", "form", "input", "button", "iframe"], FORBID_ATTR: ["style", "class", "id"], RETURN_DOM_FRAGMENT: true };
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
  if (node.tagName === "IMG" && !node.src.startsWith("data:")) node.replaceWith(node.alt || "[image]"); // loading it would tell its server of the conversation
  if (node.tagName === "PRE") node.setAttribute("tabindex", "0"); // it scrolls: the keyboard has to reach it
});

const MOST_MARKDOWN = 50000; // longer texts are not rendered: each delta would render all of it again

export function Markdown({ text }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    if (text.length > MOST_MARKDOWN) place.current.replaceChildren(text);
    else place.current.replaceChildren(DOMPurify.sanitize(marked.parse(text), ALLOWED));
  }, [text]);
  return html`<div class="markdown" ref=${place}></div>`;
}

// A state that is stored in this browser's local storage.
export function useStored(name, initial) {
  const [value, set] = useState(() => {
    try {
      const kept = JSON.parse(localStorage.getItem(`antiphon.${name}`));
      return kept === null ? initial : kept;
    } catch {
      return initial;
    }
  });
  const change = (next) => {
    localStorage.setItem(`antiphon.${name}`, JSON.stringify(next));
    set(next);
  };
  return [value, change];
}

export function bytes(count) {
  if (!count) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(count) / 10), 4);
  return `${(count / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${units[power]}`;
}
