// The corners as number fields: for the keyboard, for screen readers, and for whoever wants an exact number.

import { make, setText } from "../ui.js";
import * as shapes from "./shapes.js";

const KINDS = { zone: "Zone", mask: "Mask", line: "Line" };

export class CornerList {
  // editor: whose shapes these are; it is told of every change.
  constructor(editor) {
    this.editor = editor;
    this.element = make("div", { class: "corner-list" });
    this.known = "";
  }

  // Fields stay while only numbers change, so that the one in which somebody types keeps the focus.
  draw(list, active) {
    const form = JSON.stringify(list.map((one) => [one.kind, one.points.length]));
    if (form !== this.known) {
      const held = this.element.contains(document.activeElement) ? document.activeElement.dataset.field : null;
      this.known = form;
      this.element.replaceChildren(...list.map((one, at) => this.group(one, at)));
      if (held) this.element.querySelector(`[data-field="${held}"]`)?.focus();
    }
    list.forEach((one, at) => this.fill(one, at, at === active));
  }

  group(one, at) {
    const history = () => this.editor.history.value;
    const name = one.kind !== "mask" ? make("label", { class: "field" }, make("span", {}, "Name"),
      make("input", { "data-field": `${at} name`, maxlength: 63, spellcheck: "false", autocomplete: "off",
        oninput: (event) => this.editor.change(shapes.renamed(history(), at, event.target.value), `name ${at}`) })) : null;
    return make("fieldset", { "data-at": at, onfocusin: () => this.choose(at) }, make("legend", {}, ""), name,
      make("ol", { class: "corners" }, ...one.points.map((_, corner) => this.row(at, corner))),
      make("div", { class: "buttons" },
        make("button", { type: "button", class: "small danger", onclick: () => this.editor.remove(at) }, "Remove this shape")));
  }

  row(at, corner) {
    const history = () => this.editor.history.value;
    const field = (axis, words) => make("label", {}, make("span", { class: "visually-hidden" }, `corner ${corner + 1}, `), words,
      make("input", { type: "number", min: 0, max: 100, step: 0.1, inputmode: "decimal", "data-field": `${at} ${corner} ${axis}`,
        oninput: (event) => this.typed(event, at, corner, axis) }), "%");
    return make("li", {}, field(0, "left "), field(1, "top "),
      ...(history()[at].kind === "line" ? [] : this.cornerButtons(at, corner)));
  }

  cornerButtons(at, corner) {
    const button = (words, label, work) => make("button", { type: "button", class: "small quiet", "aria-label": label, onclick: work }, words);
    return [
      button("+", `Add a corner after corner ${corner + 1}`, () => this.editor.change(shapes.cornerAfter(this.editor.history.value, at, corner))),
      button("−", `Remove corner ${corner + 1}`, () => this.editor.dropCorner(at, corner)),
    ];
  }

  typed(event, at, corner, axis) {
    const value = event.target.valueAsNumber;
    if (!Number.isFinite(value) || value < 0 || value > 100) return;  // half a number is not a place
    const place = [...this.editor.history.value[at].points[corner]];
    place[axis] = value / 100;
    this.editor.change(shapes.moved(this.editor.history.value, at, corner, ...place), `field ${at} ${corner} ${axis}`);
  }

  choose(at) {
    if (this.editor.active === at) return;
    this.editor.active = at;
    this.editor.draw();
  }

  fill(one, at, chosen) {
    const group = this.element.children[at];
    group.classList.toggle("chosen", chosen);
    setText(group.querySelector("legend"), `${KINDS[one.kind]} ${one.name.replace("mask ", "")}${chosen ? " (chosen)" : ""}`);
    const name = group.querySelector("[data-field$=name]");
    if (name && name !== document.activeElement) name.value = one.name;
    one.points.forEach((point, corner) => point.forEach((value, axis) => {
      const input = this.element.querySelector(`[data-field="${at} ${corner} ${axis}"]`);
      if (input !== document.activeElement) input.value = String(Math.round(value * 1000) / 10);
    }));
  }

  focusName(at) {
    const field = this.element.children[at]?.querySelector("input");
    field?.focus();
    field?.select?.();
  }
}
