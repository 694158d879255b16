// Queries: what is asked of a camera as a graph of steps, its knobs and what they are worth, what a plan may choose from.

import { act, api, make, moment, number, percent, table } from "../ui.js";
import { scatter, shape } from "../charts.js";
import { badge, cameraTabs, facts, keyed, mayOperate, polled, redrawn, section, seconds } from "../learning/parts.js";

const STATES = { running: "good", waiting: "", resting: "warn", unusable: "bad" };
const NODE_W = 96, NODE_H = 34, GAP_X = 24, GAP_Y = 16;

export default {
  id: "queries",
  title: "Queries",
  mount(root, context) {
    let chosen = context.words[0] || "", known = "", poll = null;
    const tabs = make("div", {}), shown = make("div", {});
    root.append(tabs, shown);
    context.status((status) => {
      const ids = status.cameras.map((c) => c.id);
      if (!ids.length && !poll) redrawn(shown, make("p", { class: "hint" }, "No camera is watched yet."));
      if (ids.join() === known) return;
      known = ids.join();
      chosen ||= ids[0] ?? "";
      redrawn(tabs, cameraTabs("queries", ids, chosen));
      if (poll || !chosen) return;
      const page = { role: context.role, again: () => poll.again() };
      poll = polled(shown, `queries/${encodeURIComponent(chosen)}`, 2500, (camera) => redrawn(shown, ...draw(camera, page)));
    });
    return () => poll?.stop();
  },
};

const draw = (camera, page) => [settingsSection(camera), ...camera.queries.map((query) => querySection(camera, query, page)),
  camera.queries.length ? null : section("Queries", "Nothing is asked of this camera beside its own model. Queries are declared in the configuration: cameras, queries.")];

// --- the camera's own model --------------------------------------------------------------------------------------------

function settingsSection(camera) {
  const groups = [{ name: "may be chosen", joined: true, points: camera.settings.map((s) => [s.demand_pct, s.quality_frac, words(s)]) },
    { name: "in force", points: camera.settings.filter((s) => s.in_force).map((s) => [s.demand_pct, s.quality_frac, words(s)]) }];
  return section(`What a plan may choose for ${camera.camera}`, "Each point is a setting of the camera's knobs: how many frames its own model looks at, how large, and what its profiled queries do. " +
    `Further right costs more of the GPU, further up keeps more of the model's quality. ${camera.measured ? "Measured on this machine (driftbox profile)." : "These are the usual ones; driftbox profile measures the camera's own."}`,
  keyed(scatter({ title: `Quality and demand of ${camera.camera}`, x: { name: "demand", unit: "% of one GPU or core", min: 0 }, y: { name: "part of the model's quality", unit: "0 to 1", min: 0, max: 1 }, groups }), "settings"),
  facts([
    ["in force", camera.settings.find((s) => s.in_force) ? words(camera.settings.find((s) => s.in_force)) : "inference is paused"],
    ["share of inference", `${percent(camera.share_pct)} of a GPU is promised`],
    ["quality of the model", camera.quality === null ? "not measured yet" : `${number(camera.quality)} (0 to 1)`],
    ...(camera.profile_problem ? [["stored profile", `not used: ${camera.profile_problem}`]] : []),
  ]), camera.profile ? profilePart(camera.profile, "camera-profile") : null);
}

const words = (s) => `${s.name}: ${number(s.fps, 1)} frames/s${s.height_px ? ` at ${s.height_px} px height` : ""}, ${percent(s.demand_pct)}, keeps ${number(s.quality_frac)}` +
  Object.entries(s.queries).map(([name, setting]) => `; ${name}: ${Object.entries(setting).map(([k, v]) => `${k} ${v}`).join(", ")}`).join("");

function profilePart(profile, key) {
  const point = (p) => [p.demand_pct, p.quality, `${p.name}${p.in_force ? " (in force)" : ""}`];
  return make("div", {}, keyed(scatter({
    title: "Measured settings", x: { name: "demand", unit: "% of one GPU and core together", min: 0 }, y: { name: profile.quality_name, unit: "0 to 1", min: 0, max: 1 },
    groups: [{ name: "nothing is better for less (Pareto front)", joined: true, points: profile.points.filter((p) => p.on_front).sort((a, b) => a.demand_pct - b.demand_pct).map(point) },
      { name: "beaten by another", points: profile.points.filter((p) => !p.on_front).map(point) },
      { name: "in force", points: profile.points.filter((p) => p.in_force).map(point) }],
  }), key),
  make("p", { class: "hint" }, `Profile ${profile.version}, measured ${moment(profile.measured_utc)} on ${seconds(profile.clip_s)} of ${profile.source}: ${profile.tried} of ${profile.of_settings} settings tried in ${seconds(profile.took_s)}. `,
    profile.assumed ? `Assumed: ${profile.assumed}. ` : "", profile.left_out.length ? `Not measured: ${profile.left_out.join("; ")}.` : ""));
}

// --- one query ---------------------------------------------------------------------------------------------------------

function querySection(camera, query, page) {
  const asked = query.state === "resting" ? `${query.reason}; tried again ${query.again_s === null ? "after a restart" : `in ${seconds(query.again_s)}`}` : query.reason;
  return make("section", {}, make("h2", {}, `${query.name} `, badge(query.state, STATES[query.state])), asked ? make("p", { class: "bad-words" }, asked) : null,
    facts([
      ["answered", `${query.frames} frames, ${query.failed_frames} failed`], ["newest answer", query.at_utc === null ? "none yet" : `${moment(query.at_utc)}, ${seconds(query.lag_s)} after the picture was taken`],
      ["goals", `quality at least ${number(query.quality_goal)} (0 to 1), an answer at most ${seconds(query.lag_goal_s)} old`],
    ]),
    query.graph.length ? graphPart(query) : null, ...knobParts(camera, query, page), results(query),
    query.profile ? profilePart(query.profile, `profile-${query.name}`) : make("p", { class: "hint" }, `Not profiled yet: driftbox profile ${camera.camera} with this query measures what its knobs are worth.`));
}

// Steps in columns by how far they are from the camera.
function graphPart(query) {
  const column = new Map();
  for (const node of query.graph) column.set(node.id, Math.max(0, ...node.inputs.map((id) => (column.get(id) ?? 0) + 1)));
  const rows = new Map(), place = new Map();
  for (const node of query.graph) {
    const x = column.get(node.id), y = rows.get(x) ?? 0;
    rows.set(x, y + 1);
    place.set(node.id, [8 + x * (NODE_W + GAP_X), 8 + y * (NODE_H + GAP_Y)]);
  }
  const width = 16 + (Math.max(...column.values()) + 1) * (NODE_W + GAP_X) - GAP_X, height = 16 + Math.max(...rows.values()) * (NODE_H + GAP_Y) - GAP_Y;
  const edges = query.graph.flatMap((node) => node.inputs.filter((id) => place.has(id)).map((id) => {
    const [fx, fy] = place.get(id), [tx, ty] = place.get(node.id);
    return shape("path", { class: "edge", d: `M${fx + NODE_W} ${fy + NODE_H / 2}L${tx} ${ty + NODE_H / 2}` });
  }));
  const boxes = query.graph.flatMap((node) => {
    const [x, y] = place.get(node.id);
    return [shape("rect", { class: `node ${node.answers ? "answer" : ""}`, x, y, width: NODE_W, height: NODE_H, rx: 6 }),
      shape("text", { x: x + NODE_W / 2, y: y + 14, "text-anchor": "middle" }, node.id.slice(0, 16)),
      shape("text", { x: x + NODE_W / 2, y: y + 27, "text-anchor": "middle", class: "cost" }, `${number(node.cpu_ms, 1)} ms`)];
  });
  const told = query.graph.map((n) => `${n.id} ${n.inputs.length ? `takes ${n.inputs.join(" and ")}` : "takes the camera's frame"}`).join("; ");
  const wide = make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Graph of ${query.name}` },
    shape("svg", { class: "dag", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Steps of ${query.name}: ${told}.` }, ...edges, ...boxes));
  wide.firstChild.style.minWidth = `${Math.min(width, 640)}px`;
  return make("div", {}, wide, make("p", { class: "hint" }, "Each box is a step with its mean processor time per frame; a thick border is an answer of the query."),
    table(`Steps of ${query.name}`, ["step", "does", "takes", "processor per frame", "GPU per frame", "frames", "failed", "parameters"], query.graph.map((n) =>
      [n.id, n.transform, n.inputs.join(", ") || "the camera's frame", `${number(n.cpu_ms, 2)} ms`, `${number(n.gpu_ms, 2)} ms`, String(n.runs),
        `${n.raised + n.hung + n.nonsense}${n.late ? `, ${n.late} late` : ""}${n.error ? `: ${n.error}` : ""}`,
        make("span", { class: "words" }, Object.keys(n.params).length ? JSON.stringify(n.params).slice(0, 300) : "–")])));
}

function knobParts(camera, query, page) {
  const knobs = query.graph.flatMap((node) => node.knobs);
  if (!knobs.length) return [make("p", { class: "hint" }, "This query has no knob to turn.")];
  const rows = knobs.map((knob) => {
    const key = `${query.name}-${knob.name}`;
    const now = mayOperate(page.role) && knob.values.length > 1 ? choice(camera, query, knob, key, page) : String(knob.value ?? "–");
    return [knob.name, now, knob.values.map(String).join(", "), knob.unit || "–", String(knob.golden), make("span", { class: "words" }, knob.help || "–")];
  });
  return [table(`Knobs of ${query.name}`, ["knob", "now", "may be", "unit", "in the golden setting", "what it does"], rows),
    make("p", { class: "hint" }, "The golden setting is the costly one that quality is measured against. ",
    query.planned ? "The plan chooses these knobs, from the query's profile: what a person turns here holds until its next choice." : "What is turned here holds until the box is started anew.")];
}

function choice(camera, query, knob, key, page) {
  const select = make("select", { "data-key": key, "aria-label": `${knob.name} of ${query.name}`, onchange: () => act(select, async () => {
    await api.put(`queries/${camera.camera}/${query.name}/knobs`, { setting: { [knob.name]: knob.values[select.selectedIndex] } });
    page.again();
  }, `${knob.name} of ${query.name} is ${knob.values[select.selectedIndex]} now`) },
  ...knob.values.map((value) => make("option", { selected: value === knob.value }, String(value))));
  return select;
}

function results(query) {
  const lines = Object.entries(query.results).map(([step, told]) => [step, make("span", { class: "words" }, JSON.stringify(told).slice(0, 600))]);
  return lines.length ? table(`Newest answer of ${query.name}`, ["step", "what it tells"], lines) : null;
}
