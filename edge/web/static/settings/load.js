// Asks the box and draws the answer; says so while it is on its way, when the box has no such part, and when it refuses.

import { THING, api, make, Refused } from "../ui.js";

export async function load(place, path, draw) {
  if (!place.children.length) place.append(make("p", { class: "hint" }, "loading …"));
  try {
    const answer = await api.get(path);
    place.replaceChildren(...draw(answer));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    place.replaceChildren(make("p", { class: error.status === 404 ? "hint" : "error" },
      error.status === 404 ? `This ${THING} runs without accounts, so there is nothing to show here.` : error.message));
  }
}
