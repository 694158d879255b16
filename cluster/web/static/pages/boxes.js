// The fleet in one look: what is wrong, the map, every box by site.

import { make, number, percent, remember, table } from "/static/ui.js";
import { choice } from "/static/forms.js";
import { redrawn } from "/static/learning/parts.js";
import { ago, boxLink, facts, section, share, stateBadge, wrapped } from "../parts/words.js";
import { siteMap } from "../parts/map.js";

export default { id: "boxes", title: "Boxes", mount };

const FIRST = 100;
const MOST_TROUBLES = 12;

function mount(root, context) {
  const changed = remember();
  const totals = make("div"), trouble = make("div"), map = make("div"), sites = make("div"), list = make("div");
  const site = context.words[0] ?? "";
  const which = choice([["", "All boxes"], ["trouble", "Only those that are not well"]], "", { "aria-label": "Which boxes" });
  const page = { site, view: null, shown: FIRST };
  const redraw = () => { if (page.view) redrawn(list, ...boxes(page, which.value, redraw)); };
  which.addEventListener("change", redraw);
  root.append(section("totals", "The fleet", "", totals), section("trouble", "What is wrong", "", trouble),
    section("map", "Sites", "", make("div", { class: "map-and-words" }, map, sites)),
    section("list", site ? `Boxes at ${site}` : "Boxes", "Percent of a GPU: 100 % is one GPU; on a box without one, one core.",
      make("div", { class: "toolbar" }, which, site ? make("a", { href: "#/boxes", class: "button small" }, "All sites") : null), list));
  context.status((view) => {
    page.view = view;
    if (changed("totals", [view.totals, view.controller])) totals.replaceChildren(facts(summed(view)));
    if (changed("alarms", view.alarms)) redrawn(trouble, ...troubles(view.alarms));
    if (changed("sites", view.sites)) { redrawn(map, siteMap(view.sites)); redrawn(sites, siteTable(view.sites)); }
    if (changed("boxes", view.boxes)) redraw();
  });
}

function summed(view) {
  const t = view.totals, c = view.controller;
  return [["boxes there", `${t.there} of ${t.boxes}`], ["cameras live", `${t.live} of ${t.cameras}`], ["goals met", `${t.met} of ${t.judged}`],
    ["mean quality (0–1)", number(t.quality)], ["capacity", percent(t.capacity_pct)], ["promised", percent(t.promised_pct)], ["received", percent(t.received_pct)],
    ["cameras on their way", String(t.moving)], ["newest round", c.last_round_utc ? `${number(c.round_took_ms, 0)} ms` : "none yet"],
    ["controller", `${c.id}, ${c.in_charge ? `term ${c.term}` : "not in charge"}`], ["lease", c.lease], ["placement carried to", engine(c.engine)]];
}

const engine = (e) => e.name === "local" ? "local: it stays here" : `${e.name} at ${e.where}: ${e.boxes} boxes of ${e.nodes} nodes${e.problem ? " (not up to date)" : ""}`;

function troubles(alarms) {
  if (!alarms.length) return [make("p", {}, "Nothing: no alarm, nothing is doubted.")];
  const rest = alarms.length - MOST_TROUBLES;
  return [make("ul", { class: "trouble" }, ...alarms.slice(0, MOST_TROUBLES).map((one) => make("li", {},
    make("span", { class: "badge bad" }, one.what === "doubt" ? "doubted" : "alarm"), " ", one.box ? boxLink(one.box) : "fleet", ": ", one.text,
    one.began_utc ? make("span", { class: "hint" }, ` since ${new Date(one.began_utc * 1000).toLocaleString()}`) : null))),
  ...(rest > 0 ? [make("p", { class: "hint" }, `and ${rest} more; each box's page has its own`)] : [])];
}

const siteTable = (sites) => table("Sites", ["site", "boxes well", "cameras", "received", "capacity"], sites.map((site) => [
  make("a", { href: `#/boxes/${encodeURIComponent(site.id)}`, "data-key": `s-${site.id}` }, site.name || site.id), `${site.well} of ${site.boxes}`, String(site.cameras), percent(site.received_pct), percent(site.capacity_pct)]));

function boxes(page, which, redraw) {
  const rows = page.view.boxes.filter((box) => (!page.site || box.site === page.site) && (which !== "trouble" || !["well", "draining"].includes(box.state)))
    .sort((a, b) => (a.site < b.site ? -1 : a.site > b.site ? 1 : 0));
  if (!rows.length) return [make("p", { class: "hint" }, page.view.boxes.length ? "No box is like that." : "No box has joined yet: Settings, Invite a box.")];
  const shown = rows.slice(0, page.shown);
  const more = make("button", { type: "button", onclick: () => { page.shown += FIRST; redraw(); } }, `Show more (${rows.length - shown.length})`);
  return [table(`${rows.length} boxes`, ["site", "box", "state", "cameras live", "quality (0–1)", "received", "capacity", "spare", "software"], shown.map((box) => [
    box.site, boxLink(box.id), stateCell(box), `${box.live} of ${box.cameras}${box.guests ? `, ${box.guests} of others` : ""}`, number(box.quality), share(box.received_pct), share(box.capacity_pct),
    share(box.spare_pct), box.software || "–"])), ...(shown.length < rows.length ? [more] : [])];
}

function stateCell(box) {
  const why = box.state === "away" || box.state === "silent" ? `last heard ${ago(box.seen_utc)}` : box.doubts[0] ?? box.alarms[0] ?? "";
  return make("span", {}, stateBadge(box.state), why ? wrapped(why) : null);
}
