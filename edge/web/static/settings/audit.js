// Who did what, from where, and what came of it.

import { act, api, make, moment, table } from "../ui.js";
import { load } from "./load.js";

const PAGE = 100;

export function show(root) {
  const place = make("div");
  const entries = [];
  const draw = (page) => {
    entries.push(...page.entries);
    const more = page.next === null ? null : make("button", { type: "button", class: "quiet", onclick: (event) =>
      act(event.target, async () => place.replaceChildren(...draw(await api.get(`accounts/audit?limit=${PAGE}&before=${page.next}`)).filter(Boolean))) }, "Older entries");
    return [table("Newest first", ["when", "who", "from", "what", "outcome", "more"], entries.map((entry) => [
      moment(entry.at_utc), entry.who, entry.address, entry.action, outcome(entry.outcome), entry.detail])), more].filter(Boolean);
  };
  root.append(make("section", { "aria-labelledby": "h-audit" }, make("h2", { id: "h-audit" }, "Audit log"), make("p", { class: "hint" },
    "Signing in and out, and every request that changed something. Nothing that was typed as a password is in it."), place));
  load(place, `accounts/audit?limit=${PAGE}`, draw);
}

const outcome = (words) => make("span", { class: /^(ok|2\d\d)$/.test(words) ? "good-words" : "bad-words" }, words);
