// What a camera is called and what its model is asked.

import { make } from "../ui.js";
import { check, choice, field, numeric, several, text } from "../forms.js";
import { idOf } from "./cameras.js";

const TASKS = {
  detection: "detection: find objects and where they are", classification: "classification: say what it is that moves",
};

export class About {
  // choices: {classes, tasks} of the box; fixedId: the camera is there already.
  constructor(draft, choices, { fixedId = false } = {}) {
    this.title = "Name and task";
    this.name = text(draft.name, { maxlength: 80 });
    this.id = text(draft.id, { maxlength: 63, disabled: fixedId, autocapitalize: "none" });
    this.fps = numeric(draft.fps, { min: 0, max: 120, step: 0.5 });
    this.task = choice(choices.tasks.map((name) => [name, TASKS[name] || name]), draft.task);
    this.classes = several("Objects that are told", choices.classes.map((name) => [name, name]), draft.classes,
      "Whose objects become events and counts. None ticked: all of them. What the model learns stays the same.");
    this.learning = check("Let its model learn", draft.learning);
    if (!fixedId) {
      let own = Boolean(draft.id);
      this.id.addEventListener("input", () => { own = this.id.value !== ""; });
      this.name.addEventListener("input", () => { if (!own) this.id.value = idOf(this.name.value); });
    }
    this.element = make("div", {},
      field("Name", this.name, "For people, in any letters: where the camera hangs, or what it sees."),
      field("Id", this.id, fixedId ? "Stands in folders and topics, and stays." :
        "For folders, topics and addresses: lower case letters, digits, - and _. It cannot be changed later."),
      field("Task", this.task, "What the camera's model is asked, and so what quality is measured by."),
      field("Analysed frames per second", this.fps, "How often the newest picture is looked at; 0: as often as the camera sends one. " +
        "5 is usual: twice as much costs about twice the compute."),
      this.classes.element,
      make("fieldset", {}, make("legend", {}, "Learning"), this.learning.element, make("p", { class: "hint" },
        "The box labels a sample of its pictures, retrains its model and takes the new one only when it is better. Without learning the camera is ",
        "analysed all the same.")));
  }

  // Writes what was chosen into the draft; returns what is wrong, "" when nothing is.
  take(draft) {
    const fps = this.fps.valueAsNumber;
    if (!/^[a-z0-9][a-z0-9_-]{0,62}$/.test(this.id.value)) return "The id must begin with a lower case letter or a digit; - and _ may follow.";
    if (!Number.isFinite(fps) || fps < 0 || fps > 120) return "Analysed frames per second must be 0 to 120.";
    Object.assign(draft, { name: this.name.value.trim(), id: this.id.value, fps, task: this.task.value, classes: this.classes.values(),
      learning: this.learning.input.checked });
    return "";
  }
}
