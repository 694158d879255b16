// What the pages about learning share: polling that rests, redrawing that keeps what is open, tabs of cameras, numbers in words.

import { api, make, number, Refused } from "../ui.js";

// Whoever may look only gets no button that the box would refuse.
export const mayOperate = (role) => role === "operator" || role === "admin";
export const mayAdminister = (role) => role === "admin";

// Asks `path` now and then every `everyMs`, not while the tab is hidden; draw(answer) is called when the answer has changed.
// Returns {stop, again}: again() asks at once.
export function polled(root, path, everyMs, draw) {
  let timer = 0, stopped = false, before = null, asking = false;
  async function turn() {
    if (asking || stopped) return;
    asking = true;
    clearTimeout(timer);
    try {
      const told = await api.get(path);
      const text = JSON.stringify(told);
      if (!stopped && text !== before) { before = text; draw(told); }
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (!stopped && before === null) root.replaceChildren(make("p", { class: "hint", role: "status" }, error.message));
    } finally {
      asking = false;
      if (!stopped && !document.hidden) timer = setTimeout(turn, everyMs);
    }
  }
  const seen = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", seen);
  turn();
  return { again: turn, stop: () => { stopped = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); } };
}

// New children in the place of the old ones; what was open stays open, what had the focus gets it again (both by data-key).
export function redrawn(container, ...children) {
  const open = new Set([...container.querySelectorAll("details[open][data-key]")].map((d) => d.dataset.key));
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  container.replaceChildren(...children.filter(Boolean));
  for (const details of container.querySelectorAll("details[data-key]")) if (open.has(details.dataset.key)) details.open = true;
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

// A chart whose table stays open when it is drawn again.
export function keyed(figure, key) {
  const details = figure.querySelector("details");
  details.dataset.key = key;
  details.querySelector("summary").dataset.key = `${key}-summary`;
  return figure;
}

export const section = (title, hint, ...children) =>
  make("section", {}, make("h2", {}, title), hint ? make("p", { class: "hint" }, hint) : null, ...children);

export const more = (key, title, ...children) =>
  make("details", { "data-key": key }, make("summary", { "data-key": `${key}-summary` }, title), ...children);

export const facts = (pairs) => make("dl", {}, ...pairs.flatMap(([name, value, words]) =>
  [make("dt", { title: words || null }, name), make("dd", {}, value)]));

// Links to the same page of other cameras.
export function cameraTabs(page, cameras, current, all = "") {
  const links = [...(all ? [["", all]] : []), ...cameras.map((id) => [id, id])];
  return make("nav", { class: "tabs", "aria-label": "Cameras" }, ...links.map(([id, words]) =>
    make("a", { href: `#/${page}${id ? `/${id}` : ""}`, "aria-current": id === current ? "page" : null, "data-key": `tab-${id}` }, words)));
}

// "+0.0123": a change of a quality.
export function change(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(value), digits)}`;
}

export const badge = (words, kind = "") => make("span", { class: `badge ${kind}` }, words);
export const seconds = (s) => (s === null || s === undefined ? "–" : `${s.toFixed(s < 10 ? 1 : 0)} s`);
export const gpuSeconds = (s) => (s === null || s === undefined ? "–" : `${s.toFixed(1)} GPU-s`);
export const mib = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 10 ? 1 : 0)} MiB`);

// A picture with boxes over it. groups: [{name, kind, boxes: [{class, xyxy, score}]}]; kind: golden, person, unsure, before, after.
export function pictured(sample, width, height, groups, alt) {
  const drawn = groups.flatMap(({ kind, boxes }) => boxes.map((box) => boxShape(box, kind, width)));
  return make("div", { class: "stage looked-at" },
    make("img", { src: `/api/v1/labels/${sample}/picture.jpg?boxes=false`, width, height, alt, loading: "lazy" }),
    overlay(width, height, drawn));
}

// What lies over a picture, in its own pixels; words are as large on every picture.
export function overlay(width, height, shapes) {
  const svg = make("svg", { class: "boxes", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...shapes);
  svg.style.fontSize = `${(width / 42).toFixed(2)}px`;
  return svg;
}

export function boxShape(box, kind, width, key = null) {
  const [left, top, right, bottom] = box.xyxy;
  const words = `${box.class}${kind === "person" || kind === "golden" || box.score === undefined ? "" : ` ${number(box.score)}`}`;
  return make("g", { class: `box ${kind}`, "data-box": key },
    make("rect", { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) }),
    left > 0.75 * width ? make("text", { x: right, y: Math.max(width / 42, top - width / 200), "text-anchor": "end" }, words) :
      make("text", { x: left, y: Math.max(width / 42, top - width / 200) }, words));
}
