// Customers: their goals and what they got, promised and received, over time; adding and changing them.

import { Refused, api, announce, make, number, percent, remember, table } from "/static/ui.js";
import { lineChart } from "/static/charts.js";
import { choice, field, form, numeric, text } from "/static/forms.js";
import { redrawn } from "/static/learning/parts.js";
import { facts, loaded, section, share, sureButton, wrapped } from "../parts/words.js";

export default { id: "customers", title: "Customers", mount };

const MEASURES = { quality: "mean quality of its cameras", deadline: "part of its frames answered in time" };
const UTILITIES = [["linear", "linear: halfway to the goal is worth half"], ["quadratic", "quadratic: being far from the goal is worth little"],
  ["sqrt", "square root: the first steps are worth most"], ["identity", "the measure itself"]];

function mount(root, context) {
  return context.words[0] ? one(root, context, context.words[0]) : all(root, context);
}

// --- all ---------------------------------------------------------------------------------------------------------------

function all(root, context) {
  const changed = remember(), cards = make("div"), told = make("div");
  root.append(section("customers", "Goals and what came of them", "The line in a bar is the goal. Promised: by the newest round; received: by what boxes report.", cards, told));
  if (context.role === "admin") root.append(section("add", "Add a customer", "", make("details", { "data-key": "add" }, make("summary", {}, "A new customer"), customerForm(null, context))));
  context.status((view) => {
    if (!changed("customers", view.customers)) return;
    redrawn(cards, view.customers.length ? make("div", { class: "cards" }, ...view.customers.map(card)) : make("p", { class: "hint" }, "There is no customer yet."));
    redrawn(told, table("Customers", ["customer", "cameras", "goal", "got", "promised", "needed", "received", "weight", "on boxes"], view.customers.map((c) => [
      link(c), String(c.cameras), number(c.goal), number(c.value), share(c.promised_pct), share(c.demand_pct), share(c.received_pct), number(c.weight, 1), String(c.on_boxes)])));
  });
}

const link = (c) => make("a", { href: `#/customers/${encodeURIComponent(c.id)}`, "data-key": `c-${c.id}` }, c.name || c.id);

function verdict(c) {
  if (c.met === null) return make("span", { class: "badge" }, c.stand_in === null ? "not measured yet" : `not measured; ${percent(100 * c.stand_in)} of what it needs`);
  return make("span", { class: `badge ${c.met ? "good" : "bad"}` }, c.met ? "goal met" : "below its goal");
}

function card(c) {
  const fill = make("i", { class: c.met === false ? "bad" : "good" }), line = make("span", { class: "line" });
  fill.style.width = `${100 * Math.min(1, c.value ?? 0)}%`;
  line.style.left = `${100 * c.goal}%`;
  return make("article", { class: "card" }, make("h3", {}, make("a", { href: `#/customers/${encodeURIComponent(c.id)}`, "data-key": `card-${c.id}` }, c.name || c.id)), verdict(c),
    make("div", { class: "goal", "aria-hidden": "true" }, make("div", { class: "bar" }, fill), line),
    make("dl", {}, ...pairs([["got, goal", `${number(c.value)}, ${number(c.goal)} (${MEASURES[c.measure]})`], ["promised, received", `${share(c.promised_pct)}, ${share(c.received_pct)}`],
      ["thought to need", share(c.demand_pct)], ["why", c.reason || (c.known ? "no round yet" : "boxes name it, but it is not among the customers")]])));
}

const pairs = (list) => list.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);

// --- one ---------------------------------------------------------------------------------------------------------------

function one(root, context, id) {
  const changed = remember(), how = make("div"), chart = make("div"), cameras = make("div"), change = make("div");
  const hours = choice([["6", "6 hours"], ["24", "a day"], ["168", "a week"], ["720", "30 days"]], "24", { "aria-label": "How far back" });
  let load = null, round = null;
  const course = () => { load?.end(); chart.replaceChildren(); load = loaded(chart, `fleet/view/customers/${encodeURIComponent(id)}/course?hours=${hours.value}`, charts); };
  hours.addEventListener("change", course);
  root.append(section("how", id, "", how), section("course", "Over time", "", make("div", { class: "toolbar" }, hours), chart),
    section("cameras", "Its cameras", "", make("p", {}, make("a", { href: `#/cameras/of/${encodeURIComponent(id)}` }, "All cameras of this customer")), cameras));
  if (context.role === "admin") root.append(section("change", "Change it", "", change));
  course();
  context.status((view) => {
    const c = view.customers.find((row) => row.id === id);
    if (!changed("customer", c ?? null)) return;
    redrawn(how, ...(c ? [make("p", {}, verdict(c), " ", c.name), facts([["got", number(c.value)], ["goal", number(c.goal)], ["expected by the newest round", number(c.predicted)], ["promised", share(c.promised_pct)],
      ["received", share(c.received_pct)], ["thought to need", share(c.demand_pct)], ["frames due", `${c.load_fps} a second`], ["cameras", String(c.cameras)]]), make("p", {}, c.reason)] :
      [make("p", { class: "hint" }, `There is no customer ${id}.`)]));
    if (c && !change.children.length) change.append(customerForm(c, context), removal(c, context));
    if (round !== null && round !== view.controller.last_round_utc) course();
    round = view.controller.last_round_utc;
  });
  return () => load?.end();
}

function charts(told) {
  if (!told.value.length && !told.stand_in.length) return [make("p", { class: "hint" }, "Nothing has been measured in this time.")];
  const measured = [{ name: "got", points: told.value }, { name: "goal", points: told.goal }, { name: "expected", points: told.predicted },
    ...(told.stand_in.length ? [{ name: "stands for it (not measured)", points: told.stand_in }] : [])];
  return [lineChart({ title: "What it got, and its goal (0–1)", series: measured, min: 0, max: 1 }),
    lineChart({ title: "Its share", unit: "% of a GPU", series: [{ name: "received", points: told.received_pct }, { name: "promised", points: told.promised_pct }, { name: "thought to need", points: told.demand_pct }], min: 0 }),
    told.reason ? make("p", {}, "Newest reason: ", wrapped(told.reason)) : null].filter(Boolean);
}

// --- changing ----------------------------------------------------------------------------------------------------------

function customerForm(c, context) {
  const id = text("", { maxlength: 63, autocapitalize: "none", pattern: "[a-z0-9_-]+" }), name = text(c?.name ?? "", { maxlength: 100 });
  const goal = numeric(c?.goal ?? 0.8, { min: 0.01, max: 1, step: 0.01 }), measure = choice(Object.entries(MEASURES), c?.measure ?? "quality");
  const weight = numeric(c?.weight ?? 1, { min: 0.01, step: "any" }), utility = choice(UTILITIES, c?.utility ?? "linear");
  const path = text((c?.path ?? []).join("/"), { autocapitalize: "none" }), least = numeric(c?.at_least_pct ?? 1, { min: 0.1, step: "any" });
  const stated = numeric(c?.stated_pct ?? "", { min: 0, step: "any" });
  return form(c ? "Save the change" : "Add the customer", async () => {
    const key = c?.id ?? id.value.trim();
    if (!(goal.valueAsNumber > 0 && goal.valueAsNumber <= 1)) throw new Refused(0, "the goal must be above 0 and at most 1");
    if (!(weight.valueAsNumber > 0 && least.valueAsNumber > 0)) throw new Refused(0, "the weight and the least share must be above 0");
    await api.put(`fleet/customers/${encodeURIComponent(key)}`, { name: name.value.trim(), goal: goal.valueAsNumber, measure: measure.value, weight: weight.valueAsNumber, utility: utility.value,
      path: path.value.split("/").map((part) => part.trim()).filter(Boolean), at_least_pct: least.valueAsNumber, stated_pct: Number.isNaN(stated.valueAsNumber) ? null : stated.valueAsNumber });
    announce(c ? `${key} was changed; the next round heeds it` : `${key} was added`);
    if (!c) context.go(`#/customers/${encodeURIComponent(key)}`);
  }, c ? null : field("Id", id, "As boxes name it (cameras[].customer): small letters, digits, - and _."), field("Name", name), field("Goal", goal, "0 to 1."), field("Of what", measure),
  field("Weight", weight, "Its part among its siblings, where not all goals can be met."), field("Group", path, "Its place in the tree of weights, such as region/north; empty: at the top."),
  field("What falling short costs", utility), field("Never less than (% of a GPU)", least), field("What it says it needs (% of a GPU)", stated, "Only used while nothing can be learned; may be empty."));
}

function removal(c, context) {
  return sureButton({ words: "Remove this customer", question: `Remove ${c.id}?`, detail: "Only a customer for which no camera is watched can go; what it got in the past stays in the history.", kind: "danger",
    work: () => api.remove(`fleet/customers/${encodeURIComponent(c.id)}`), told: `${c.id} was removed`, done: () => context.go("#/customers") });
}
