// What can be set: boxes that join, where sites lie, accounts, tokens; who did what. The tabs about accounts are those of a box.

import { act, announce, api, asked, make, moment, table } from "/static/ui.js";
import { field, form, numeric, text } from "/static/forms.js";
import * as accounts from "/static/settings/accounts.js";
import * as audit from "/static/settings/audit.js";
import * as tokens from "/static/settings/tokens.js";
import { boxLink, loaded, section } from "../parts/words.js";

export default { id: "settings", title: "Settings", mount };

const ALL = ["viewer", "operator", "admin"], ADMIN = ["admin"];
// Tab -> its words, who may see it, what it shows.
const TABS = {
  invite: ["Invite a box", ADMIN, { show: showInvites }], sites: ["Sites", ADMIN, { show: showSites }], members: ["Members", ALL, { show: showMembers }],
  own: ["Tokens and sessions", ALL, tokens], accounts: ["Accounts", ADMIN, accounts], audit: ["Audit log", ADMIN, audit],
};

function mount(root, context) {
  const open = Object.entries(TABS).filter(([, [, roles]]) => roles.includes(context.role));
  const [name = open[0][0], ...words] = context.words;
  const found = open.find(([id]) => id === name), place = make("div");
  root.append(make("nav", { class: "tabs", "aria-label": "Settings" }, ...open.map(([id, [title]]) =>
    make("a", { href: `#/settings/${id}`, "aria-current": id === name ? "page" : null }, title))), place);
  if (!found) { place.append(make("p", {}, "There is no such part of the settings, or your role may not see it.")); return null; }
  return found[1][2].show(place, { ...context, words });
}

function showInvites(root) {
  const list = make("div");
  const load = loaded(list, "fleet/invites", (rows) => [rows.length ? table("Join codes", ["made", "by", "good until", "for", "used by"], rows.map((one) =>
    [moment(one.made_utc_s), one.by || "–", moment(one.expires_utc_s), one.box || "any box", one.used_by ? boxLink(one.used_by) : "nobody yet"])) : make("p", { class: "hint" }, "There are no join codes.")]);
  const box = text("", { maxlength: 63, autocapitalize: "none" }), days = numeric(1, { min: 0.01, max: 30, step: "any" });
  root.append(section("invite", "Invite a box", "A join code is good once. What stands after its dot lets the box check that it speaks to this controller.", form("Make a join code", async () => {
    const made = await api.post("fleet/invites", { box: box.value.trim(), days: days.valueAsNumber });
    load.again();
    await asked("The join code", make("div", {}, make("p", {}, `It is shown this once, and good until ${moment(made.expires_utc_s)}. On the box:`), make("pre", { tabindex: "0", id: "join-command" }, made.command)), [["", "Done"]]);
  }, field("Box", box, "The only id that may use it; empty: any."), field("Good for (days)", days)), list));
  return load.end;
}

function showSites(root, context) {
  const list = make("div"), site = text("", { maxlength: 63, autocapitalize: "none", list: "known-sites" }), name = text("", { maxlength: 100 }), known = make("datalist", { id: "known-sites" });
  const north = numeric("", { min: -90, max: 90, step: "any" }), east = numeric("", { min: -180, max: 180, step: "any" });
  root.append(section("sites", "Where sites lie", "For the map only; nothing is asked of anybody else.", form("Put it on the map", async () => {
    const id = site.value.trim();
    await api.put(`fleet/sites/${encodeURIComponent(id)}`, { latitude_deg: north.valueAsNumber, longitude_deg: east.valueAsNumber, name: name.value.trim() });
    announce(`${id} is on the map`);
  }, field("Site", site, "As its boxes name it (box.site)."), known, field("Name", name), field("Degrees north", north, "South: below 0."), field("Degrees east", east, "West: below 0.")), list));
  context.status((view) => {
    known.replaceChildren(...view.sites.map((one) => make("option", { value: one.id })));
    list.replaceChildren(table("Sites", ["site", "name", "north", "east", "boxes", "change"], view.sites.map((one) => [one.id, one.name || "–", one.latitude_deg ?? "–", one.longitude_deg ?? "–", String(one.boxes),
      one.latitude_deg === null ? "–" : make("button", { type: "button", class: "small danger", "aria-label": `Take ${one.id} off the map`, onclick: (event) =>
        act(event.currentTarget, () => api.remove(`fleet/sites/${encodeURIComponent(one.id)}`), `${one.id} is off the map`) }, "Take off")])));
  });
}

function showMembers(root) {
  const list = make("div");
  root.append(section("members", "Boxes that have joined", "A box renews its certificate by itself while it can.", list));
  return loaded(list, "fleet/members", (rows) => [rows.length ? table("Members", ["box", "site", "joined", "certificate until", "fingerprint", "state"], rows.map((one) =>
    [boxLink(one.box), one.site, moment(one.joined_utc_s), moment(one.until_utc_s), make("code", {}, one.fingerprint.slice(0, 16)), one.revoked ? `revoked: ${one.revoked}` : "good"])) : make("p", { class: "hint" }, "None yet.")]).end;
}
