// The status page: asks /api/v1/status once a second and changes only what changed, so that focus, scroll and open details stay.
"use strict";

const POLL_MS = 1000;
const PICTURE_MIN_MS = 250;
const LOST_AFTER_MS = 4000;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const phaseWords = {
  starting: "starting", idle: "waiting", prepare: "prepare: labelling and profiling",
  planned: "planned: retraining beside inference", stopped: "stopped",
};
const stateWords = {
  connecting: "connecting", live: "live", stalled: "no frames", waiting: "waiting to try again", ended: "ended", stopped: "stopped",
};

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function setText(element, text) { if (element.textContent !== text) element.textContent = text; }
const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (value) => `${value.toFixed(value < 10 && value % 1 ? 1 : 0)} %`;
const clock = (utc) => new Date(utc * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const moment = (utc) => new Date(utc * 1000).toLocaleString();

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

// --- cameras ---------------------------------------------------------------------------------------------------------

const tiles = new Map();

function makeTile(id) {
  const img = make("img", { alt: "", hidden: "" });
  const nothing = make("div", { class: "nothing" }, "no picture yet");
  const name = make("h3");
  const state = make("span", { class: "state" });
  const error = make("p", { class: "error", hidden: "" });
  const facts = make("dl");
  const values = {};
  const labels = {};
  for (const [key, label] of [["quality", "quality"], ["task", "task"], ["model", "model"], ["rate", "analysed"],
    ["objects", "objects"], ["queries", "queries"], ["dropped", "dropped"], ["activity", "now"]]) {
    values[key] = make("dd");
    labels[key] = make("dt", {}, label);
    facts.append(labels[key], values[key]);
  }
  const chart = document.createElementNS(SVG, "svg");
  chart.setAttribute("class", "chart");
  chart.setAttribute("viewBox", "0 0 300 84");
  chart.setAttribute("role", "img");
  const article = make("article", { class: "tile", "data-camera": id },
    make("div", { class: "picture" }, img, nothing),
    make("div", { class: "body" }, make("div", { class: "head" }, name, state), error, facts, chart));
  byId("tiles").append(article);
  const tile = { id, article, img, nothing, name, state, error, values, labels, chart, frames: 0, history: "", waiting: false };
  img.addEventListener("load", () => { img.hidden = false; nothing.hidden = true; tile.waiting = false; });
  img.addEventListener("error", () => { tile.waiting = false; });
  return tile;
}

function updateTile(tile, camera) {
  const title = camera.name || camera.id;
  setText(tile.name, title);
  const live = camera.state === "live";
  setText(tile.state, (stateWords[camera.state] || camera.state) + (live ? "" : ` for ${duration(camera.since_s)}`));
  tile.state.className = "state" + (live ? " live" : camera.code ? " bad" : "");
  tile.error.hidden = !camera.error;
  setText(tile.error, camera.code ? `${camera.code}: ${camera.error}` : camera.error);
  setText(tile.labels.quality, `quality (${camera.quality_name})`);
  setText(tile.values.task, camera.task);
  setText(tile.values.quality, camera.quality === null ? "not measured yet" : number(camera.quality));
  setText(tile.values.model, camera.model || "–");
  const size = camera.height_px ? ` · ${camera.width_px}×${camera.height_px} px` : "";
  setText(tile.values.rate, `${number(camera.analysed_fps, 1)} of ${number(camera.wanted_fps, 1)} wanted frames/s` +
    ` (camera: ${number(camera.camera_fps, 1)})${size}`);
  setText(tile.values.objects, `${camera.objects} in the newest picture`);
  tile.labels.queries.hidden = tile.values.queries.hidden = !camera.queries.length;
  setText(tile.values.queries, camera.queries.map((query) => `${query.name}: ${answerOf(query)}`).join("; "));
  setText(tile.values.dropped, `${camera.frames_dropped} frames skipped for newer ones`);
  const part = camera.activity_frac === null ? "" : ` ${Math.round(100 * camera.activity_frac)} %`;
  setText(tile.values.activity, camera.activity ? camera.activity + part : camera.knobs === null ? "inference paused" : "inference");
  tile.img.alt = `Newest picture of ${title} with the detected objects`;
  tile.frames = camera.frames_analysed;
  const history = JSON.stringify(camera.quality_history);
  if (history !== tile.history) { tile.history = history; drawQuality(tile.chart, camera, title); }
}

// What a query answered, in a few words: "stop in 5, out 3".
function answerOf(query) {
  if (query.state === "waiting") return "no answer yet";
  if (query.state !== "running") return `${query.state} (${query.reason})`;
  const told = Object.values(query.results).at(-1) || {};
  return wordsOf(told).join(", ") || "nothing";
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

function drawQuality(svg, camera, title) {
  const points = camera.quality_history;
  svg.replaceChildren();
  const add = (tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    svg.append(element);
  };
  const left = 24, right = 294, top = 8, bottom = 66;
  const y = (f1) => bottom - (bottom - top) * f1;
  for (const f1 of [0, 0.5, 1]) {
    add("line", { class: "grid", x1: left, x2: right, y1: y(f1), y2: y(f1) });
    add("text", { x: 2, y: y(f1) + 3 }, f1 === 0.5 ? "0.5" : String(f1));
  }
  if (!points.length) {
    svg.setAttribute("aria-label", `Quality of ${title}: not measured yet`);
    add("text", { x: left + 6, y: y(0.5) - 4 }, `quality (${camera.quality_name}) over time: not measured yet`);
    return;
  }
  const first = points[0].at_utc, last = points[points.length - 1].at_utc;
  const x = (utc) => (last > first ? left + 6 + (right - left - 12) * (utc - first) / (last - first) : (left + right) / 2);
  add("path", { class: "curve", d: points.map((p, i) => `${i ? "L" : "M"}${x(p.at_utc).toFixed(1)} ${y(p.f1).toFixed(1)}`).join("") });
  points.forEach((p, i) => {
    const fresh = i > 0 && p.version !== points[i - 1].version;
    add("circle", { class: fresh ? "dot new" : "dot", cx: x(p.at_utc).toFixed(1), cy: y(p.f1).toFixed(1), r: fresh ? 4 : 2.5 });
  });
  add("text", { x: left, y: 80 }, clock(first));
  if (last > first) add("text", { x: right, y: 80, "text-anchor": "end" }, clock(last));
  svg.setAttribute("aria-label", `Quality of ${title} over time: from ${number(points[0].f1)} to ${number(points[points.length - 1].f1)}`);
}

function updateCameras(cameras) {
  byId("no-cameras").hidden = cameras.length > 0;
  const present = new Set(cameras.map((camera) => camera.id));
  for (const [id, tile] of tiles) if (!present.has(id)) { tile.article.remove(); tiles.delete(id); }
  for (const camera of cameras) {
    if (!tiles.has(camera.id)) tiles.set(camera.id, makeTile(camera.id));
    updateTile(tiles.get(camera.id), camera);
  }
}

function refreshPictures() {
  if (document.hidden) return;
  for (const tile of tiles.values()) {
    // One request at a time per camera, and only when there is a newer picture.
    if (tile.waiting || !tile.frames || tile.shown === tile.frames) continue;
    tile.waiting = true;
    tile.shown = tile.frames;
    tile.img.src = `/api/v1/cameras/${encodeURIComponent(tile.id)}/picture.jpg?n=${tile.frames}`;
  }
}

// --- the rest --------------------------------------------------------------------------------------------------------

function updateWindow(view) {
  const line = byId("window-line"), bar = byId("window-bar");
  if (!view) { setText(line, "no window is open yet"); bar.removeAttribute("value"); return; }
  const left = Math.max(0, view.length_s - view.elapsed_s);
  setText(line, `window ${view.number} · ${phaseWords[view.phase] || view.phase} · ${duration(view.elapsed_s)} of ` +
    `${duration(view.length_s)}, ${duration(left)} left`);
  bar.max = view.length_s || 1;
  bar.value = Math.min(view.elapsed_s, view.length_s);
}

function updateShares(status) {
  setText(byId("shares-hint"), `Percent of one GPU (on a CPU-only box, of one core): what the plan promises and what the job ` +
    `received over the last ${duration(status.shares_span_s)}. A job without work receives less than its promise. ` +
    `${percent(status.capacity_pct)} in all, ${percent(status.spare_pct)} given to nobody.`);
  const scale = Math.max(status.capacity_pct, 1);
  const memory = new Map(status.memory.map((entry) => [entry.job, entry]));
  const bar = (kind, value) => {
    const fill = make("i", { class: kind });
    fill.style.width = `${Math.min(100, 100 * value / scale)}%`;
    return make("div", { class: "bar", "aria-hidden": "true" }, fill);
  };
  byId("shares").replaceChildren(...status.shares.map((share) => make("li", {},
    make("div", { class: "row" }, make("span", {}, share.job),
      make("span", { class: "numbers" }, `promised ${percent(share.promised_pct)} · received ${percent(share.received_pct)} · ` +
        `had work ${Math.round(100 * share.wanted_frac)} % of the time${memoryWords(memory.get(share.job))}`)),
    bar("promised", share.promised_pct), bar("received", share.received_pct))));
}

function memoryWords(memory) {
  if (!memory || memory.persistent_mib === null) return "";
  const lane = memory.lane === null ? "" : `, lane ${memory.lane} of ${Math.round(memory.lane_mib)} MiB`;
  return ` · memory ${Math.round(memory.persistent_mib)} + ${Math.round(memory.ephemeral_mib)} MiB${lane}`;
}

function deviceWords(device) {
  if (device.problem) return `GPU ${device.index} (${device.name}): ${device.problem}`;
  const parts = [`${(device.memory_used_mib / 1024).toFixed(1)} of ${(device.memory_total_mib / 1024).toFixed(1)} GiB`];
  if (device.utilisation_pct !== null) parts.push(`${Math.round(device.utilisation_pct)} % busy`);
  if (device.temperature_c !== null) parts.push(`${Math.round(device.temperature_c)} °C`);
  if (device.power_w !== null) parts.push(`${Math.round(device.power_w)} W`);
  if (device.throttled.length) parts.push(`held back: ${device.throttled.join(", ")}`);
  if (device.ecc_errors) parts.push(`${device.ecc_errors} uncorrected memory errors`);
  return `GPU ${device.index} (${device.name}): ${parts.join(" · ")}`;
}

function drawDevices(devices) {
  byId("devices").replaceChildren(...devices.map((device) => make("li", {}, deviceWords(device))));
}

function drawFaults(faults) {
  byId("faults").replaceChildren(...faults.slice(0, 5).map((fault) =>
    make("li", {}, `${moment(fault.at_utc)}: ${fault.text}${fault.remedy ? ` – ${fault.remedy}` : ""}`)));
}

const drawn = {};
function ifChanged(key, value, draw) {
  const text = JSON.stringify(value);
  if (drawn[key] === text) return;
  drawn[key] = text;
  draw(value);
}

function fillTable(id, rows) {
  byId(id).tBodies[0].replaceChildren(...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)))));
}

function drawPlan(plan) {
  setText(byId("plan-line"), plan
    ? `Made at ${clock(plan.at_utc)} by policy ${plan.policy} for window ${plan.window}${plan.reason ? ` (${plan.reason})` : ""}; ` +
      `expected quality ${number(plan.expected_quality)} (0 to 1, mean over cameras and window); ${percent(plan.spare_pct)} spare.`
    : "no plan yet");
  fillTable("plan", plan ? plan.streams.map((s) => [s.camera, s.knobs === null ? "paused" : s.knobs, percent(s.infer_pct),
    s.retrain === null ? "none" : s.retrain, s.retrain === null ? "–" : percent(s.train_pct),
    number(s.expected_quality) + (s.below_floor ? " (below the floor)" : "")]) : []);
}

function drawOutcomes(outcomes) {
  const open = new Set([...byId("outcomes").querySelectorAll("details[open]")].map((d) => d.dataset.window));
  byId("no-outcomes").hidden = outcomes.length > 0;
  byId("outcomes").replaceChildren(...outcomes.map((outcome) => {
    const admitted = outcome.streams.filter((s) => s.admitted).length;
    const tried = outcome.streams.filter((s) => s.retrained).length;
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...["camera", "start", "predicted", "realised", "end",
      "retrained with", "admitted", "note"].map((t) => make("th", { scope: "col" }, t)))), make("tbody", {},
      ...outcome.streams.map((s) => {
        const gain = s.end_quality !== null && s.start_quality !== null ? s.end_quality - s.start_quality : 0;
        return make("tr", {}, make("td", {}, s.camera), make("td", {}, number(s.start_quality)),
          make("td", {}, number(s.predicted_quality)), make("td", {}, number(s.realised_quality)),
          make("td", { class: gain > 0.005 ? "up" : gain < -0.005 ? "down" : "" }, number(s.end_quality)),
          make("td", {}, s.retrained || "–"), make("td", {}, s.retrained ? (s.admitted ? "yes" : "no") : "–"),
          make("td", {}, s.note || ""));
      })));
    const details = make("details", { "data-window": outcome.window }, make("summary", {},
      `window ${outcome.window}, closed ${clock(outcome.closed_utc)}: predicted ${number(outcome.predicted_quality)}, ` +
      `realised ${number(outcome.realised_quality)}; ${tried} retrained, ${admitted} admitted`),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `window ${outcome.window}` }, table),
    ...outcome.notes.map((note) => make("p", { class: "hint" }, note)));
    details.open = open.has(String(outcome.window));
    return details;
  }));
}

function drawModels(models) {
  fillTable("models", models.map((m) => [m.camera, m.id, m.serving ? "serving" : m.admitted ? "admitted before" : "not admitted",
    number(m.quality), m.parent || "–", m.created_utc ? moment(m.created_utc) : "–"]));
}

function drawNotes(notes) {
  byId("no-notes").hidden = notes.length > 0;
  byId("notes").replaceChildren(...notes.map((note) =>
    make("li", {}, `${clock(note.at_utc)} ${note.camera ? note.camera + ": " : ""}${note.text}`)));
}

function qualityNames(cameras) {
  return [...new Set(cameras.map((camera) => camera.quality_name))].sort().join(" and ");
}

function update(status) {
  setText(byId("box-name"), status.site ? `${status.box} · ${status.site}` : status.box);
  document.title = `${status.box} – Driftbox`;
  const live = status.cameras.filter((camera) => camera.state === "live").length;
  const measured = status.cameras.filter((camera) => camera.quality !== null);
  const mean = measured.length ? measured.reduce((sum, camera) => sum + camera.quality, 0) / measured.length : null;
  setText(byId("summary"), `${live} of ${status.cameras.length} cameras live · mean quality ` +
    `${mean === null ? "not measured yet" : number(mean)}${mean === null ? "" : ` (${qualityNames(measured)}, 0 to 1)`}`);
  setText(byId("software"), status.software);
  updateCameras(status.cameras);
  updateWindow(status.window);
  updateShares(status);
  ifChanged("devices", status.devices, drawDevices);
  ifChanged("faults", status.faults, drawFaults);
  ifChanged("plan", status.plan, drawPlan);
  ifChanged("outcomes", status.outcomes, drawOutcomes);
  ifChanged("models", status.models, drawModels);
  ifChanged("notes", status.notes, drawNotes);
}

let answered = Date.now();
async function poll() {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), LOST_AFTER_MS);
  try {
    const answer = await fetch("/api/v1/status", { cache: "no-store", signal: stop.signal });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    update(await answer.json());
    answered = Date.now();
    byId("lost").hidden = true;
  } catch (error) {
    if (Date.now() - answered > LOST_AFTER_MS) {
      setText(byId("lost"), `The box has not answered since ${new Date(answered).toLocaleTimeString()}. What stands below is old.`);
      byId("lost").hidden = false;
    }
  } finally {
    clearTimeout(timer);
    setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
  }
}

setInterval(refreshPictures, PICTURE_MIN_MS);
poll();
