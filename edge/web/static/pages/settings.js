// What can be set: cameras, accounts, tokens; what was done by whom; what stands in the configuration file.

import { make } from "../ui.js";
import * as accounts from "../settings/accounts.js";
import * as audit from "../settings/audit.js";
import * as box from "../settings/box.js";
import * as cameras from "../settings/cameras.js";
import * as tokens from "../settings/tokens.js";

export default { id: "settings", title: "Settings", mount };

const OPERATOR = ["operator", "admin"];
const ADMIN = ["admin"];
// Tab -> its words, who may see it, what it shows.
const TABS = {
  cameras: ["Cameras", OPERATOR, cameras], own: ["Tokens and sessions", ["viewer", ...OPERATOR], tokens], accounts: ["Accounts", ADMIN, accounts],
  audit: ["Audit log", ADMIN, audit], box: ["Box", OPERATOR, box],
};

function mount(root, context) {
  const open = Object.entries(TABS).filter(([, [, roles]]) => roles.includes(context.role));
  const [name = open[0][0], ...words] = context.words;
  const found = open.find(([id]) => id === name);
  const place = make("div");
  root.append(make("nav", { class: "tabs", "aria-label": "Settings" }, ...open.map(([id, [title]]) =>
    make("a", { href: `#/settings/${id}`, "aria-current": id === name ? "page" : null }, title))), place);
  if (!found) { place.append(make("p", {}, "There is no such part of the settings, or your role may not see it.")); return null; }
  return found[1][2].show(place, { ...context, words });
}
