// The box in one look: window, shares, plan, what windows brought, notes. Each has a page of its own with more.

import { duration, make, moment, number, percent, remember, setText, table } from "../ui.js";
import { barRow } from "../charts.js";
import { phaseWords } from "../live/words.js";

export default { id: "overview", title: "Overview", mount };

function section(id, title, ...children) {
  return make("section", { "aria-labelledby": `h-${id}` }, make("h2", { id: `h-${id}` }, title), ...children);
}

const more = (page, title, words) => make("p", { class: "hint" }, make("a", { href: `#/${page}` }, title), `: ${words}.`);

function mount(root, context) {
  const parts = {
    window: make("p", { id: "window-line" }, "no window is open yet"),
    bar: make("progress", { id: "window-bar", max: 1, value: 0, "aria-labelledby": "window-line" }),
    sharesHint: make("p", { class: "hint" }), shares: make("div", { id: "shares" }), devices: make("ul", { id: "devices", class: "hint" }),
    faults: make("ul", { id: "faults", class: "hint" }), plan: make("div", { id: "plan" }, "no plan yet"),
    outcomes: make("div", { id: "outcomes" }), notes: make("ul", { id: "notes", class: "notes" }),
  };
  root.append(
    section("window", "Window", make("p", { class: "hint" }, "The box works in windows: it labels a sample and profiles retrainings (",
      make("i", {}, "prepare"), "), makes a plan, then retrains beside inference (", make("i", {}, "planned"),
      "). A new model serves only if it is better on held-out labels."), parts.window, parts.bar),
    section("notes", "Notes", parts.notes),
    section("shares", "Shares now", more("gpu", "GPU", "shares and memory over time"), parts.sharesHint, parts.shares, parts.devices, parts.faults),
    section("plan", "Plan in force", more("learning", "Learning", "why it is so, and what every camera's model has learned"), parts.plan),
    section("outcomes", "Closed windows: predicted against realised", make("p", { class: "hint" },
      "Quality (0 to 1) averaged over the window and the cameras: what the plan predicted and what was measured."), parts.outcomes));
  const changed = remember();
  context.status((status) => {
    drawWindow(parts, status.window);
    drawShares(parts, status);
    if (changed("devices", status.devices)) parts.devices.replaceChildren(...status.devices.map((d) => make("li", {}, deviceWords(d))));
    if (changed("faults", status.faults)) parts.faults.replaceChildren(...status.faults.slice(0, 5).map(faultItem));
    if (changed("plan", status.plan)) parts.plan.replaceChildren(...planOf(status.plan));
    if (changed("outcomes", status.outcomes)) drawOutcomes(parts.outcomes, status.outcomes);
    if (changed("notes", status.notes)) drawNotes(parts.notes, status.notes);
  });
}

function drawWindow(parts, view) {
  if (!view) { setText(parts.window, "no window is open yet"); parts.bar.removeAttribute("value"); return; }
  const left = Math.max(0, view.length_s - view.elapsed_s);
  setText(parts.window, `window ${view.number} · ${phaseWords[view.phase] || view.phase} · ${duration(view.elapsed_s)} of ` +
    `${duration(view.length_s)}, ${duration(left)} left`);
  parts.bar.max = view.length_s || 1;
  parts.bar.value = Math.min(view.elapsed_s, view.length_s);
}

function drawShares(parts, status) {
  setText(parts.sharesHint, "Percent of one GPU (on a CPU-only box, of one core): what the plan promises and what the job received over the " +
    `last ${duration(status.shares_span_s)}. A job without work receives less than its promise. ${percent(status.capacity_pct)} in all, ` +
    `${percent(status.spare_pct)} given to nobody.`);
  const memory = new Map(status.memory.map((entry) => [entry.job, entry]));
  parts.shares.replaceChildren(...status.shares.map((share) => barRow({
    label: share.job, max: Math.max(status.capacity_pct, 1),
    words: `promised ${percent(share.promised_pct)} · received ${percent(share.received_pct)} · ` +
      `had work ${Math.round(100 * share.wanted_frac)} % of the time${memoryWords(memory.get(share.job))}`,
    bars: [{ value: share.promised_pct, kind: "promised" }, { value: share.received_pct, kind: "received" }],
  })));
}

function memoryWords(memory) {
  if (!memory || memory.persistent_mib === null) return "";
  const lane = memory.lane === null ? "" : `, lane ${memory.lane} of ${Math.round(memory.lane_mib)} MiB`;
  return ` · memory ${Math.round(memory.persistent_mib)} + ${Math.round(memory.ephemeral_mib)} MiB${lane}`;
}

function deviceWords(device) {
  if (device.problem) return `GPU ${device.index} (${device.name}): ${device.problem}`;
  const told = [`${(device.memory_used_mib / 1024).toFixed(1)} of ${(device.memory_total_mib / 1024).toFixed(1)} GiB`];
  if (device.utilisation_pct !== null) told.push(`${Math.round(device.utilisation_pct)} % busy`);
  if (device.temperature_c !== null) told.push(`${Math.round(device.temperature_c)} °C`);
  if (device.power_w !== null) told.push(`${Math.round(device.power_w)} W`);
  if (device.throttled.length) told.push(`held back: ${device.throttled.join(", ")}`);
  if (device.ecc_errors) told.push(`${device.ecc_errors} uncorrected memory errors`);
  return `GPU ${device.index} (${device.name}): ${told.join(" · ")}`;
}

const faultItem = (fault) => make("li", {}, `${moment(fault.at_utc)}: ${fault.text}${fault.remedy ? ` – ${fault.remedy}` : ""}`);

function planOf(plan) {
  if (!plan) return ["no plan yet"];
  const line = `Made on ${moment(plan.at_utc)} by policy ${plan.policy} for window ${plan.window}${plan.reason ? ` (${plan.reason})` : ""}; ` +
    `expected quality ${number(plan.expected_quality)} (0 to 1, mean over cameras and window); ${percent(plan.spare_pct)} spare.`;
  const headings = ["camera", "inference setting", "inference share", "retraining", "retraining share", "expected quality (0–1)"];
  return [make("p", { class: "hint" }, line, " ", make("a", { href: "#/learning" }, "Why?")), table("Shares and retrainings of the plan", headings, plan.streams.map((s) => [s.camera,
    s.knobs === null ? "paused" : s.knobs, percent(s.infer_pct), s.retrain === null ? "none" : s.retrain,
    s.retrain === null ? "–" : percent(s.train_pct), number(s.expected_quality) + (s.below_floor ? " (below the floor)" : "")]))];
}

function drawOutcomes(root, outcomes) {
  const open = new Set([...root.querySelectorAll("details[open]")].map((d) => d.dataset.window));
  const focused = document.activeElement?.closest?.("[data-window]")?.dataset.window;
  root.replaceChildren(...(outcomes.length ? outcomes.map(outcomeDetails) : [make("p", { class: "hint" }, "no window has closed yet")]));
  for (const details of root.querySelectorAll("details")) details.open = open.has(details.dataset.window);
  if (focused !== undefined) root.querySelector(`[data-window="${CSS.escape(focused)}"] summary`)?.focus();
}

function outcomeDetails(outcome) {
  const admitted = outcome.streams.filter((s) => s.admitted).length;
  const tried = outcome.streams.filter((s) => s.retrained).length;
  const headings = ["camera", "at the start (0–1)", "predicted (0–1)", "realised (0–1)", "at the end (0–1)", "retrained with", "admitted", "note"];
  return make("details", { "data-window": outcome.window }, make("summary", {}, `window ${outcome.window}, closed ${moment(outcome.closed_utc)}: ` +
    `predicted ${number(outcome.predicted_quality)}, realised ${number(outcome.realised_quality)}; ${tried} retrained, ${admitted} admitted`),
  table(`Quality in window ${outcome.window}`, headings, outcome.streams.map((s) => [s.camera, number(s.start_quality),
    number(s.predicted_quality), number(s.realised_quality), endOf(s), s.retrained || "–", s.retrained ? (s.admitted ? "yes" : "no") : "–",
    s.note || ""])), ...outcome.notes.map((note) => make("p", { class: "hint" }, note)));
}

function endOf(stream) {
  const gain = stream.end_quality !== null && stream.start_quality !== null ? stream.end_quality - stream.start_quality : 0;
  return make("span", { class: gain > 0.005 ? "up" : gain < -0.005 ? "down" : "" }, number(stream.end_quality));
}

function drawNotes(root, notes) {
  root.replaceChildren(...(notes.length ? notes.map((note) =>
    make("li", {}, `${moment(note.at_utc)} ${note.camera ? `${note.camera}: ` : ""}${note.text}`)) : [make("li", { class: "hint" }, "nothing to report")]));
}
