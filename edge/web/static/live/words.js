// What the box's short names mean to people.

import { duration, setText } from "../ui.js";

export const phaseWords = {
  starting: "starting", idle: "waiting", prepare: "prepare: labelling and profiling",
  planned: "planned: retraining beside inference", stopped: "stopped",
};

const stateWords = {
  connecting: "connecting", live: "live", stalled: "no frames", waiting: "waiting to try again", ended: "ended", stopped: "stopped",
  off: "not watched", scheduled: "outside its times", failed: "failed", quarantined: "in quarantine", elsewhere: "watched by another box",
};

const TROUBLE = new Set(["stalled", "waiting", "failed", "quarantined"]);

// Whether somebody should look at it: it is to be watched, and gives no frames.
export const troubled = (camera) => TROUBLE.has(camera.state);

// "live", or "no frames for 12 s".
function stateOf(camera) {
  const words = stateWords[camera.state] || camera.state;
  return camera.state === "live" ? words : `${words} for ${duration(camera.since_s)}`;
}

function stateClass(camera) {
  if (camera.state === "live") return "state live";
  return camera.code ? "state bad" : "state";
}

// What is wrong with a camera, code first, "" when nothing is.
const errorOf = (camera) => (camera.code ? `${camera.code}: ${camera.error}` : camera.error);

// A camera's name, state and error in the elements of whoever shows it (`view.name`, `.state`, `.error`); returns the name.
export function showState(view, camera) {
  const title = camera.name || camera.id;
  setText(view.name, title);
  setText(view.state, stateOf(camera));
  view.state.className = stateClass(camera);
  view.error.hidden = !camera.error;
  setText(view.error, errorOf(camera));
  return title;
}

// What the camera's share is spent on now.
export function activityOf(camera) {
  const part = camera.activity_frac === null ? "" : ` ${Math.round(100 * camera.activity_frac)} %`;
  if (camera.activity) return camera.activity + part;
  return camera.knobs === null ? "inference paused" : "inference";
}

// What a query answered, in a few words: "door in 5, out 3".
export function answerOf(query) {
  if (query.state === "waiting") return "no answer yet";
  if (query.state !== "running") return `${query.state} (${query.reason})`;
  return wordsOf(Object.values(query.results).at(-1) || {}).join(", ") || "nothing";
}

function wordsOf(told) {
  return Object.entries(told).flatMap(([key, value]) => {
    if (key === "classes" || key.endsWith("_utc")) return [];
    if (Array.isArray(value)) return [`${key} ${value.map((found) => `“${found.text}”`).join(" ") || "–"}`];
    if (value === null || typeof value !== "object") return [`${key.replaceAll("_", " ")} ${value}`];
    const inner = wordsOf(value);
    return ["zones", "lines", "texts"].includes(key) || !inner.length ? inner : [`${key} ${inner.join(", ")}`];
  });
}
