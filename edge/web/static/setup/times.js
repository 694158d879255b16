// When a camera is watched and learns, and what is kept of it.

import { make } from "../ui.js";
import { check, field, numeric, text } from "../forms.js";

const SPAN_HINT = "One per line: mon-fri 07:00-19:00, or sat,sun 22:00-06:00, or 00:00-24:00. Empty: always.";

const lines = (value) => value.split("\n").map((line) => line.trim()).filter(Boolean);

export class Times {
  constructor(draft) {
    this.title = "Times and clips";
    const { schedule, recording, objects } = draft;
    const area = (spans) => { const input = make("textarea", { rows: 2, spellcheck: "false" }); input.value = spans.join("\n"); return input; };
    this.watch = area(schedule.watch);
    this.learn = area(schedule.learn);
    this.zone = text(schedule.time_zone, { maxlength: 64, placeholder: Intl.DateTimeFormat().resolvedOptions().timeZone });
    this.clips = check("Keep a clip of every object that moves", recording.clips);
    this.snapshots = check("Keep the best picture of every object", objects.snapshots);
    this.pre = numeric(recording.pre_s, { min: 0, max: 60, step: 1 });
    this.post = numeric(recording.post_s, { min: 0, max: 60, step: 1 });
    this.keep = numeric(recording.keep_days ?? "", { min: 0, max: 10000, step: "any", placeholder: "as the box" });
    this.element = make("div", {},
      make("fieldset", {}, make("legend", {}, "Schedule"),
        field("Times of watching", this.watch, `Outside them the camera is not opened. ${SPAN_HINT}`),
        field("Times of learning", this.learn, `Outside them it is neither labelled nor retrained; analysis goes on. ${SPAN_HINT}`),
        field("Time zone of these times", this.zone, "As Europe/Berlin. Empty: that of the box.")),
      make("fieldset", {}, make("legend", {}, "Snapshots and clips"), this.snapshots.element, this.clips.element,
        make("div", { class: "row-of-fields" }, field("Seconds before", this.pre, "before the object is first seen (0 to 60)"),
          field("Seconds after", this.post, "after it is last seen (0 to 60)")),
        field("Days they are kept", this.keep, "Empty: as the box keeps them. When room runs short the oldest go earlier, of all cameras."),
        make("p", { class: "hint" }, "How long the box keeps them, by age and class, and how much room they take is set under ",
          make("a", { href: "#/settings/box" }, "Settings"), " (by an admin).")));
  }

  take(draft) {
    const [pre, post] = [this.pre.valueAsNumber, this.post.valueAsNumber];
    if (![pre, post].every((value) => Number.isFinite(value) && value >= 0 && value <= 60)) return "Seconds before and after must be 0 to 60.";
    const keep = this.keep.value.trim() === "" ? null : this.keep.valueAsNumber;
    if (keep !== null && !(keep > 0 && keep <= 10000)) return "Days that clips and snapshots are kept must be above 0 and at most 10000, or empty.";
    draft.schedule = { time_zone: this.zone.value.trim(), watch: lines(this.watch.value), learn: lines(this.learn.value) };
    draft.recording = { ...draft.recording, clips: this.clips.input.checked, pre_s: pre, post_s: post, keep_days: keep };
    draft.objects = { ...draft.objects, snapshots: this.snapshots.input.checked };
    return "";
  }
}
