// What happened: rounds, cameras that changed boxes, alarms, who had what done.

import { make, moment, number, percent, table } from "/static/ui.js";
import { choice } from "/static/forms.js";
import { CAUSES, boxLink, loaded, section, wrapped } from "../parts/words.js";

export default { id: "history", title: "History", mount };

function mount(root, context) {
  const hours = choice([["1", "an hour"], ["24", "a day"], ["168", "a week"]], "24"), place = make("div");
  let load = null;
  const show = () => { load?.end(); place.replaceChildren(); load = loaded(place, `fleet/view/history?hours=${hours.value}`, drawn); };
  hours.addEventListener("change", show);
  root.append(make("div", { class: "toolbar" }, make("label", { class: "field" }, make("span", {}, "How far back"), hours)), place);
  show();
  return () => load.end();
}

const list = (rows, none, draw) => (rows.length ? draw() : make("p", { class: "hint" }, none));

function drawn(told) {
  return [
    section("placements", "Cameras that changed boxes", "", list(told.placements, "None.", () => table("Placements, newest first", ["when", "camera", "from", "to", "step", "because", "why"],
      told.placements.map((p) => [moment(p.at_utc_s), p.camera, boxLink(p.source), boxLink(p.target), p.phase, CAUSES[p.cause] ?? p.cause, wrapped(p.problem || p.reason)])))),
    section("alarms", "Alarms", "", list(told.alarms, "None.", () => table("Alarms, newest first", ["box", "what", "began", "ended"],
      told.alarms.map((a) => [a.box ? boxLink(a.box) : "fleet", wrapped(a.text), moment(a.began_utc_s), a.ended_utc_s ? moment(a.ended_utc_s) : "still there"])))),
    section("audit", "Who had what done", "", list(told.audit, "Nobody.", () => table("Actions, newest first", ["when", "who", "what", "with what", "more"],
      told.audit.map((a) => [moment(a.at_utc_s), a.by, a.action, a.subject || "–", wrapped(a.text)])))),
    section("rounds", "Rounds", "", list(told.rounds, "None yet.", () => table("Rounds, newest first", ["when", "round", "policy", "capacity", "took", "about the fleet"],
      told.rounds.map((r) => [moment(r.at_utc_s), String(r.round), r.policy, percent(r.capacity_pct), `${number(r.took_ms, 0)} ms`, wrapped(r.reasons.join("; "))])))),
  ];
}
