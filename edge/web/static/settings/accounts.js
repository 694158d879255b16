// Accounts: who may sign in, as what.

import { act, api, asked, make, moment, table } from "../ui.js";
import { choice, field, form, text } from "../forms.js";
import { load } from "./load.js";

const ROLES = [["viewer", "viewer: sees pictures, numbers, events"], ["operator", "operator: also cameras, labels, models, queries"],
  ["admin", "admin: everything"]];

export function show(root) {
  const place = make("div");
  const draw = () => load(place, "accounts/users", (users) => [listOf(users, draw)]);
  root.append(make("section", { "aria-labelledby": "h-accounts" }, make("h2", { id: "h-accounts" }, "Accounts"), make("p", { class: "hint" },
    "Who may sign in, and as what. Another role counts from the next request on; another password ends the account's sessions."), place), addForm(draw));
  draw();
}

function listOf(users, again) {
  return table("Accounts of this box", ["name", "role", "made", "signed in last", "change"], users.map((user) => [
    user.name, roleOf(user, again), moment(user.created_utc), user.signed_in_utc ? moment(user.signed_in_utc) : "never", buttons(user, again)]));
}

function roleOf(user, again) {
  const select = choice(ROLES.map(([role]) => [role, role]), user.role, { "aria-label": `Role of ${user.name}` });
  select.addEventListener("change", async () => {
    await act(select, () => api.patch(`accounts/users/${encodeURIComponent(user.name)}`, { role: select.value }), `${user.name} is ${select.value} now`);
    again();
  });
  return select;
}

function buttons(user, again) {
  const path = `accounts/users/${encodeURIComponent(user.name)}`;
  const remove = async (event) => {
    const sure = await asked(`Remove ${user.name}?`, make("p", {}, "All sessions and tokens of this account end at once."), [["", "Keep"], ["yes", "Remove"]]);
    if (sure === "yes" && await act(event.target, () => api.remove(path), `${user.name} was removed`)) again();
  };
  const password = async (event) => {
    const input = text("", { type: "password", autocomplete: "new-password", maxlength: 200 });
    const sure = await asked(`New password for ${user.name}`, field("Password", input, "10 to 200 characters. All sessions of the account end."),
      [["", "Cancel"], ["yes", "Set it"]]);
    if (sure === "yes") await act(event.target, () => api.put(`${path}/password`, { password: input.value }), `${user.name} has a new password`);
  };
  return make("span", {}, make("button", { type: "button", class: "small quiet", onclick: password }, "New password"),
    make("button", { type: "button", class: "small danger", onclick: remove }, "Remove"));
}

function addForm(again) {
  const name = text("", { maxlength: 40, autocapitalize: "none" });
  const password = text("", { type: "password", autocomplete: "new-password", maxlength: 200 });
  const role = choice(ROLES, "viewer");
  return make("section", { "aria-labelledby": "h-add" }, make("h2", { id: "h-add" }, "Add an account"), form("Add the account", async () => {
    await api.post("accounts/users", { name: name.value.trim(), password: password.value, role: role.value });
    name.value = password.value = "";
    again();
  }, field("Name", name, "Small letters, digits, and . _ @ -"), field("Password", password, "10 to 200 characters."), field("Role", role)));
}
