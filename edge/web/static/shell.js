// The frame around every page, of a box (box.js) and of a controller: which page the address names, navigation, the status at the top, who is signed in.
// A page is pages/NAME.js, loaded when it is first asked for: export default {id, title, mount(root, context) -> cleanup or nothing}.
// context: {status(fn) -> unsubscribe, events(fn) -> unsubscribe, role, go(hash), words}; words: the rest of the address,
// "#/models/gate" -> ["gate"].
// The page's title is the h1 that stands here; a page begins its own headings at h2.

import { THING, announce, make, setText } from "./ui.js";
import * as feed from "./feed.js";
import { drawPerson, letIn, whoAsks } from "./session.js";

// What differs between a box and a controller: {pages: {id: [title, load]}, home, outside: ids that stand in no navigation, first: address
// after the claim, told(status) -> {name, software, words, trouble: {href, words} or nothing}}.
let app = null;

const byId = (id) => document.getElementById(id);
const shown = { id: "", cleanup: null, turn: 0 };
const AGAIN_MS = 2000;
const FRESH_MS = 1000;
let ownName = "";
let me = null;

// "#/models/gate%2F1" -> ["models", ["gate/1"]]; a broken address is the home page's.
function readAddress() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  try {
    const [id = app.home, ...words] = parts.map(decodeURIComponent);
    return [id, words];
  } catch {
    return [app.home, []];
  }
}

function go(hash) {
  if (location.hash === hash) show(true);
  else location.hash = hash;
}

async function show(byPerson) {
  if (!me) return;  // signing in comes first; the address waits
  const [id, words] = readAddress();
  const turn = ++shown.turn;
  leave();
  const [title, load] = app.pages[id] || ["No such page", null];
  shown.id = id;
  mark(id, title);
  forgetOldWords();
  const root = make("div", { id: "page" });
  byId("page").replaceWith(root);
  const page = load ? await load().then((module) => module.default, missing) : null;
  if (turn !== shown.turn) return;  // somebody has gone on meanwhile
  if (!page) root.append(make("p", { class: "hint" }, "This page is not there. ", make("a", { href: `#/${app.home}` }, `To ${app.pages[app.home][0]}`)));
  else mountInto(root, page, words);
  if (byPerson) byId("page-title").focus();
}

function mountInto(root, page, words) {
  const stops = new Set();
  const kept = (stop) => { stops.add(stop); return stop; };
  const status = (fn) => kept(feed.subscribe(fn));
  const events = (fn) => kept(feed.subscribeEvents(fn));
  const cleanup = page.mount(root, { status, events, role: me?.role ?? "viewer", go, words });
  // What a page forgets to end is ended here.
  shown.cleanup = () => { for (const stop of stops) stop(); if (typeof cleanup === "function") cleanup(); };
}

function missing(error) {
  console.error(error);
  return null;
}

// What was told on the page before; what was told together with coming here stays.
function forgetOldWords() {
  if (performance.now() - Number(byId("announcement").dataset.at || 0) > FRESH_MS) announce("");
}

function leave() {
  const cleanup = shown.cleanup;
  shown.cleanup = null;
  if (cleanup) cleanup();
}

function mark(id, title) {
  setText(byId("page-title"), title);
  document.title = [title, ownName, "Driftbox"].filter(Boolean).join(" – ");
  for (const link of byId("nav").querySelectorAll("a")) {
    if (link.dataset.page === id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showCurrent();
}

// On a phone the navigation is wider than the screen: the page one is on stands in sight, with its neighbours.
function showCurrent() {
  const list = byId("nav").querySelector("ul"), link = list?.querySelector("[aria-current]");
  if (link) list.scrollLeft = link.offsetLeft - list.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
}

function drawNavigation() {
  const links = Object.entries(app.pages).filter(([id]) => !app.outside.includes(id));
  byId("nav").replaceChildren(make("ul", {}, ...links.map(([id, [title]]) =>
    make("li", {}, make("a", { href: `#/${id}`, "data-page": id }, title)))));
  byId("nav").hidden = false;
}

function drawSummary(status) {
  const { name, software, words, trouble } = app.told(status);
  if (name !== ownName) { ownName = name; mark(shown.id, byId("page-title").textContent); }
  setText(byId("box-name"), name);
  setText(byId("software"), software);
  setText(byId("summary"), words);
  drawTrouble(trouble);
}

// What is wrong stands on every page, with the way to where it is explained; told by screen readers when it comes and changes.
function drawTrouble(trouble) {
  if (!byId("trouble")) byId("summary").after(make("p", { id: "trouble", role: "status" }));
  const place = byId("trouble");
  if (place.textContent === (trouble?.words ?? "")) return;
  place.replaceChildren(...(trouble ? [make("a", { href: trouble.href, class: "bad-words" }, trouble.words)] : []));
}

// Asks who is there, and goes on with the page of the address, or with signing in.
async function begin() {
  const state = await whoAsks().catch(() => null);
  if (!state) { setText(byId("summary"), `the ${THING} does not answer; trying again …`); setTimeout(begin, AGAIN_MS); return; }
  me = state.me;
  drawPerson(byId("person"), me, begin);
  if (!me) { askForPerson(state); return; }
  drawNavigation();
  feed.start();
  show(false);
}

function askForPerson(state) {
  feed.stop();
  leave();
  shown.turn += 1;
  byId("nav").hidden = true;
  setText(byId("summary"), "");
  announce("");
  const title = letIn(byId("page"), state, (first) => { if (first) location.hash = app.first; begin(); });
  mark("", title);
}

// Begins; called once, by the page's own module.
export function start(what) {
  app = what;
  // The skip link must not be taken for the address of a page.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  window.addEventListener("driftbox-signed-out", () => { if (me) { me = null; begin(); } });
  window.addEventListener("hashchange", () => show(true));
  feed.subscribe(drawSummary);
  begin();
}
