// Labels: a person looks at what the large model has labelled, the unsure pictures first: accept, correct, add, ignore, take back.
// Keys work while the picture has the focus (they would be in the way of screen readers elsewhere); everything is also a button or a field.

import { act, announce, api, asked, make, Refused, setText, table } from "../ui.js";
import { boxShape, mayOperate, overlay } from "../learning/parts.js";
import { draggedInto, inside } from "../learning/drawing.js";

const CLASSES = ["person", "bicycle", "car", "motorcycle", "bus", "truck", "animal"];
const PAGE = 50, FAR_PAGE = 500;  // the second where most rows are not wanted
// What to review -> the questions that are asked one after the other.
const ORDERS = {
  unsure: ["Unsure first", [{ unsure: true, by: "golden" }, { unsure: false, by: "golden" }]],
  unlabelled: ["Not labelled yet", [{ unlabelled: true }]],
  person: ["Corrected by people", [{ by: "person" }]],
  all: ["All, newest first", [{}]],
};
const STATES = {
  golden: "labels of the large model", unsure: "left out: the large model is too unsure of it", person: "a person's labels", ignored: "taken out by a person",
  unlabelled: "not labelled yet", damaged: "its label file cannot be read; saving replaces it",
};

export default {
  id: "labels",
  title: "Labels",
  mount(root, context) { return new Reviewer(root, context).start(); },
};

class Reviewer {
  constructor(root, { role, status, words }) {
    this.root = root;
    this.status = status;
    this.operator = mayOperate(role);
    this.camera = words[0] || "";
    this.order = "unsure";
    this.gone = false;
    this.forget();
  }

  forget() { Object.assign(this, { rows: [], at: -1, step: 0, after: null, ended: false, view: null, boxes: [], unsure: [], chosen: -1, changed: false }); }

  start() {
    this.cameras = make("select", { "aria-label": "Camera", onchange: () => { this.camera = this.cameras.value; this.begin(); } }, make("option", { value: "" }, "all cameras"));
    this.orders = make("select", { "aria-label": "Which pictures", onchange: () => { this.order = this.orders.value; this.begin(); } },
      ...Object.entries(ORDERS).map(([key, [words]]) => make("option", { value: key }, words)));
    this.line = make("p", { role: "status", id: "label-line" }, "loading …");
    this.stage = make("div", { class: "stage looked-at review", tabindex: "0", role: "group", "aria-label": "Picture with its boxes; keys work here", onkeydown: (e) => this.key(e) });
    this.tools = make("div", { class: "buttons" });
    this.list = make("div", {});
    this.root.append(make("section", {}, make("h2", {}, "Review"),
      make("p", { class: "hint" }, "The large model labels a sample of every window, and the cameras' own models learn from these labels. A person's labels are always used before the large model's: ",
        "one corrected picture is worth many. What the large model was not sure of is dashed, and is no label until a person accepts it."),
      make("div", { class: "toolbar" }, make("label", {}, "Camera ", this.cameras), make("label", {}, "Show ", this.orders)),
      this.line, this.stage, this.tools, this.list, this.operator ? keysHelp() : make("p", { class: "hint" }, "You may look; correcting needs the role operator.")),
      statisticsOf(() => this.camera));
    if (this.operator) draggedInto(this.stage, () => this.view, (xyxy) => this.addBox(xyxy));
    const stop = this.status((status) => this.drawCameras(status.cameras.map((c) => c.id)));
    this.begin();
    return () => { this.gone = true; stop(); };
  }

  drawCameras(ids) {
    const known = [...this.cameras.options].map((o) => o.value).slice(1);
    if (ids.join() === known.join()) return;
    this.cameras.replaceChildren(make("option", { value: "" }, "all cameras"), ...ids.map((id) => make("option", { value: id, selected: id === this.camera }, id)));
  }

  // --- which picture ---------------------------------------------------------------------------------------------------

  async begin() {
    if (!(await this.mayLeave())) return;
    this.forget();
    await this.told(() => this.go(0));
  }

  // Shows the picture at a place of the list; asks for more when it is not long enough yet.
  async go(at) {
    while (at >= this.rows.length && !this.ended) await this.fetchMore();
    if (this.gone) return;
    if (!this.rows.length) { this.nothing(); return; }
    this.at = Math.max(0, Math.min(at, this.rows.length - 1));
    await this.load();
  }

  async fetchMore() {
    const questions = ORDERS[this.order][1];
    const rare = this.order === "unlabelled";
    const wanted = new URLSearchParams({ limit: String(rare ? FAR_PAGE : PAGE) });
    for (const [name, value] of Object.entries(questions[this.step])) wanted.set(name, String(value));
    if (this.camera) wanted.set("camera", this.camera);
    if (this.after) wanted.set("after", this.after);
    const page = await api.get(`labels?${wanted}`);
    const known = new Set(this.rows.map((row) => row.sample));
    this.rows.push(...page.labels.filter((row) => !known.has(row.sample) && (!rare || row.state === "unlabelled")));
    this.after = page.next;
    if (this.after === null) { this.step += 1; this.ended = this.step >= questions.length; }
  }

  async load() {
    const { sample } = this.rows[this.at];
    try {
      this.take(await api.get(`labels/${sample}`));
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      this.rows.splice(this.at, 1);  // old pictures go while people look at them
      await this.go(this.at);
    }
  }

  take(view) {
    if (this.gone) return;
    this.view = view;
    this.boxes = view.boxes.map((b) => ({ class: b.class, xyxy: [...b.xyxy], score: b.score }));
    this.unsure = view.unsure_boxes.map((b) => ({ class: b.class, xyxy: [...b.xyxy], score: b.score }));
    this.chosen = -1;
    this.changed = false;
    Object.assign(this.rows[this.at] ?? {}, { state: view.state });
    this.draw();
  }

  async turn(by) {
    if (!(await this.mayLeave())) return;
    if (by > 0 && this.ended && this.at + by >= this.rows.length) { announce("That was the last picture."); return; }
    if (this.at + by < 0) { announce("This is the first picture."); return; }
    await this.told(() => this.go(this.at + by));
  }

  async mayLeave() {
    if (!this.changed) return true;
    const answer = await asked("Leave without saving?", make("p", {}, "What you changed in this picture is not saved."), [["leave", "Throw it away"], ["save", "Save it"]]);
    return answer === "leave" || (answer === "save" && this.save());
  }

  async told(work) {
    try { await work(); } catch (error) { if (!(error instanceof Refused)) throw error; announce(error.message, true); }
  }

  // --- changing --------------------------------------------------------------------------------------------------------

  change(work) { work(); this.changed = true; this.draw(); }

  addBox(xyxy) {
    this.change(() => { this.boxes.push({ class: this.boxes[this.chosen]?.class ?? "person", xyxy }); this.chosen = this.boxes.length - 1; });
  }

  acceptUnsure(n) { this.change(() => { this.boxes.push(...this.unsure.splice(n, 1)); this.chosen = this.boxes.length - 1; }); }

  removeBox(n) { this.change(() => { this.boxes.splice(n, 1); this.chosen = Math.min(this.chosen, this.boxes.length - 1); }); }

  // Saves what stands here as a person's labels. Returns whether they are saved.
  async save(ignored = false, force = false) {
    const body = ignored ? { ignored: true } : { boxes: this.boxes.map((b) => ({ class: b.class, xyxy: b.xyxy })) };
    return this.written(() => api.put(`labels/${this.view.sample}`, body, force ? {} : { "If-Match": `"${this.view.etag}"` }), ignored ? "taken out" : "saved",
      () => this.save(ignored, true));
  }

  takeBack() {
    return this.written(() => api.remove(`labels/${this.view.sample}`, { "If-Match": `"${this.view.etag}"` }), "the large model's labels are in force again", null);
  }

  async written(work, words, again) {
    try {
      this.take(await work());
      announce(`${this.view.sample}: ${words}`);
      return true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status === 412) return this.conflict(again);
      announce(error.message, true);
      return false;
    }
  }

  async conflict(again) {
    const answer = await asked("Somebody else was faster", make("p", {}, "The labels of this picture have changed since you saw them."),
      [...(again ? [["mine", "Save mine in their place"]] : []), ["theirs", "Show theirs"]]);
    if (answer === "mine") return again();
    await this.told(() => this.load());
    return false;
  }

  async accept() { if (await this.save()) await this.turn(1); }
  async ignore() { if (await this.save(true)) await this.turn(1); }

  key(event) {
    if (event.target !== this.stage || event.ctrlKey || event.metaKey || event.altKey) return;
    const run = KEYS[event.key];
    const number = this.operator && /^[1-7]$/.test(event.key) && this.boxes[this.chosen];
    if (number) this.change(() => { this.boxes[this.chosen].class = CLASSES[Number(event.key) - 1]; });
    else if (!run || (run.operator && !this.operator)) return;
    else run.run(this);
    event.preventDefault();
  }

  // --- drawing ---------------------------------------------------------------------------------------------------------

  nothing() {
    this.view = null;
    setText(this.line, "Nothing to review here.");
    for (const place of [this.stage, this.tools, this.list]) place.replaceChildren();
  }

  draw() {
    const view = this.view, total = `${this.rows.length}${this.ended ? "" : "+"}`;
    setText(this.line, `${this.at + 1} of ${total}: ${view.sample}, ${STATES[view.state]}${view.split === "holdout" ? "; held out: models are judged by it and do not learn from it" : ""}` +
      `${this.changed ? " (changed, not saved)" : ""}`);
    this.drawStage();
    this.drawTools();
    this.drawList();
  }

  drawStage() {
    const view = this.view, src = `/api/v1/labels/${view.sample}/picture.jpg?boxes=false`;
    const kind = view.state === "person" || this.changed ? "person" : "golden";
    const boxes = [...this.unsure.map((b) => boxShape(b, "unsure", view.width_px)),
      ...this.boxes.map((b, i) => boxShape(b, i === this.chosen ? `${kind} chosen` : kind, view.width_px, i))];
    const svg = overlay(view.width_px, view.height_px, boxes);
    const img = this.stage.querySelector("img");
    if (img?.getAttribute("src") === src) { this.stage.querySelector("svg").replaceWith(svg); return; }
    this.stage.replaceChildren(make("img", { src, width: view.width_px, height: view.height_px, alt: `Sample ${view.sample}`, draggable: "false" }), svg);
  }

  drawTools() {
    const button = (words, run, kind = "", main = null) => make("button", { type: "button", class: kind, "data-main": main, onclick: (e) => act(e.currentTarget, run) }, words);
    const had = this.tools.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.tools.replaceChildren(button("Previous", () => this.turn(-1), "quiet"), button("Next", () => this.turn(1), "quiet"),
      ...(this.operator ? [button("Add a box", async () => this.addBox(middle(this.view))), button("Ignore picture", () => this.ignore(), "danger"),
        ...(this.view.state === "person" || this.view.state === "ignored" ? [button("Undo correction", () => this.takeBack())] : []),
        button(this.changed ? "Save and go on" : "Accept and go on", () => this.accept(), "main")] : []));
    if (had) [...this.tools.children].find((b) => b.textContent === had)?.focus();
  }

  drawList() {
    if (this.list.contains(document.activeElement) && document.activeElement.matches("input")) return;  // the numbers being typed stand there already
    const fixed = this.operator ? null : true;
    this.list.replaceChildren(make("div", { class: "corner-list" },
      ...this.boxes.map((box, n) => boxFields(this, box, n, fixed)),
      ...this.unsure.map((box, n) => unsureFields(this, box, n, fixed))),
    this.boxes.length + this.unsure.length ? "" : make("p", { class: "hint" }, "No box: the picture is said to be empty."));
  }
}

const KEYS = {
  n: { run: (r) => r.turn(1) }, ArrowRight: { run: (r) => r.turn(1) }, p: { run: (r) => r.turn(-1) }, ArrowLeft: { run: (r) => r.turn(-1) },
  a: { operator: true, run: (r) => r.accept() }, Enter: { operator: true, run: (r) => r.accept() }, i: { operator: true, run: (r) => r.ignore() },
  u: { operator: true, run: (r) => r.takeBack() }, b: { operator: true, run: (r) => r.addBox(middle(r.view)) },
  s: { run: (r) => { r.chosen = r.boxes.length ? (r.chosen + 1) % r.boxes.length : -1; r.draw(); sayChosen(r); } },
  c: { operator: true, run: (r) => { const box = r.boxes[r.chosen]; if (box) r.change(() => { box.class = CLASSES[(CLASSES.indexOf(box.class) + 1) % CLASSES.length]; }); } },
  Delete: { operator: true, run: (r) => { if (r.chosen >= 0) r.removeBox(r.chosen); } }, x: { operator: true, run: (r) => { if (r.chosen >= 0) r.removeBox(r.chosen); } },
  y: { operator: true, run: (r) => { if (r.unsure.length) r.acceptUnsure(0); } },
};

function sayChosen(reviewer) {
  const box = reviewer.boxes[reviewer.chosen];
  if (box) announce(`box ${reviewer.chosen + 1}: ${box.class}, from ${box.xyxy.slice(0, 2).map(Math.round).join(" ")} to ${box.xyxy.slice(2).map(Math.round).join(" ")}`);
}

const middle = (view) => [0.4, 0.4, 0.6, 0.6].map((part, i) => Math.round(part * (i % 2 ? view.height_px : view.width_px)));

function boxFields(reviewer, box, n, fixed) {
  const edges = ["left", "top", "right", "bottom"];
  const inputs = edges.map((edge, i) => make("label", {}, `${edge} `, make("input", { type: "number", step: "1", value: Math.round(box.xyxy[i]), disabled: fixed,
    "aria-label": `${edge} of box ${n + 1}, px`, onchange: (e) => reviewer.change(() => { box.xyxy[i] = inside(Number(e.currentTarget.value), i, reviewer.view); reviewer.chosen = n; }) })));
  const known = CLASSES.includes(box.class) ? CLASSES : [...CLASSES, box.class];
  const kind = make("select", { disabled: fixed, "aria-label": `Class of box ${n + 1}`, onchange: (e) => reviewer.change(() => { box.class = e.currentTarget.value; reviewer.chosen = n; }) },
    ...known.map((name) => make("option", { selected: name === box.class }, name)));
  return make("fieldset", { class: n === reviewer.chosen ? "chosen" : "" }, make("legend", {}, `Box ${n + 1}`), kind,
    make("div", { class: "corners px" }, ...inputs, " px"),
    make("div", { class: "buttons" }, make("button", { type: "button", class: "small quiet", onclick: () => { reviewer.chosen = n; reviewer.draw(); } }, `Show box ${n + 1}`),
      fixed ? null : make("button", { type: "button", class: "small danger", onclick: () => reviewer.removeBox(n) }, `Delete box ${n + 1}`)));
}

function unsureFields(reviewer, box, n, fixed) {
  return make("fieldset", { class: "unsure" }, make("legend", {}, `Unsure: ${box.class}`), make("p", { class: "hint" }, `The large model's score is ${box.score.toFixed(2)} (0 to 1): no label as it is.`),
    fixed ? null : make("button", { type: "button", class: "small", onclick: () => reviewer.acceptUnsure(n) }, `It is a ${box.class}`));
}

// Counts by camera and class, asked for when somebody opens them: the box reads thousands of files for it.
function statisticsOf(camera) {
  const place = make("div", { role: "status" });
  const load = async () => {
    place.replaceChildren(make("p", { class: "hint" }, "counting …"));
    try {
      place.replaceChildren(...countsOf(await api.get(`labels/statistics${camera() ? `?camera=${encodeURIComponent(camera())}` : ""}`)));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      place.replaceChildren(make("p", { class: "error" }, error.message));
    }
  };
  return make("section", {}, make("details", { ontoggle: (event) => { if (event.target.open) load(); } }, make("summary", {}, "Statistics of the labels"), place));
}

function countsOf(view) {
  if (!view.cameras.length) return [make("p", {}, "There are no pictures yet.")];
  const told = view.complete ? "All pictures that the box has." : `The newest ${view.pictures} pictures; older ones are left out.`;
  const pictures = view.cameras.map((one) => [one.camera, one.pictures, one.golden, one.corrected, one.left_out, one.ignored, errorsOf(one.golden_errors)]);
  const classes = view.cameras.flatMap((one) => one.classes.map((kind) => [one.camera, kind.class, kind.golden, kind.corrected, kind.unsure, kind.ignored,
    errorsOf(kind.golden_errors)]));
  return [make("p", { class: "hint" }, told, " Wrong: boxes of the large model that a person removed, moved or gave another class; missed: objects that a person added. ",
    "People look at unsure pictures first, so these are worse than the large model is over all."),
    table("Pictures by camera", ["camera", "pictures", "large model's", "people's", "too unsure", "taken out", "large model where people looked"], pictures),
    table("Labels by camera and class", ["camera", "class", "large model's", "people's", "unsure", "taken out", "large model where people looked"], classes)];
}

function errorsOf({ samples, right, wrong, missed }) {
  if (!samples) return "nobody has looked";
  return `${wrong} of ${right + wrong} wrong, ${missed} of ${right + missed} missed (${samples} ${samples === 1 ? "picture" : "pictures"})`;
}

const keysHelp = () => make("details", {}, make("summary", {}, "Keys, while the picture has the focus"), make("dl", {}, ...[
  ["n p, arrows", "next, previous picture"], ["a, Enter", "accept or save, and go on"], ["s", "choose the next box"], ["1 to 7, c", `class of the chosen box: ${CLASSES.join(", ")}`],
  ["x, Delete", "delete the chosen box"], ["b", "add a box in the middle"], ["y", "accept the first unsure box"], ["i", "ignore the picture"], ["u", "take the correction back"],
].flatMap(([keys, words]) => [make("dt", {}, keys), make("dd", {}, words)])));
