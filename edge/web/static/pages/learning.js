// Learning: what every camera's model has learned, how well that was predicted, what was retrained and why, and what changed on pictures.

import { act, api, make, moment, number, table } from "../ui.js";
import { lineChart } from "../charts.js";
import { badge, facts, gpuSeconds, keyed, more, pictured, polled, redrawn, section } from "../learning/parts.js";
import { plansInto } from "../learning/why.js";

const SHOWN_WINDOWS = 60;

export default {
  id: "learning",
  title: "Learning",
  mount(root, context) {
    return context.words[0] ? mountCamera(root, context.words[0]) : mountList(root);
  },
};

// --- all cameras -------------------------------------------------------------------------------------------------------

function mountList(root) {
  const shown = make("div", {});
  root.append(section("Cameras", "Every camera is watched by a small model of its own. Window after window the box labels a sample with its large model, " +
    "measures the small one, and retrains it where that is worth the compute. Quality is agreement with labels that the model has not learned from: " +
    "0 is none, 1 is in everything.", shown));
  const poll = polled(shown, "learning", 3000, ({ cameras }) => redrawn(shown, cameras.length ? list(cameras) : make("p", { class: "hint" }, "No camera is watched yet.")));
  const stopPlans = plansInto(root);
  return () => { poll.stop(); stopPlans(); };
}

const list = (cameras) => table("Cameras and their models", ["camera", "quality (0–1)", "drift", "now", "retrained / admitted in 50 windows", "serving version"],
  cameras.map((c) => [make("a", { href: `#/learning/${c.camera}`, "data-key": `camera-${c.camera}` }, c.title || c.camera),
    c.quality === null ? "not measured yet" : `${number(c.quality)} ${c.quality_name}`,
    c.drifted === null ? "not looked yet" : c.drifted ? badge("drifted", "warn") : "none", c.activity || "–", `${c.retrainings} / ${c.admitted}`, c.version]));

// --- one camera --------------------------------------------------------------------------------------------------------

function mountCamera(root, camera) {
  const shown = make("div", {}), pictures = make("div", { "aria-live": "polite" });
  root.append(make("p", {}, make("a", { href: "#/learning" }, "All cameras")), shown);
  const poll = polled(shown, `learning/${encodeURIComponent(camera)}?windows=${SHOWN_WINDOWS}`, 4000, (told) => redrawn(shown, ...draw(told, pictures)));
  return poll.stop;
}

const draw = (told, pictures) => [
  make("h2", {}, told.title || told.camera),
  qualitySection(told), nowSection(told), driftSection(told), windowsSection(told), picturesSection(told, pictures), notesSection(told),
];

function qualitySection(told) {
  const known = told.windows.filter((w) => w.predicted !== null || w.realised !== null);
  const at = (w) => (w.closed_utc === null ? w.opened_utc : (w.opened_utc + w.closed_utc) / 2);
  const chart = lineChart({
    title: `Quality of ${told.camera} over time`, unit: `${told.quality_name}, 0 to 1`, min: 0, max: 1,
    series: [
      { name: "measured on labels", points: told.history.map((p) => [p.at_utc, p.f1]) },
      { name: "predicted by the plan, with its band", points: known.filter((w) => w.predicted !== null).map((w) => [at(w), w.predicted]),
        band: known.filter((w) => w.predicted_low !== null).map((w) => [at(w), w.predicted_low, w.predicted_high]) },
      { name: "realised in the window", points: known.filter((w) => w.realised !== null).map((w) => [at(w), w.realised]) },
    ],
  });
  const { band, errors } = told;
  return section("Quality over time", "Measured: the serving model on newly labelled pictures. Predicted and realised: what people see, averaged over a window " +
    "(less than the model's own quality while not every frame is analysed).",
  keyed(chart, "quality"),
  facts([
    ["quality now", told.quality === null ? "not measured yet" : `${number(told.quality)} ${told.quality_name}, from ${told.held_out_frames} labelled pictures`],
    ["within the band", band.windows ? `${band.inside} of ${band.windows} windows; ${number(100 * band.expected_frac, 0)} % should be, if errors are as they were` : "no window has closed yet"],
    ["the profiler's promises", errors.retrainings ? `${errors.retrainings} ${errors.retrainings === 1 ? "retraining" : "retrainings"}: promised ${number(Math.abs(errors.bias), 3)} too ${errors.bias < 0 ? "little" : "much"} in the middle, spread ${number(errors.sd, 3)} (quality); ` +
      `cost ${number(errors.cost_ratio)} times what was said` : "no retraining that was profiled first has reached its gate yet"],
    ["serving version", make("a", { href: `#/models/${told.camera}` }, told.version)],
  ]));
}

function nowSection(told) {
  const now = told.now;
  if (!now) return null;
  const run = now.running;
  return section(`Window ${now.window}: ${now.phase === "prepare" ? "preparing" : now.phase}`, "Preparing: labels are made and retrainings are tried on a small scale. " +
    "Planned: retraining runs beside inference.",
  facts([
    ["examined", now.examined ? "in full: labels, earlier models, profile" : "only measured: no drift was seen and there is nothing more to learn"],
    ["inference", `${now.knobs ?? "paused"} on ${number(now.infer_pct, 0)} % of a GPU`],
    ["retraining", run ? `${run.config} on ${number(now.train_pct, 0)} % of a GPU, epoch ${run.epoch} of ${run.epochs}, ${gpuSeconds(run.used_gpu_s)} used, ${gpuSeconds(run.left_gpu_s)} left` :
      `none runs; ${now.options} on offer to the plan`],
    ...(now.remark ? [["remark", now.remark]] : []),
    ...(run?.members.length ? [["learned from", run.members.join(", ")]] : []),
  ]), run ? progress(run, told.quality_name) : null);
}

function progress(run, quality) {
  const epochs = (value) => `epoch ${Math.round(value)}`;
  return keyed(lineChart({
    title: `The retraining ${run.config}, epoch by epoch`, unit: `${quality}, 0 to 1`, min: 0, max: 1, x: epochs,
    series: [{ name: "predicted", points: run.expected_path.map((q, i) => [i, q]) }, { name: "measured on the way", points: run.measured }],
  }), "running");
}

function driftSection(told) {
  const drift = told.drift;
  if (!drift) return section("Drift", "Nobody has compared a window with the one that the model learned from yet.");
  return section("Drift", "Before anything is labelled, the newest window is compared with the one that the serving model learned from. Above its threshold " +
    "a signal says that the scene has changed; thresholds are set so that an unchanged scene rarely passes them.",
  make("p", {}, drift.drifted ? badge("drifted", "warn") : badge("no drift", "good"),
    ` magnitude ${number(drift.magnitude)} (0: as before, 1: nothing is as it was)${drift.note ? `; ${drift.note}` : ""}`),
  drift.signals.length ? table("Signals of drift", ["signal", "distance (0: as before)", "threshold (from here on: drift)", "", "what it compares"], drift.signals.map((s) =>
    [s.name, number(s.statistic, 3), number(s.threshold, 3), s.fired ? badge("above", "warn") : "below", s.words])) : null,
  told.scene.length ? table("The scene, now and when the model learned", ["number", "now", "then", "unit", "what it is"], told.scene.map((s) =>
    [s.name, number(s.now), number(s.then), s.unit, s.words])) : null,
  told.near.length ? make("p", { class: "hint" }, "Earlier models whose windows looked most alike (distance 0: the same, 1 and more: day and night): ",
    told.near.map((n) => `${n.version} (${number(n.distance)})`).join(", "), ".") : null);
}

function windowsSection(told) {
  const windows = [...told.windows].reverse();
  return section("Windows", "Newest first. Open one to see what its plans said, what was promised and what came of it.",
    ...windows.map((w) => more(`window-${w.window}`, windowLine(w), windowFacts(w))));
}

function windowLine(w) {
  const became = w.closed_utc === null ? "open" : `realised ${number(w.realised)}`;
  const learned = w.retrained ? `, retrained ${w.retrained}${w.closed_utc === null ? "" : w.admitted ? ", admitted" : ", not admitted"}` : w.reused ? `, took up ${w.reused} again` : "";
  return `window ${w.window}: quality predicted ${number(w.predicted)}, ${became} (0 to 1)${learned}${w.drift?.drifted ? ", drifted" : ""}`;
}

function windowFacts(w) {
  const learned = w.learned;
  return make("div", {}, facts([
    ["time", `${moment(w.opened_utc)} to ${w.closed_utc === null ? "now" : moment(w.closed_utc)}`],
    ["serving model", `${number(w.start_quality)} at the plan, ${number(w.end_quality)} at the end (quality, 0 to 1)`],
    ["people saw", `predicted ${number(w.predicted)}, band ${number(w.predicted_low)} to ${number(w.predicted_high)}; realised ${number(w.realised)} (quality, 0 to 1)`],
    ...(learned ? [["retraining", `from ${number(learned.start_quality)}: promised ${number(learned.promised_quality)} for ${gpuSeconds(learned.promised_gpu_s)}, ` +
      `became ${number(learned.realised_quality)} for ${gpuSeconds(learned.realised_gpu_s)}`]] : []),
    ...(w.version ? [["made version", w.version]] : []),
    ...(w.note ? [["note", w.note]] : []),
  ]), w.why.length ? make("div", {}, make("p", { class: "hint" }, "What its plans said of this camera:"), make("ul", { class: "notes" }, ...w.why.map((line) => make("li", {}, line)))) : null);
}

// --- before and after --------------------------------------------------------------------------------------------------

function picturesSection(told, pictures) {
  if (!told.before) return section("Before and after", "This camera still has its first model: there is nothing to compare it with.");
  const button = make("button", { type: "button", "data-key": "compare", onclick: () => act(button, async () =>
    pictures.replaceChildren(drawComparison(await api.get(`learning/${encodeURIComponent(told.camera)}/before-after?pictures=3`)))) },
  `Compare ${told.version} with ${told.before}`);
  return section("Before and after", "Both versions on the same held-out pictures, from which neither has learned. It is computed when asked for, slowly and with the " +
    "lowest priority, so that inference does not feel it.", button, pictures);
}

export function drawComparison(c) {
  return make("div", {}, make("p", {}, `${c.before}: ${number(c.before_quality)}, ${c.after}: ${number(c.after_quality)} `,
    `(${c.quality_name}, 0 to 1, over the ${c.pictures.length} pictures of window ${c.window} shown here; too few to judge by, enough to see). Computed in ${number(c.took_s, 1)} s.`),
  ...c.pictures.map((p) => make("div", { class: "pairs" }, onePicture(p, p.before, "before"), onePicture(p, p.after, "after"))));
}

function onePicture(p, model, kind) {
  const words = `${model.right} right, ${model.wrong} wrong, ${model.missed} missed`;
  return make("figure", {}, pictured(p.sample, p.width_px, p.height_px,
    [{ kind: "golden", boxes: p.labels }, { kind, boxes: model.boxes }], `${p.sample} as ${model.version} sees it: ${words}`),
  make("figcaption", {}, make("strong", {}, `${kind}: ${model.version}`), ` – ${words}. Thin: labels; thick: what the model sees.`));
}

function notesSection(told) {
  return section("Notes", "What the box has said of this camera, newest first.", told.notes.length ?
    make("ul", { class: "notes" }, ...told.notes.map((n) => make("li", {}, `${moment(n.at_utc)}: ${n.text}`))) : make("p", { class: "hint" }, "nothing to report"));
}
