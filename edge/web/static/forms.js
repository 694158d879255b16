// Fields with their words: a label, the input, what it means. Every page that asks something builds with these.

import { make } from "./ui.js";

let counter = 0;

// field("Name", input, "what it means"): the hint is told by screen readers with the input.
export function field(label, input, hint = "") {
  const id = `field-${(counter += 1)}`;
  input.id ||= id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return make("div", { class: "field" }, make("label", { for: input.id }, label), input,
    hint ? make("p", { class: "hint", id: `${id}-hint` }, hint) : null);
}

export const text = (value = "", attributes = {}) => make("input", { type: "text", value, autocomplete: "off", spellcheck: "false", ...attributes });
export const numeric = (value, attributes = {}) => make("input", { type: "number", value, inputmode: "decimal", ...attributes });

export function choice(options, value, attributes = {}) {
  const select = make("select", attributes, ...options.map(([key, words]) => make("option", { value: key, selected: key === value }, words)));
  return select;
}

// A box to tick, with its words beside it.
export function check(words, checked, attributes = {}) {
  const input = make("input", { type: "checkbox", checked, ...attributes });
  return { input, element: make("label", { class: "check" }, input, words) };
}

// Several of a few: {element, values()}.
export function several(legend, options, chosen, hint = "") {
  const boxes = options.map(([key, words]) => ({ key, ...check(words, chosen.includes(key)) }));
  const element = make("fieldset", {}, make("legend", {}, legend), hint ? make("p", { class: "hint" }, hint) : null,
    ...boxes.map((box) => box.element));
  return { element, values: () => boxes.filter((box) => box.input.checked).map((box) => box.key) };
}

// A form that does something: Enter works, the main button rests meanwhile, and what goes wrong is told beside it.
export function form(buttonWords, submit, ...children) {
  const button = make("button", { type: "submit", class: "main" }, buttonWords);
  const problem = make("p", { class: "error", role: "alert", hidden: true });
  const element = make("form", { novalidate: true }, ...children, problem, make("div", { class: "buttons" }, button));
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    tell(problem, "");
    try {
      await submit();
    } catch (error) {
      if (error.status === undefined) throw error;
      tell(problem, error.message);
    } finally {
      button.disabled = false;
    }
  });
  return element;
}

function tell(line, words) {
  line.textContent = words;
  line.hidden = !words;
}
