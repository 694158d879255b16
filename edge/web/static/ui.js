// What every page builds with: elements, words for numbers, questions to the box, talking to the person. No page talks to the box or to
// the person in another way. Text always goes in as text nodes, never as HTML: names and notes come from outside.

const SVG = "http://www.w3.org/2000/svg";
// What speaks here: a box, or what the page says it is (<html data-thing="controller">).
export const THING = document.documentElement.dataset.thing || "box";
const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "polyline", "polygon", "text", "image", "desc"]);

// make("button", {type: "button", onclick: f, class: "quiet"}, "text", child): attributes, `on...` are listeners, null and false are left out.
export function make(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Changes only what changed, so that focus, scroll and screen readers stay where they are.
export function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

// const changed = remember(); if (changed("plan", status.plan)) drawPlan(...): draws again only what is new, so that open details stay open.
export function remember() {
  const known = {};
  return (key, value) => {
    const text = JSON.stringify(value);
    const different = known[key] !== text;
    known[key] = text;
    return different;
  };
}

export const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
export const percent = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 10 && value % 1 ? 1 : 0)} %`);
export const clock = (utc) => new Date(utc * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
export const moment = (utc) => new Date(utc * 1000).toLocaleString();

export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return `${bytes.toFixed(at ? 1 : 0)} ${units[at]}`;
}

// --- the box -----------------------------------------------------------------------------------------------------------

// What the box refused: `message` is its own words, `status` the HTTP status (0: it did not answer).
export class Refused extends Error {
  constructor(status, message, code = "") { super(message); this.status = status; this.code = code; }
}

async function ask(method, path, body, more = {}) {
  const headers = { "X-Driftbox": "page", ...more };  // a form of another site cannot send it
  const file = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = file ? "application/octet-stream" : "application/json";
  let answer;
  try {
    answer = await fetch(`/api/v1/${path}`, { method, headers, body: body === undefined || file ? body : JSON.stringify(body) });
  } catch {
    throw new Refused(0, `the ${THING} does not answer`);
  }
  const json = (answer.headers.get("Content-Type") || "").includes("json");
  const text = await answer.text();
  const told = json && text ? JSON.parse(text) : text;  // 204 says JSON and brings nothing
  if (answer.status === 401) window.dispatchEvent(new CustomEvent("driftbox-signed-out"));
  if (!answer.ok) throw new Refused(answer.status, wordsOf(told) || answer.statusText, told?.code ?? told?.error?.code);
  return told;
}

// Our own errors have a text, and problems by field; FastAPI's list what is wrong with which field.
function wordsOf(told) {
  if (told?.error?.message) return told.error.remedy ? `${told.error.message}; ${told.error.remedy}` : told.error.message;  // a controller's
  const detail = told?.detail;
  if (Array.isArray(told?.problems)) return `${detail}: ${told.problems.map((p) => `${p.field}: ${p.text}`).join("; ")}`;
  if (Array.isArray(detail)) return detail.map((d) => `${d.loc?.slice(1).join(".")}: ${d.msg}`).join("; ");
  return typeof detail === "string" ? detail : "";
}

// api.get("status"), api.put("labels/gate/3/17", {...}, {"If-Match": etag}): JSON in, JSON out, Refused when the box says no. A body that is a
// file (Blob) is sent as it is.
export const api = {
  get: (path) => ask("GET", path), post: (path, body) => ask("POST", path, body ?? {}),
  put: (path, body, headers) => ask("PUT", path, body ?? {}, headers), patch: (path, body, headers) => ask("PATCH", path, body, headers),
  remove: (path, headers) => ask("DELETE", path, undefined, headers),
};

// --- the person --------------------------------------------------------------------------------------------------------

const WORDS_STAY_MS = 10_000;
let going = 0;

// Says something without taking the focus; what went well goes after a while, problems stay until the next word.
export function announce(text, problem = false) {
  clearTimeout(going);
  if (text && !problem) going = setTimeout(announce, WORDS_STAY_MS, "");
  const line = document.getElementById("announcement");
  line.className = problem ? "problem" : "";
  line.dataset.at = performance.now();
  setText(line, text);
}

// Runs what a button does: the button rests meanwhile, and what the box refuses is told. Returns whether it went well.
export async function act(button, work, done = "") {
  button.disabled = true;
  try {
    await work();
    announce(done);
    return true;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    announce(error.message, true);
    return false;
  } finally {
    button.disabled = false;
  }
}

// A modal dialog; resolves to the pressed button's value, or "" when it was closed. buttons: [[value, words], ...], the last is the usual one.
export function asked(title, body, buttons) {
  return new Promise((resolve) => {
    const dialog = make("dialog", { "aria-labelledby": "dialog-title" },
      make("form", { method: "dialog" }, make("h2", { id: "dialog-title" }, title), body,
        make("div", { class: "buttons" }, ...buttons.map(([value, words]) => make("button", { value }, words)))));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// A table with a caption and headings; rows: cells as text or elements. On a phone each row of more than three columns is drawn as a list
// of its cells with their headings; the roles keep it a table for screen readers there too, where layout alone would make it none.
export function table(caption, headings, rows) {
  return make("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    make("table", { class: headings.length > 3 ? "stacks" : null, role: "table" }, make("caption", {}, caption),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...headings.map((words) => make("th", { scope: "col", role: "columnheader" }, words)))),
      make("tbody", { role: "rowgroup" }, ...rows.map((cells) => make("tr", { role: "row" },
        ...cells.map((cell, i) => make("td", { role: "cell", "data-heading": headings[i] }, cell)))))));
}
