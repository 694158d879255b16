// One camera in the grid: picture, state in words, facts, quality over time.

import { clock, make, number, setText } from "../ui.js";
import { shape } from "../charts.js";
import { drawPlaces, layer, setRatio } from "../places/outline.js";
import { activityOf, answerOf, showState } from "./words.js";

const FACTS = [["quality", "quality"], ["task", "task"], ["model", "model"], ["rate", "analysed"], ["objects", "objects"],
  ["queries", "queries"], ["dropped", "dropped"], ["activity", "now"]];

// The facts of a camera as a list that updates in place.
export class Facts {
  constructor() {
    this.element = make("dl");
    this.values = {};
    this.labels = {};
    for (const [key, label] of FACTS) {
      this.labels[key] = make("dt", {}, label);
      this.values[key] = make("dd");
      this.element.append(this.labels[key], this.values[key]);
    }
  }

  update(camera) {
    const told = {
      quality: camera.quality === null ? "not measured yet" : number(camera.quality),
      task: camera.task, model: camera.model || "–", rate: rateOf(camera), objects: `${camera.objects} in the newest picture`,
      queries: camera.queries.map((query) => `${query.name}: ${answerOf(query)}`).join("; "),
      dropped: `${camera.frames_dropped} frames skipped for newer ones`, activity: activityOf(camera),
    };
    for (const [key, words] of Object.entries(told)) setText(this.values[key], words);
    setText(this.labels.quality, `quality (${camera.quality_name})`);
    this.labels.queries.hidden = this.values.queries.hidden = !camera.queries.length;
  }
}

function rateOf(camera) {
  const size = camera.height_px ? ` · ${camera.width_px}×${camera.height_px} px` : "";
  return `${number(camera.analysed_fps, 1)} of ${number(camera.wanted_fps, 1)} wanted frames/s (camera: ${number(camera.camera_fps, 1)})${size}`;
}

export class Tile {
  constructor(id, pictures) {
    this.id = id;
    this.img = make("img", { alt: "", hidden: true });
    this.nothing = make("div", { class: "nothing" }, "no picture yet");
    this.svg = layer();
    this.svg.setAttribute("preserveAspectRatio", "xMidYMid meet");  // as the picture lies in its frame
    this.places = {};
    this.name = make("a", { href: `#/live/${encodeURIComponent(id)}` });
    this.state = make("span", { class: "state" });
    this.error = make("p", { class: "error", hidden: true });
    this.facts = new Facts();
    this.chart = shape("svg", { class: "chart", viewBox: "0 0 300 84", role: "img" });
    this.history = "";
    this.element = make("article", { class: "tile", "data-camera": id }, make("div", { class: "picture" }, this.img, this.svg, this.nothing),
      make("div", { class: "body" }, make("div", { class: "head" }, make("h2", {}, this.name), this.state), this.error,
        this.facts.element, this.chart));
    this.pictures = pictures;
    // In the grid movement is enough; whoever wants every frame opens the camera.
    this.picture = pictures.add(this.img, id, { mostFps: 2, onPicture: () => this.came() });
  }

  came() {
    this.img.hidden = false;
    this.nothing.hidden = true;
    const ratio = this.img.naturalWidth / this.img.naturalHeight;
    if (ratio && ratio !== this.ratio) { this.ratio = ratio; setRatio(this.svg, ratio); drawPlaces(this.svg, this.places); }
  }

  // places: {zones, masks, lines}, outlined over the picture.
  setPlaces(places) {
    this.places = places;
    drawPlaces(this.svg, places);
  }

  update(camera) {
    const title = showState(this, camera);
    this.facts.update(camera);
    this.img.alt = `Newest picture of ${title} with the detected objects`;
    this.picture.newest(camera.frames_analysed);
    const history = JSON.stringify([title, camera.quality_name, camera.quality_history]);
    if (history !== this.history) { this.history = history; drawQuality(this.chart, camera, title); }
  }

  remove() { this.pictures.drop(this.picture); this.element.remove(); }
}

// Small on purpose: the Learning page has the large one with its prediction.
function drawQuality(svg, camera, title) {
  const points = camera.quality_history;
  svg.replaceChildren();
  const left = 24, right = 294, top = 8, bottom = 66;
  const y = (value) => bottom - (bottom - top) * value;
  for (const value of [0, 0.5, 1]) {
    svg.append(shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      shape("text", { x: 2, y: y(value) + 3 }, value === 0.5 ? "0.5" : String(value)));
  }
  if (!points.length) {
    svg.setAttribute("aria-label", `Quality of ${title}: not measured yet`);
    svg.append(shape("text", { x: left + 6, y: y(0.5) - 4 }, `quality (${camera.quality_name}) over time: not measured yet`));
    return;
  }
  const first = points[0].at_utc, last = points.at(-1).at_utc;
  const x = (utc) => (last > first ? left + 6 + (right - left - 12) * (utc - first) / (last - first) : (left + right) / 2);
  svg.append(shape("path", { class: "curve", d: points.map((p, i) => `${i ? "L" : "M"}${x(p.at_utc).toFixed(1)} ${y(p.f1).toFixed(1)}`).join("") }));
  points.forEach((p, i) => {
    const fresh = i > 0 && p.version !== points[i - 1].version;
    svg.append(shape("circle", { class: fresh ? "dot new" : "dot", cx: x(p.at_utc).toFixed(1), cy: y(p.f1).toFixed(1), r: fresh ? 4 : 2.5 }));
  });
  svg.append(shape("text", { x: left, y: 80 }, clock(first)));
  if (last > first) svg.append(shape("text", { x: right, y: 80, "text-anchor": "end" }, clock(last)));
  svg.setAttribute("aria-label", `Quality of ${title} over time: from ${number(points[0].f1)} to ${number(points.at(-1).f1)}`);
}
