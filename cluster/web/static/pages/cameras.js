// Cameras of the fleet: those on their way, those that are not simply watched at home, and all of them by page.

import { make, moment, remember, table } from "/static/ui.js";
import { redrawn } from "/static/learning/parts.js";
import { CAUSES, PHASES, ago, boxLink, loaded, section, wrapped } from "../parts/words.js";
import { cameraTable } from "../parts/camera_table.js";

export default { id: "cameras", title: "Cameras", mount };

const PAGE = 100;

function mount(root, context) {
  const changed = remember(), moving = make("div"), placed = make("div"), list = make("div");
  const customer = context.words[0] === "of" ? context.words[1] ?? "" : "";
  let offset = 0, load = null;
  const show = () => {
    load?.end();
    list.replaceChildren();
    load = loaded(list, `fleet/view/cameras?customer=${encodeURIComponent(customer)}&offset=${offset}&limit=${PAGE}`, (told, again) => [cameraTable(told.rows, context, again), pager(told)]);
  };
  const pager = (told) => {
    const step = (by, words, there) => make("button", { type: "button", disabled: !there, onclick: () => { offset += by; show(); } }, words);
    return make("div", { class: "row-of-buttons" }, step(-PAGE, "Before", told.offset > 0), step(PAGE, "Next", told.offset + PAGE < told.total),
      make("span", { class: "hint" }, told.total ? `${told.offset + 1} to ${Math.min(told.total, told.offset + PAGE)} of ${told.total}` : ""));
  };
  root.append(section("moving", "On their way", "A camera is watched by both boxes until the new one owns it: no frame is lost.", moving),
    section("placed", "Not simply at home", "", placed), section("all", customer ? `Cameras of ${customer}` : "All cameras", "", list));
  show();
  context.status((view) => {
    if (changed("handoffs", view.handoffs)) redrawn(moving, handoffs(view.handoffs));
    if (changed("placements", view.placements)) { redrawn(placed, placements(view.placements)); load.again(); }
  });
  return () => load.end();
}

function handoffs(rows) {
  if (!rows.length) return make("p", { class: "hint" }, "None.");
  return table("Handoffs in progress", ["camera", "from", "to", "step", "because", "why", "began"], rows.map((h) => [h.camera, boxLink(h.source), boxLink(h.target),
    make("span", {}, h.phase, ": ", PHASES[h.phase] ?? "", h.problem ? make("span", { class: "error" }, ` ${h.problem}`) : null), CAUSES[h.cause] ?? h.cause, wrapped(h.reason), ago(h.began_utc)]));
}

function placements(placed) {
  const words = `${placed.standbys} cameras have a box standing by.`;
  if (!placed.rows.length) return make("p", { class: "hint" }, `Every camera is watched by its home box. ${words}`);
  return make("div", {}, table("Cameras away from home, and pinned ones", ["camera", "watched by", "home", "standby", "since", "why there"], placed.rows.map((p) => [p.camera,
    make("span", {}, boxLink(p.box), p.pinned ? " pinned" : ""), boxLink(p.home), p.standby ? boxLink(p.standby) : "–", p.since_utc ? moment(p.since_utc) : "–", wrapped(p.why || (p.pinned ? "pinned by the owner" : ""))])),
  make("p", { class: "hint" }, placed.total > placed.rows.length ? `${placed.total} in all. ${words}` : words));
}
