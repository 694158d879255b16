// Adding a camera, step by step: find and try it, name it, draw places, choose times, add. Everything stays in this page until the last
// step; nothing is half added.

import { announce, api, make, Refused, setText } from "../ui.js";
import { refresh } from "../feed.js";
import { About } from "../setup/about.js";
import { addCamera, documentOf, newDraft } from "../setup/cameras.js";
import { Find } from "../setup/find.js";
import { Places } from "../setup/places.js";
import { summaryOf } from "../setup/summary.js";
import { Times } from "../setup/times.js";

export default { id: "setup", title: "Add a camera", mount };

const NAMES = ["Find", "Name and task", "Zones and masks", "Times and clips", "Add"];

function mount(root, context) {
  if (context.role === "viewer") { root.append(make("p", {}, "Adding cameras needs the role operator.")); return; }
  const wizard = new Wizard(root, context);
  wizard.begin();
}

class Wizard {
  constructor(root, context) {
    Object.assign(this, { root, context, draft: newDraft(), at: 0, steps: [], picture: "", tried: null });
    this.list = make("ol", { class: "steps", "aria-label": "Steps" });
    this.heading = make("h2", { tabindex: "-1" });
    this.place = make("div");
    this.problem = make("p", { class: "error", role: "alert" });
    this.back = make("button", { type: "button", class: "quiet", onclick: () => this.turn(-1) }, "Back");
    this.next = make("button", { type: "button", class: "main", onclick: () => this.turn(1) }, "Next");
    root.append(this.list, make("section", {}, this.heading, this.place, this.problem, make("div", { class: "buttons" }, this.back, this.next)));
  }

  async begin() {
    this.choices = await api.get("settings/choices").catch(() => ({ classes: [], tasks: ["detection"] }));
    this.steps[0] = new Find(this.draft, { onTried: (answer) => { this.tried = answer; this.picture = answer.picture_url || ""; } });
    this.show();
  }

  // Steps are made when one comes to them, since they build on those before; one that was left keeps what was typed.
  step() {
    const made = [null, () => new About(this.draft, this.choices), () => new Places(this.draft, this.picture), () => new Times(this.draft)];
    if (!this.steps[this.at] || (this.at === 2 && this.steps[2].picture !== this.picture)) {
      this.steps[this.at] = made[this.at]();
      this.steps[this.at].picture = this.picture;
    }
    return this.steps[this.at];
  }

  show() {
    const last = this.at === NAMES.length - 1;
    this.place.replaceChildren(last ? summaryOf(this.draft, this.tried) : this.step().element);
    setText(this.heading, `Step ${this.at + 1} of ${NAMES.length}: ${NAMES[this.at]}`);
    setText(this.problem, "");
    setText(this.next, last ? "Add this camera" : "Next");
    this.back.hidden = this.at === 0;
    this.list.replaceChildren(...NAMES.map((name, i) => make("li", { "aria-current": i === this.at ? "step" : null, class: i < this.at ? "done" : "" }, name)));
  }

  async turn(by) {
    if (by > 0 && this.at < NAMES.length - 1) {
      const wrong = this.steps[this.at].take(this.draft);
      if (wrong) { setText(this.problem, wrong); return; }
    }
    if (by > 0 && this.at === NAMES.length - 1) { await this.add(); return; }
    this.at += by;
    this.show();
    this.heading.focus();
  }

  async add() {
    this.next.disabled = true;
    setText(this.problem, "");
    try {
      const added = await addCamera(documentOf(this.draft));
      refresh();
      this.context.go("#/live");
      announce(`Camera ${added.title} was added; its first picture comes in a few seconds`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setText(this.problem, error.message);
    } finally {
      this.next.disabled = false;
    }
  }
}
