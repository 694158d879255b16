// Draws zones, lines and masks on a camera's picture: with a mouse, a finger, or the keyboard (corners take the focus and the arrow keys, and
// every corner also stands below as two number fields).

import { announce, make, setText } from "../ui.js";
import { shape } from "../charts.js";
import { highest, layer, setRatio, sizeOf } from "./outline.js";
import * as shapes from "./shapes.js";
import { CornerList } from "./corner_list.js";

const STEP = 0.01, LARGE_STEP = 0.05;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// new PlaceEditor({zones, masks, lines}); .element; .setPicture(url, words); .value() -> the same; .problem() -> words.
export class PlaceEditor {
  constructor(places = {}, onChange = () => {}) {
    this.history = new shapes.History(shapes.shapesOf(places));
    this.active = this.history.value.length ? 0 : -1;
    this.onChange = onChange;
    this.img = make("img", { alt: "", hidden: true, draggable: "false" });
    this.svg = layer();
    this.svg.removeAttribute("aria-hidden");
    this.svg.setAttribute("role", "group");
    this.svg.setAttribute("aria-label", "Zones, lines and masks on the picture. Tab reaches the corners, arrow keys move one, Delete removes it.");
    this.stage = make("div", { class: "stage" }, this.img, this.svg);
    this.undo = make("button", { type: "button", class: "quiet", onclick: () => this.step("undo") }, "Undo");
    this.redo = make("button", { type: "button", class: "quiet", onclick: () => this.step("redo") }, "Redo");
    this.warning = make("p", { class: "error", role: "status" });
    this.list = new CornerList(this);
    this.element = make("div", { class: "place-editor" },
      make("p", { class: "hint" }, "A zone is a place whose objects are told by its name. A line counts who crosses it: seen from its corner 1 to its ",
        "corner 2, in is from right to left. A mask is blackened before anything else looks at the picture. Drag a corner, or click into the picture to add one to the shape that is chosen. Undo takes back any step."),
      make("div", { class: "toolbar" },
        make("button", { type: "button", onclick: () => this.add("zone") }, "Add a zone"),
        make("button", { type: "button", onclick: () => this.add("line") }, "Add a line"),
        make("button", { type: "button", onclick: () => this.add("mask") }, "Add a privacy mask"), this.undo, this.redo),
      this.stage, this.warning, this.list.element);
    this.img.addEventListener("load", () => this.fit());
    new ResizeObserver(() => this.draw()).observe(this.stage);
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) this.svg.addEventListener(end, () => this.release());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  setPicture(url, words) {
    this.img.alt = words;
    this.img.src = url;
  }

  value() { return shapes.placesOf(this.history.value); }

  problem() { return shapes.problemOf(this.history.value); }

  // --- changes ---

  change(next, key = "") {
    this.history.change(next, key);
    this.draw();
    this.onChange();
  }

  add(kind) {
    this.active = this.history.value.length;
    this.change(shapes.added(this.history.value, kind));
    this.list.focusName(this.active);
    announce(`A ${kind} was added in the middle of the picture`);
  }

  remove(at) {
    const { name } = this.history.value[at];
    this.active = Math.min(this.active, this.history.value.length - 2);
    this.change(shapes.removed(this.history.value, at));
    announce(`${name} removed; Undo brings it back`);
    this.undo.focus();
  }

  step(which) {
    this.history[which]();
    this.active = Math.min(Math.max(this.active, 0), this.history.value.length - 1);
    this.draw();
    this.onChange();
    // A pressed button that has nothing more to do would lose the focus.
    if (document.activeElement === document.body) (this.undo.disabled ? this.redo : this.undo).focus();
  }

  // --- pointer ---

  placeOf(event) {
    const box = this.svg.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  press(event) {
    if (event.button !== 0) return;
    const corner = event.target.closest("[data-corner]");
    const area = event.target.closest("[data-shape]");
    if (corner) {
      this.active = Number(corner.dataset.shape);
      this.dragged = { corner: Number(corner.dataset.corner), key: `drag ${event.timeStamp}` };
      this.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
      return;
    }
    if (area && Number(area.dataset.shape) !== this.active) { this.active = Number(area.dataset.shape); this.draw(); return; }
    if (this.active >= 0) this.change(shapes.cornerAt(this.history.value, this.active, ...this.placeOf(event)));
  }

  drag(event) {
    if (this.dragged) this.change(shapes.moved(this.history.value, this.active, this.dragged.corner, ...this.placeOf(event)), this.dragged.key);
  }

  release() { this.dragged = null; }

  // --- keyboard ---

  key(event) {
    const corner = event.target.closest?.("[data-corner]");
    if (!corner) return;
    const at = Number(corner.dataset.shape), number = Number(corner.dataset.corner);
    const direction = ARROWS[event.key];
    if (direction) this.nudge(at, number, direction, event.shiftKey ? LARGE_STEP : STEP);
    else if (event.key === "Delete" || event.key === "Backspace") this.dropCorner(at, number);
    else if (event.key === "Insert" || event.key === "+") this.change(shapes.cornerAfter(this.history.value, at, number));
    else return;
    event.preventDefault();
    this.focusCorner(at, Math.min(number, this.history.value[at].points.length - 1));
  }

  nudge(at, number, [dx, dy], step) {
    this.active = at;
    const [x, y] = this.history.value[at].points[number];
    this.change(shapes.moved(this.history.value, at, number, x + dx * step, y + dy * step), `key ${at} ${number}`);
  }

  dropCorner(at, number) {
    const next = shapes.cornerRemoved(this.history.value, at, number);
    if (next === this.history.value) announce("A zone or mask has at least three corners, a line two; remove the whole shape instead", true);
    this.change(next);
  }

  focusCorner(at, number) { this.svg.querySelector(`[data-shape="${at}"][data-corner="${number}"]`)?.focus(); }

  // --- drawing ---

  fit() {
    this.img.hidden = false;
    setRatio(this.svg, this.img.naturalWidth / this.img.naturalHeight || 16 / 9);
    this.draw();
  }

  draw() {
    const [width, height] = sizeOf(this.svg);
    const focused = document.activeElement?.dataset?.corner !== undefined && this.svg.contains(document.activeElement)
      ? [document.activeElement.dataset.shape, document.activeElement.dataset.corner] : null;
    const order = this.history.value.map((one, at) => [one, at]).sort((a, b) => (a[1] === this.active) - (b[1] === this.active));
    this.svg.replaceChildren(...order.flatMap(([one, at]) => this.drawShape(one, at, width, height)));
    if (focused) this.focusCorner(...focused);
    this.undo.disabled = !this.history.past.length;
    this.redo.disabled = !this.history.future.length;
    setText(this.warning, this.problem());
    this.list.draw(this.history.value, this.active);
  }

  drawShape(one, at, width, height) {
    const places = one.points.map(([x, y]) => [x * width, y * height]);
    const chosen = at === this.active ? " chosen" : "";
    const unit = 1000 / (this.svg.clientHeight || 500);  // one px of the screen: a corner is as large as a finger needs it everywhere
    const [nameX, nameY] = highest(places);
    return [
      shape(one.kind === "line" ? "polyline" : "polygon", { class: `${one.kind === "line" ? "crossing" : one.kind}${chosen}`, "data-shape": at, points: places.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") }),
      shape("text", { x: nameX + 14 * unit, y: Math.max(16 * unit, nameY - 6 * unit), "font-size": 14 * unit }, one.name),
      ...places.map(([x, y], corner) => shape("circle", {
        class: `corner${chosen}`, cx: x.toFixed(1), cy: y.toFixed(1), r: (chosen ? 11 : 7) * unit, tabindex: 0, role: "button", "data-shape": at, "data-corner": corner,
        "aria-label": `${one.kind} ${one.name}, corner ${corner + 1} of ${places.length}: ${Math.round(100 * one.points[corner][0])} % right, ` +
          `${Math.round(100 * one.points[corner][1])} % down`,
      })),
    ];
  }
}
