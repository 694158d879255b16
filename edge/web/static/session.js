// Who uses the page: claiming a new box, signing in, signing out. The box says what is needed (GET /api/v1/sign-in); where it has no
// accounts nobody is asked.

import { THING, api, make, Refused } from "./ui.js";
import { field, form, text } from "./forms.js";

// What the box says of who asks: {login, claimed, me: {name, role, kind} or null}. Throws Refused when it does not answer.
export const whoAsks = () => api.get("sign-in");

// Shows what is missing, in `root`, until somebody is signed in; then calls done(firstTime).
export function letIn(root, state, done) {
  root.replaceChildren(state.claimed ? signInForm(done) : claimForm(done));
  root.querySelector("input").focus();
  return state.claimed ? "Sign in" : `Claim this ${THING}`;
}

function signInForm(done) {
  const name = text("", { autocomplete: "username", required: true, autocapitalize: "none" });
  const password = text("", { type: "password", autocomplete: "current-password", required: true });
  return make("section", { class: "narrow" }, form("Sign in", async () => {
    await api.post("sign-in", { name: name.value.trim(), password: password.value });
    done(false);
  }, field("Name", name), field("Password", password)));
}

function claimForm(done) {
  const code = text("", { required: true, autocapitalize: "characters" });
  const name = text("admin", { autocomplete: "username", required: true, maxlength: 40, autocapitalize: "none" });
  const password = text("", { type: "password", autocomplete: "new-password", required: true, maxlength: 200 });
  const again = text("", { type: "password", autocomplete: "new-password", required: true, maxlength: 200 });
  return make("section", { class: "narrow" },
    make("p", {}, `This ${THING} is new: nobody has an account yet. It printed a claim code when it started for the first time; whoever has the code makes `,
      "the first account, which may do everything."),
    form(`Claim the ${THING}`, async () => {
      if (password.value !== again.value) throw new Refused(0, "the two passwords are not the same");
      await api.post("claim", { code: code.value.trim(), name: name.value.trim(), password: password.value });
      done(true);
    },
    field("Claim code", code, "As it was printed, in the terminal or in the service's log; dashes and small letters do not matter."),
    field("Your name", name, "Small letters, digits, and . _ @ -"),
    field("Password", password, "10 to 200 characters. Several words are easier to keep in mind than signs."),
    field("Password again", again)));
}

// The corner at the top: who is signed in, and out again.
export function drawPerson(corner, me, signedOut) {
  if (!me || me.kind === "none") { corner.replaceChildren(); return; }
  corner.replaceChildren(make("span", {}, `${me.name} (${me.role})`), make("button", { type: "button", class: "small quiet", onclick: async () => {
    try { await api.post("sign-out"); } catch (error) { if (!(error instanceof Refused)) throw error; }
    signedOut();
  } }, "Sign out"));
}
