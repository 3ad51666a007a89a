// Buttons that copy a text: they say whether they did.

import { html, useState } from "./html.js";

// Without TLS, browsers give a page that is not on localhost no clipboard: there a selection is copied.
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const focused = document.activeElement;
  const place = document.createElement("textarea");
  place.value = text;
  place.className = "sr-only";
  document.body.append(place);
  place.select();
  const done = document.execCommand("copy");
  place.remove();
  focused?.focus();
  if (!done) throw new Error("The browser does not copy.");
}

// What the button says next.
export async function copied(text) {
  try {
    await write(text);
    return "Copied";
  } catch {
    return "Not copied";
  }
}

export const COPIED_MS = 2000;

export function CopyButton({ text, label = "Copy" }) {
  const [said, setSaid] = useState(null);
  const copy = async () => {
    setSaid(await copied(text));
    setTimeout(() => setSaid(null), COPIED_MS);
  };
  return html`<button type="button" onClick=${copy}>${said ?? label}</button>`;
}
