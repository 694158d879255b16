// Models: every camera's versions, their lineage, two of them compared; promote, roll back, pin, export, import.

import { act, announce, api, asked, make, moment, number, setText, size, table } from "../ui.js";
import { shape } from "../charts.js";
import { badge, cameraTabs, gpuSeconds, mayAdminister, mayOperate, polled, redrawn, section } from "../learning/parts.js";
import { drawComparison } from "./learning.js";

const STATES = {
  serving: ["good", "serves its camera now"], retired: ["", "has served; may serve again"], admitted: ["", "passed its gate; never served yet"],
  candidate: ["warn", "no gate has judged it yet"], rejected: ["bad", "its gate, or live frames, found it worse; it cannot serve"],
};
const ROW_PX = 26, STEP_PX = 22, GRAPH_ROWS = 60;

export default {
  id: "models",
  title: "Models",
  mount(root, context) {
    const page = { camera: context.words[0] || "", role: context.role, told: make("div", { "aria-live": "polite" }), rows: [], again: () => {} };
    const tabs = make("div", {}), graph = make("div", {}), list = make("div", {}), compare = make("div", {});
    root.append(tabs, section("Versions", "Every retraining makes a version of its camera's model. It serves only when it is better on labels that it has not learned from. " +
      "Quality is 0 (agrees with nothing) to 1 (with everything).", list),
    section("Lineage", "From which version each was made: a version stands above what was made from it; a branch is one that was not gone on with.", graph),
    section("Compare", "Two versions side by side; of one camera also on the same pictures.", compare, page.told),
    ...(mayAdminister(context.role) ? [importSection(page)] : []));
    let known = "", poll = null;
    function draw({ models }) {
      page.rows = models;
      redrawn(list, versions(page));
      redrawn(graph, lineage(page.rows));
      const ids = page.rows.map((m) => m.id).join();
      if (ids !== known) { known = ids; redrawn(compare, chooser(page)); }  // what was chosen stays chosen while nothing new is there
      else for (const option of compare.querySelectorAll("option")) setText(option, wordsOf(page.rows.find((m) => m.id === option.value)));
    }
    function begin() {
      poll = polled(list, `models?camera=${encodeURIComponent(page.camera)}`, 3000, draw);
      page.again = poll.again;
    }
    let cameras = "";
    context.status((status) => {
      const ids = status.cameras.map((c) => c.id);
      if (!ids.length && !poll) redrawn(list, make("p", { class: "hint" }, "No camera is watched yet."));
      if (ids.join() === cameras) return;
      cameras = ids.join();
      page.camera ||= ids[0] ?? "";
      redrawn(tabs, cameraTabs("models", ids, page.camera));
      if (!poll && page.camera) begin();
    });
    return () => poll?.stop();
  },
};

// --- the list ----------------------------------------------------------------------------------------------------------

function versions(page) {
  const operator = mayOperate(page.role);
  const serving = page.rows.find((m) => m.state === "serving");
  const others = page.rows.some((m) => m.state === "retired" || m.state === "admitted");
  const back = operator && others && serving ? make("div", { class: "buttons" }, make("button", { type: "button", "data-key": "back",
    onclick: (event) => change(page, event.currentTarget, `models/of/${page.camera}/rollback`, {}) }, `Roll ${page.camera} back to the version before`)) : null;
  return make("div", {}, back, table(`Versions of ${page.camera}`,
    ["version", "state", "quality (0–1)", "cost", "made from", "made", "why", ...(operator ? ["what to do"] : [])],
    [...page.rows].reverse().map((m) => [m.id, make("span", { title: STATES[m.state]?.[1] }, badge(m.state, STATES[m.state]?.[0]), m.pinned ? " pinned" : ""),
      m.quality === null ? "not judged" : number(m.quality, 3), gpuSeconds(m.gpu_s), m.parent ?? (m.origin || "the first"), moment(Date.parse(m.created) / 1000),
      make("span", { class: "words" }, m.reason || m.origin || "–"), ...(operator ? [actions(page, m)] : [])])));
}

function actions(page, m) {
  const small = (words, key, run, kind = "small") => make("button", { type: "button", class: kind, "data-key": `${key}-${m.id}`, "aria-label": `${words} ${m.id}`, onclick: run }, words);
  const buttons = [];
  if (m.state === "retired" || m.state === "admitted") buttons.push(small("Serve", "serve", (e) => change(page, e.currentTarget, `models/${m.id}/promote`, {})));
  if (m.state === "candidate") buttons.push(small("Serve …", "serve", (e) => promoteUnjudged(page, e.currentTarget, m)));
  if (m.state !== "rejected") {
    buttons.push(small(m.pinned ? "Unpin" : "Pin", "pin", (e) => act(e.currentTarget, async () => { await api.put(`models/${m.id}/pin`, { pinned: !m.pinned }); page.again(); },
      m.pinned ? `${m.id} goes when it is old` : `${m.id} is kept whatever comes`)));
    buttons.push(make("a", { class: "button small", href: `/api/v1/models/${m.id}/bundle`, download: `${m.id}.driftbox`, "data-key": `export-${m.id}`, "aria-label": `Export ${m.id}` }, "Export"));
  }
  return make("div", { class: "actions" }, ...buttons);
}

async function promoteUnjudged(page, button, m) {
  const answer = await asked(`Serve ${m.id}?`, make("p", {}, "No gate of this camera has judged it: nobody knows whether it is better than what serves. Its quality will be measured with the next labels."),
    [["", "Leave it"], ["serve", "Serve it all the same"]]);
  if (answer === "serve") change(page, button, `models/${m.id}/promote`, { force: true });
}

async function change(page, button, path, body) {
  let served = null;
  const well = await act(button, async () => { served = await api.post(path, body); });
  if (well) announce(`${served.after} serves ${served.camera} now, in the place of ${served.before ?? "none"}. ${served.warning}`);
  page.again();
}

// --- lineage -----------------------------------------------------------------------------------------------------------

function lineage(rows) {
  if (!rows.length) return make("p", { class: "hint" }, "Nothing to draw yet.");
  const shown = rows.slice(-GRAPH_ROWS), place = new Map(shown.map((m, i) => [m.id, [16 + STEP_PX * m.depth, 16 + ROW_PX * i]]));
  const height = 16 + ROW_PX * shown.length, deepest = Math.max(...shown.map((m) => m.depth));
  const words = shown.map((m) => `${m.id} ${m.parent ? `was made from ${m.parent}` : "is the first"}, ${m.state}`).join("; ");
  const edges = shown.filter((m) => place.has(m.parent)).map((m) => {
    const [x, y] = place.get(m.id), [px, py] = place.get(m.parent);
    return shape("path", { class: "edge", d: `M${px} ${py}C${px} ${y} ${px} ${y} ${x} ${y}` });
  });
  const nodes = shown.flatMap((m) => {
    const [x, y] = place.get(m.id);
    return [shape("circle", { class: `node ${m.state}`, cx: x, cy: y, r: m.state === "serving" ? 8 : 5 }),
      shape("text", { x: 16 + STEP_PX * deepest + 20, y: y + 4 }, `${m.id}  ${m.quality === null ? "" : number(m.quality, 3)}  ${m.state}`)];
  });
  return make("figure", {}, shape("svg", { class: "lineage", viewBox: `0 0 360 ${height}`, role: "img", "aria-label": `Lineage: ${words}.` }, ...edges, ...nodes),
    make("figcaption", { class: "hint" }, rows.length > GRAPH_ROWS ? `The newest ${GRAPH_ROWS} of ${rows.length} versions. ` : "",
      "The large circle serves. Beside each version: its quality (0 to 1) and state. The table above says the same in words."));
}

// --- compare -----------------------------------------------------------------------------------------------------------

const wordsOf = (m) => `${m.id} (${m.state})`;

function chooser(page) {
  if (page.rows.length < 2) return make("p", { class: "hint" }, "There is only one version yet.");
  const newest = [...page.rows].reverse();
  const serving = newest.find((m) => m.state === "serving") ?? newest[0], rest = newest.filter((m) => m !== serving);
  const other = rest.find((m) => m.id === serving.parent) ?? rest.find((m) => m.state !== "rejected") ?? rest[0];
  const select = (key, label, chosen) => make("label", { class: "field" }, make("span", {}, label),
    make("select", { "data-key": key }, ...newest.map((m) => make("option", { value: m.id, selected: m.id === chosen.id }, wordsOf(m)))));
  const first = select("first", "First", other), second = select("second", "Second", serving);
  const pair = () => [first, second].map((label) => label.querySelector("select").value);
  const sideBySide = make("button", { type: "button", class: "main", onclick: () => act(sideBySide, async () => {
    const [one, two] = pair();
    page.told.replaceChildren(drawCompared(await api.get(`models/compare?first=${one}&second=${two}`)));
  }) }, "Compare");
  const pictures = make("button", { type: "button", onclick: () => act(pictures, async () => {
    const [one, two] = pair();
    page.told.replaceChildren(drawComparison(await api.get(`learning/${page.camera}/before-after?before=${one}&after=${two}&pictures=3`)));
  }) }, "Show on pictures");
  return make("div", { class: "toolbar" }, first, second, sideBySide, pictures);
}

function drawCompared(c) {
  const way = c.ancestor === null ? "They have no recorded ancestor in common." :
    `Their newest common ancestor is ${c.ancestor}; ${c.steps} ${c.steps === 1 ? "retraining lies" : "retrainings lie"} between them.`;
  const side = (m) => [badge(m.state, STATES[m.state]?.[0]), m.quality === null ? "not judged" : number(m.quality, 3), m.quality_on, gpuSeconds(m.gpu_s),
    m.config.name ?? "first model", String(m.samples), m.live.points ? `${number(m.live.mean)} on average, ${number(m.live.worst)} at worst, ${m.live.points} measurements` : "never measured",
    Object.entries(m.files).map(([name, bytes]) => `${name}: ${size(parseInt(bytes, 10))}`).join(", ") || "gone", m.sha256.slice(0, 16)];
  const names = ["state", "quality at its gate (0–1)", "measured on", "cost of its retraining", "configuration", "pictures it learned from", "quality after going live (0–1)", "files", "SHA-256 of its weights (begin)"];
  const one = side(c.first), two = side(c.second);
  const value = (v) => (v === null || v === undefined ? "–" : typeof v === "number" ? String(Number(v.toPrecision(4))) : String(v));
  return make("div", {}, make("p", {}, way, " ", c.remark),
    table("Side by side", ["", c.first.id, c.second.id], names.map((name, i) => [name, wrapped(one[i]), wrapped(two[i])])),
    c.differences.length ? table("What was done differently", ["what", c.first.id, c.second.id, "unit"], c.differences.map((d) => [d.name, value(d.first), value(d.second), d.unit])) :
      make("p", { class: "hint" }, "They were made in the same way."));
}

const wrapped = (part) => make("span", { class: "words" }, part);

// --- import ------------------------------------------------------------------------------------------------------------

function importSection(page) {
  const file = make("input", { type: "file", accept: ".driftbox", id: "bundle-file" });
  const button = make("button", { type: "button", onclick: () => act(button, async () => {
    if (!file.files.length) { announce("choose a bundle first", true); return; }
    const taken = await api.post(`models/import?camera=${encodeURIComponent(page.camera)}`, file.files[0]);
    page.told.replaceChildren(make("p", {}, `${taken.version} came in for ${taken.camera}, signed by ${taken.signed_by ?? "nobody"}: it is a ${taken.state}, and the camera's own gate judges it with the next labels.`));
    page.again();
  }) }, "Import");
  return section("Import", "A bundle (.driftbox) that another box has exported and signed with a key that this box trusts (driftbox models trust). At most 512 MiB.",
    make("div", { class: "toolbar" }, make("label", { class: "field" }, make("span", {}, "Bundle"), file), button));
}
