// One camera, large: its picture with boxes, zones, lines and masks as one likes, and everything the box knows of it.

import { act, make, Refused } from "../ui.js";
import { check } from "../forms.js";
import { drawPlaces, layer, setRatio } from "../places/outline.js";
import { command, oneCamera } from "../setup/cameras.js";
import { Facts } from "./tile.js";
import { answerOf, showState } from "./words.js";

export class OneCamera {
  constructor(id, pictures, role) {
    this.id = id;
    this.img = make("img", { alt: "", hidden: true });
    this.nothing = make("div", { class: "nothing" }, "no picture yet");
    this.svg = layer();
    this.places = {};
    this.boxes = check("boxes", true);
    this.outlines = check("zones, lines and masks", true);
    this.name = make("h2");
    this.state = make("span", { class: "state" });
    this.error = make("p", { class: "error", hidden: true });
    this.facts = new Facts();
    this.counts = make("div");
    this.queries = make("div");
    this.stage = make("div", { class: "stage large" }, this.img, this.svg, this.nothing);
    this.element = make("div", { class: "one-camera", "data-camera": id }, make("p", {}, make("a", { href: "#/live" }, "← All cameras")),
      make("section", { "aria-label": "Camera" }, make("div", { class: "head" }, this.name, this.state), this.error, this.stage,
        make("div", { class: "toolbar" }, make("span", {}, "Show: "), this.boxes.element, this.outlines.element,
          role === "viewer" ? null : make("a", { href: `#/settings/cameras/${encodeURIComponent(id)}` }, "Change this camera"),
          make("a", { href: `#/events/camera/${encodeURIComponent(id)}` }, "Its events"),
          make("a", { href: `#/learning/${encodeURIComponent(id)}` }, "What it learned"),
          role === "viewer" ? null : make("button", { type: "button", class: "small quiet",
            onclick: (event) => act(event.currentTarget, () => command("restart", id), `${id} is opened anew`) }, "Open it anew")),
        this.facts.element, this.counts, this.queries));
    this.pictures = pictures;
    this.picture = pictures.add(this.img, id, { mostFps: 8, onPicture: () => this.came() });
    this.boxes.input.addEventListener("change", () => this.picture.setPlain(!this.boxes.input.checked));
    this.outlines.input.addEventListener("change", () => this.draw());
    this.ask();
  }

  // Where its places are; without that part of the box, or without the right to see it, there are only the picture's own boxes.
  async ask() {
    try {
      const { entry } = await oneCamera(this.id);
      this.places = { zones: entry.zones, masks: entry.masks, lines: { ...entry.objects.lines, ...linesOf(entry.queries) } };
      this.draw();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  came() {
    this.img.hidden = false;
    this.nothing.hidden = true;
    const ratio = this.img.naturalWidth / this.img.naturalHeight;
    if (ratio && ratio !== this.ratio) { this.ratio = ratio; setRatio(this.svg, ratio); this.draw(); }
  }

  draw() { drawPlaces(this.svg, this.outlines.input.checked ? this.places : {}); }

  update(camera) {
    const title = showState(this, camera);
    this.facts.update(camera);
    this.img.alt = `Newest picture of ${title}${this.boxes.input.checked ? " with the detected objects" : ""}`;
    this.picture.newest(camera.frames_analysed);
    this.drawCounts(camera);
    this.drawQueries(camera.queries);
  }

  drawCounts(camera) {
    const words = (counts) => Object.entries(counts).filter(([, n]) => n).map(([name, n]) => `${n} ${name}`).join(", ") || "none";
    const rows = [["There now (tracked objects)", words(camera.present || {})],
      ...Object.entries(camera.zones || {}).map(([zone, counts]) => [`In ${zone}`, words(counts)]),
      ["Answered in time", camera.finish_frac === null || camera.finish_frac === undefined ? "–" : `${Math.round(100 * camera.finish_frac)} % of the frames of this window, within ${Math.round(camera.deadline_ms)} ms`],
      ["Reconnected", `${camera.reconnects} times since the start`], ["Learning", camera.learning === false ? "switched off" : "on"]];
    const text = JSON.stringify(rows);
    if (text === this.told) return;
    this.told = text;
    this.counts.replaceChildren(make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
  }

  drawQueries(queries) {
    const rows = queries.map((query) => [query.name, answerOf(query), query.lag_s === null ? "" : `${query.lag_s.toFixed(2)} s after the frame was taken`]);
    const text = JSON.stringify(rows);
    if (text === this.asked) return;
    this.asked = text;
    this.queries.replaceChildren(...(rows.length ? [make("h3", {}, "Queries"),
      make("dl", {}, ...rows.flatMap(([name, answer, lag]) => [make("dt", {}, name), make("dd", {}, [answer, lag].filter(Boolean).join(" · "))])),
      make("p", {}, make("a", { href: `#/queries/${encodeURIComponent(this.id)}` }, "Steps and knobs of these queries"))] : []));
  }
}

const linesOf = (queries) => Object.assign({}, ...queries.map((query) => query.lines || {}));
