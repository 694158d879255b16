// The one stream of statuses for the whole app: whoever wants them subscribes, and nobody else asks the box for its status.
// They come over a WebSocket, what changed about once a second; where none gets through (a proxy) the box is asked once a second instead.
// Nothing is asked while the tab is hidden. When the box stops answering, the page says since when.

import { THING, setText } from "./ui.js";
import { follow } from "./live.js";

const LOOK_MS = 500;
const QUIET_MS = 1800;  // without a word for so long, one asks
const ASKED_EVERY_MS = 1000;
const LOST_AFTER_MS = 4000;

const listeners = new Set();
const eventListeners = new Set();
let newest = null;
let answered = 0, asked = 0;
let unfollow = null, timer = 0, asking = false, connected = false, wanted = false;

// Calls fn with every status, at once with the newest there is. Returns how to stop it.
export function subscribe(fn) {
  listeners.add(fn);
  if (newest) fn(newest);
  return () => listeners.delete(fn);
}

// Calls fn with everything else that the box tells by itself: {type, ...}. Returns how to stop it.
export function subscribeEvents(fn) {
  eventListeners.add(fn);
  return () => eventListeners.delete(fn);
}

export function start() {
  wanted = true;
  if (timer || document.hidden) return;
  answered = Date.now();
  timer = setInterval(look, LOOK_MS);
  unfollow = follow({ status: (status) => { connected = true; take(status); }, event: (message) => tell(eventListeners, message), lost: () => { connected = false; } });
}

// While nobody is signed in there is nothing to ask; what was told is forgotten, since whoever comes next may not see it.
export function stop() {
  wanted = false;
  newest = null;
  rest();
}

function rest() {
  clearInterval(timer);
  timer = 0;
  if (unfollow) unfollow();
  unfollow = null;
  connected = false;
  document.getElementById("lost").hidden = true;
}

// Asks now, for whoever has just changed something.
export function refresh() { if (timer) ask(); }

function take(status) {
  newest = status;
  answered = Date.now();
  document.getElementById("lost").hidden = true;
  tell(listeners, status);
}

function tell(whom, words) {
  for (const fn of [...whom]) {
    try { fn(words); } catch (error) { console.error(error); }  // one page's mistake must not silence the others
  }
}

function look() {
  const quiet = Date.now() - answered;
  if (quiet > (connected ? QUIET_MS : ASKED_EVERY_MS) && Date.now() - asked > ASKED_EVERY_MS) ask();
  if (quiet <= LOST_AFTER_MS) return;
  const line = document.getElementById("lost");
  setText(line, `The ${THING} has not answered since ${new Date(answered).toLocaleTimeString()}. What stands below is old.`);
  line.hidden = false;
}

async function ask() {
  if (asking) return;
  asking = true;
  asked = Date.now();
  const stopper = new AbortController();
  const patience = setTimeout(() => stopper.abort(), LOST_AFTER_MS);
  try {
    const answer = await fetch("/api/v1/status", { cache: "no-store", signal: stopper.signal });
    if (answer.status === 401) window.dispatchEvent(new CustomEvent("driftbox-signed-out"));
    else if (answer.ok && timer) take(await answer.json());
  } catch {
    // the line above says it, once it has lasted
  } finally {
    clearTimeout(patience);
    asking = false;
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) rest();
  else if (wanted) start();
});
