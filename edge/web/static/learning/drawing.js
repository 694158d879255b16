// Drawing a box over a picture with mouse, pen or finger.

import { make } from "../ui.js";

const LEAST_PX = 4;

// A coordinate that lies in the picture: i 0 and 2 along its width, 1 and 3 along its height.
export const inside = (value, i, view) => Math.max(0, Math.min(Number.isFinite(value) ? value : 0, i % 2 ? view.height_px : view.width_px));

// Calls drawn([left, top, right, bottom] in px of the picture) when somebody has drawn a box over `stage`; view(): the picture's size.
export function draggedInto(stage, view, drawn) {
  let from = null, ghost = null;
  const at = (event) => {
    const place = stage.querySelector("img").getBoundingClientRect(), size = view();
    return [inside((event.clientX - place.left) / place.width * size.width_px, 0, size), inside((event.clientY - place.top) / place.height * size.height_px, 1, size)];
  };
  const box = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])].map((v) => Math.round(v));
  const end = () => { ghost?.remove(); from = ghost = null; };
  stage.addEventListener("pointerdown", (event) => {
    if (!view() || event.button !== 0 || !stage.querySelector("img")) return;
    from = at(event);
    ghost = make("rect", { class: "ghost" });
    stage.querySelector("svg").append(ghost);
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [left, top, right, bottom] = box(from, at(event));
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) ghost.setAttribute(name, value);
  });
  stage.addEventListener("pointerup", (event) => {
    if (!from) return;
    const found = box(from, at(event));
    end();
    if (found[2] - found[0] >= LEAST_PX && found[3] - found[1] >= LEAST_PX) drawn(found);
  });
  stage.addEventListener("pointercancel", end);
}
