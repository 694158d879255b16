// Zones, lines and masks of a camera, drawn on its picture.

import { make } from "../ui.js";
import { PlaceEditor } from "../places/editor.js";

export class Places {
  // picture: address of a picture of the camera, "" where there is none.
  constructor(draft, picture) {
    this.title = "Zones and masks";
    this.editor = new PlaceEditor({ zones: draft.zones, masks: draft.masks, lines: draft.objects.lines });
    if (picture) this.editor.setPicture(picture, "A picture of the camera");
    this.element = make("div", {}, picture ? null : make("p", { class: "hint" }, "There is no picture of the camera yet: places are fractions of its ",
      "picture, so they can be drawn all the same."), this.editor.element);
  }

  take(draft) {
    const problem = this.editor.problem();
    if (problem) return problem;
    const { zones, masks, lines } = this.editor.value();
    Object.assign(draft, { zones, masks, objects: { ...draft.objects, lines } });
    return "";
  }
}
