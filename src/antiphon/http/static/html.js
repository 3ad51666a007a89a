// Used by all modules of the page: templates without a build step, and what is stored in the browser.

import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment, useEffect, useLayoutEffect, useMemo, useRef, useState };

// A state that is stored in this browser's local storage, where there is room for it.
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
    set(next);
    try {
      localStorage.setItem(`antiphon.${name}`, JSON.stringify(next));
    } catch {} // full, or forbidden: the state holds until the tab is closed
  };
  return [value, change];
}

export function bytes(count) {
  if (!count) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(count) / 10), 4);
  return `${(count / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${units[power]}`;
}
