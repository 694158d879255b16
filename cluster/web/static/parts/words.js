// Words and small parts that several pages of the fleet have.

import { redrawn } from "/static/learning/parts.js";
import { Refused, act, api, asked, duration, make } from "/static/ui.js";

export const OPERATOR = ["operator", "admin"];
const STATES = {
  well: ["good", "well"], draining: ["warn", "being emptied"], alarm: ["bad", "alarm"], doubted: ["bad", "doubted"],
  silent: ["warn", "silent"], away: ["bad", "away"], new: ["", "not reported yet"],
};
export const PHASES = { prepare: "packing its model and state", warm: "the target watches beside the source", switch: "changing hands", release: "the source lets go" };
export const CAUSES = { move: "a better place", drain: "its box is emptied", takeover: "its box is away", return: "back home" };

export const mayOperate = (role) => OPERATOR.includes(role);
export const stateBadge = (state) => make("span", { class: `badge ${STATES[state]?.[0] ?? ""}` }, STATES[state]?.[1] ?? state);
export const boxLink = (id) => (id ? make("a", { href: `#/box/${encodeURIComponent(id)}`, "data-key": `b-${id}` }, id) : "–");
export const share = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(value < 10 ? 1 : 0)} %`);
export const wrapped = (text) => make("span", { class: "words" }, text || "–");
export const ago = (utc) => (utc ? `${duration(Date.now() / 1000 - utc)} ago` : "–");

export function section(id, title, hint, ...children) {
  return make("section", { "aria-labelledby": `h-${id}` }, make("h2", { id: `h-${id}` }, title), hint ? make("p", { class: "hint" }, hint) : null, ...children);
}

// facts([["boxes", "14 of 15"], ...])
export const facts = (pairs) => make("dl", { class: "facts" }, ...pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));

// A button that asks first and then does; done(): after it went well.
export function sureButton({ words, label, question, detail, kind = "small", work, told, done = () => {} }) {
  const button = make("button", { type: "button", class: kind, "data-key": label ?? words, "aria-label": label ?? words, onclick: async () => {
    const sure = await asked(question, make("p", {}, detail), [["", "Leave it"], ["yes", words]]);
    if (sure === "yes" && await act(button, work, told)) done();
  } }, words);
  return button;
}

// Asks for `path` and draws it; again() asks once more. What is shown stays while the next answer is on its way.
export function loaded(place, path, draw) {
  let ended = false;
  async function again() {
    try {
      const answer = await api.get(path);
      if (!ended) redrawn(place, ...draw(answer, again));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (!ended) place.replaceChildren(make("p", { class: "error" }, error.message));
    }
  }
  place.append(make("p", { class: "hint" }, "loading …"));
  again();
  return { again, end: () => { ended = true; } };
}

// Asks which of some boxes; resolves to its id, "" when nobody chose.
export async function chosenBox(title, words, boxes, usual) {
  const select = make("select", { "aria-label": "Box" }, ...boxes.map(([id, text]) => make("option", { value: id, selected: id === usual }, text)));
  const answer = await asked(title, make("div", {}, make("p", {}, words), select), [["", "Leave it"], ["yes", "Pin it there"]]);
  return answer === "yes" ? { box: select.value } : null;
}
