// What one's own programs and browsers may do: API tokens, open sessions, the own password.

import { act, api, announce, asked, make, moment, Refused, table } from "../ui.js";
import { choice, field, form, numeric, text } from "../forms.js";
import { load } from "./load.js";

const ROLES = ["viewer", "operator", "admin"];

export function show(root, context) {
  const tokens = make("div"), sessions = make("div");
  const drawTokens = () => load(tokens, "accounts/tokens", (list) => [tokensOf(list, drawTokens)]);
  const drawSessions = () => load(sessions, "accounts/sessions", (list) => [sessionsOf(list, drawSessions)]);
  root.append(
    make("section", { "aria-labelledby": "h-tokens" }, make("h2", { id: "h-tokens" }, "API tokens"), make("p", { class: "hint" },
      "For programs: sent as ", make("code", {}, "Authorization: Bearer …"), ". A token may do no more than whoever made it, and less where you say so."),
    tokens, tokenForm(context, drawTokens)),
    make("section", { "aria-labelledby": "h-sessions" }, make("h2", { id: "h-sessions" }, "Sessions"), make("p", { class: "hint" },
      "Browsers in which somebody has signed in."), sessions),
    make("section", { "aria-labelledby": "h-password" }, make("h2", { id: "h-password" }, "Own password"), passwordForm()));
  drawTokens();
  drawSessions();
}

function tokensOf(list, again) {
  if (!list.length) return make("p", {}, "There are no tokens.");
  return table("Tokens", ["name", "role", "held to", "made by", "ends", "used last", "change"], list.map((token) => [token.name, token.role,
    [...token.areas, ...token.cameras.map((id) => `camera ${id}`)].join(", ") || "everything of its role", token.owner || "the command line", token.expires_utc ? moment(token.expires_utc) : "when revoked",
    token.used_utc ? moment(token.used_utc) : "never",
    endButton("Revoke", `the token ${token.name}`, `accounts/tokens/${token.id}`, again)]));
}

function sessionsOf(list, again) {
  return table("Open sessions", ["account", "from", "browser", "since", "last request", "change"], list.map((session) => [
    session.user + (session.own ? " (this one)" : ""), session.address, make("span", { class: "clip", title: session.agent }, session.agent.slice(0, 60)),
    moment(session.created_utc), moment(session.seen_utc), session.own ? "–" : endButton("End", `the session from ${session.address}`, `accounts/sessions/${session.ref}`, again)]));
}

function endButton(words, what, path, again) {
  return make("button", { type: "button", class: "small danger", "aria-label": `${words} ${what}`, onclick: async (event) => {
    const sure = await asked(`${words} ${what}?`, make("p", {}, "Whoever uses it is refused from then on."), [["", "Keep"], ["yes", words]]);
    if (sure === "yes" && await act(event.target, () => api.remove(path), `${what} has ended`)) again();
  } }, words);
}

function tokenForm(context, again) {
  const name = text("", { maxlength: 40 });
  const roles = ROLES.slice(0, ROLES.indexOf(context.role) + 1);
  const role = choice(roles.map((one) => [one, one]), "viewer");
  const areas = text("", { autocapitalize: "none" });
  const cameras = text("", { autocapitalize: "none" });
  const days = numeric(365, { min: 1, max: 3650 });
  return make("details", {}, make("summary", {}, "Make a token"), form("Make the token", async () => {
    if (!(days.valueAsNumber > 0)) throw new Refused(0, "days must be a number above 0");
    const made = await api.post("accounts/tokens", { name: name.value.trim(), role: role.value, days: days.valueAsNumber,
      areas: areas.value.split(/[\s,]+/).filter(Boolean), cameras: cameras.value.split(/[\s,]+/).filter(Boolean) });
    again();
    await asked("The new token", make("div", {}, make("p", {}, "It is shown this once; put it where the program reads it."),
      make("pre", { tabindex: "0", id: "new-token" }, made.token)), [["", "Done"]]);
  }, field("What it is for", name), field("Role", role), field("Held to these parts", areas,
    "Words after /api/v1/, such as status events cameras, and metrics. Empty: everything its role may."), field("Only these cameras", cameras, "Ids, such as gate yard: it sees nothing of the others, nor of the box, and is an operator at most. Empty: all."),
  field("Good for days", days)));
}

function passwordForm() {
  const old = text("", { type: "password", autocomplete: "current-password" });
  const fresh = text("", { type: "password", autocomplete: "new-password", maxlength: 200 });
  return form("Change the password", async () => {
    await api.put("me/password", { old: old.value, new: fresh.value });
    old.value = fresh.value = "";
    announce("The password was changed; all other sessions of this account have ended");
  }, field("Present password", old), field("New password", fresh, "10 to 200 characters."));
}
