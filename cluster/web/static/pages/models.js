// Models in use, and versions on their way to boxes step by step: what they wait for, why they stopped; going on, rolling back, beginning one.

import { act, announce, api, make, moment, number, percent, Refused, remember, table } from "/static/ui.js";
import { choice, field, form, numeric, text } from "/static/forms.js";
import { redrawn } from "/static/learning/parts.js";
import { mayOperate, section, sureButton, wrapped } from "../parts/words.js";

export default { id: "models", title: "Models and rollouts", mount };

const STATES = { running: ["", "running"], stopped: ["bad", "stopped"], done: ["good", "done"], returning: ["warn", "being taken back"], returned: ["", "taken back"] };

function mount(root, context) {
  const changed = remember(), rollouts = make("div"), models = make("div"), begin = make("div");
  root.append(section("rollouts", "Staged rollouts", "A version is offered to one box, then to parts of the fleet; every box measures it by its own gate. It stops by itself when gates refuse too often, when quality " +
    "falls where it serves beside the cameras without it, or when a box that took it raises an alarm.", rollouts));
  if (mayOperate(context.role)) root.append(section("begin", "Begin a rollout", "", begin));
  root.append(section("models", "Models in use", "", models));
  context.status((view) => {
    if (changed("rollouts", view.rollouts)) redrawn(rollouts, ...(view.rollouts.length ? view.rollouts.map((one) => rollout(one, context)) : [make("p", { class: "hint" }, "None yet.")]));
    if (changed("models", view.models)) redrawn(models, inUse(view.models));
    if (mayOperate(context.role) && !begin.children.length) begin.append(make("details", {}, make("summary", {}, "A new rollout"), beginning(view, context)));
  });
}

function rollout(one, context) {
  const [kind, words] = STATES[one.state] ?? ["", one.state], c = one.counts;
  const way = make("ol", { class: "way", "aria-label": "Steps" }, ...one.steps_pct.map((pct, i) => make("li", { class: i < one.step || one.state === "done" ? "done" : i === one.step ? "now" : null,
    "aria-current": i === one.step ? "step" : null }, pct === 0 || (i === 0 && one.boxes * pct / 100 <= 1) ? "1 box" : percent(pct))));
  return make("article", { class: "card" }, make("h3", {}, one.name || one.id), make("span", { class: `badge ${kind}` }, words), way,
    make("dl", {}, make("dt", {}, "offered to"), make("dd", {}, `${one.boxes_offered} of ${one.boxes} boxes`),
      make("dt", {}, "cameras"), make("dd", {}, `${c.serving} serve it, ${c.refused} refused, ${c.failed} could not be judged, ${c.offered} have not answered, ${c.waiting} wait${c.withdrawn ? `, ${c.withdrawn} gave it back` : ""}`),
      one.waiting_for ? make("dt", {}, "waits for") : null, one.waiting_for ? make("dd", {}, one.waiting_for) : null, make("dt", {}, "newest reason"), make("dd", {}, one.reason)),
    mayOperate(context.role) ? buttons(one) : null,
    make("details", { "data-key": `why-${one.id}` }, make("summary", { "data-key": `why-${one.id}-s` }, "Every decision"), make("ul", { class: "decisions" }, ...one.decisions.map((d) =>
      make("li", {}, `${moment(d.at_utc)}: ${d.what}, because ${d.reason} (${d.by})`)))));
}

function buttons(one) {
  const change = (what) => () => api.patch(`fleet/rollouts/${encodeURIComponent(one.id)}`, { what });
  const plain = (words, what, told) => make("button", { type: "button", class: "small", "data-key": `${what}-${one.id}`, "aria-label": `${words} ${one.id}`,
    onclick: (event) => act(event.currentTarget, change(what), told) }, words);
  const made = [];
  if (one.state === "running") made.push(plain("Stop", "stop", `${one.id} is stopped`));
  if (one.state === "running" || one.state === "stopped") {
    made.push(sureButton({ words: one.state === "stopped" ? "Go on" : "Next step now", label: `Go on with ${one.id}`, question: `Go on with ${one.id}?`, work: change("go_on"), told: `${one.id} goes on`,
      detail: one.state === "stopped" ? `It stopped because ${one.reason}. What spoke against it until now does so no more; only what comes.` : "The next boxes are offered it at once, without waiting longer." }));
  }
  if (["running", "stopped", "done"].includes(one.state)) made.push(sureButton({ words: "Roll back", label: `Roll back ${one.id}`, question: `Roll back ${one.id}?`, kind: "small danger", work: change("roll_back"),
    told: `${one.id} is being taken back`, detail: "Every camera that serves it gets back the version that it served before." }));
  if (["done", "returned"].includes(one.state)) made.push(plain("Forget", "forget", `${one.id} is forgotten`));
  return make("div", { class: "row-of-buttons" }, ...made);
}

function beginning(view, context) {
  const id = text("", { maxlength: 63, autocapitalize: "none" }), name = text("", { maxlength: 200 }), file = make("input", { type: "file", accept: ".driftbox" });
  const customer = choice([["", "all customers"], ...view.customers.map((c) => [c.id, c.name || c.id])], ""), arch = choice([["", "any"], ...Object.keys(view.models.by_arch).filter(Boolean).map((a) => [a, a])], "");
  const steps = text("0, 10, 50, 100"), soak = numeric(60, { min: 0, step: "any" }), margin = numeric(0.03, { min: 0, max: 1, step: "any" }), refused = numeric(50, { min: 1, max: 100 });
  const admin = context.role === "admin";
  return form("Begin", async () => {
    const key = id.value.trim();
    if (admin && file.files.length) await api.put(`fleet/bundles/${encodeURIComponent(key)}`, file.files[0]);
    else if (admin) throw new Refused(0, "choose a bundle first");
    await api.post(`fleet/rollouts/${encodeURIComponent(key)}`, { bundle: key, name: name.value.trim(), customer: customer.value, arch: arch.value,
      steps_pct: steps.value.split(/[\s,]+/).filter(Boolean).map(Number), soak_min: soak.valueAsNumber, margin: margin.valueAsNumber, refused_pct: refused.valueAsNumber });
    announce(`${key} begins`);
  }, field("Id", id, admin ? "Small letters, digits, - and _." : "Of a bundle that an admin has put."), field("Name", name, "For people."),
  admin ? field("Bundle", file, "A signed .driftbox file (driftbox models export); boxes take it only if they trust its key.") : null,
  field("Customer", customer), field("Model architecture", arch, "Only cameras that serve such a model."), field("Steps (% of the boxes)", steps, "Rising to 100; 0 is one box."),
  field("Soak (minutes)", soak, "How long a step is watched after its boxes have answered."), field("Fall of quality that stops it", margin, "0 to 1."), field("Refusals that stop it (%)", refused));
}

function inUse(models) {
  if (!models.rows.length) return make("p", { class: "hint" }, "No box has told of a model yet.");
  const archs = Object.entries(models.by_arch).map(([arch, cameras]) => `${arch || "unnamed"}: ${cameras}`).join(", ");
  return make("div", {}, make("p", {}, `Cameras by architecture: ${archs}.`), table(models.total > models.rows.length ? `${models.rows.length} of ${models.total} versions, the most used first` : "Versions in use",
    ["version", "architecture", "cameras", "quality (0–1)"], models.rows.map((m) => [wrapped(m.version), m.arch || "–", String(m.cameras), number(m.quality)])));
}
