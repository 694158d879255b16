// The map: sites where the owner said they lie, drawn by us (no tiles from elsewhere): degrees as a grid, a circle a site, its area by its
// boxes. What it shows stands as words beside it, and each circle leads to the site's boxes.

import { shape } from "/static/charts.js";
import { make } from "/static/ui.js";

const WIDTH = 460, HEIGHT = 420, EDGE = 46;

export function siteMap(sites) {
  const placed = sites.filter((site) => site.latitude_deg !== null);
  if (!placed.length) return null;
  const at = projection(placed);
  const words = placed.map((site) => `${site.name || site.id}: ${site.well} of ${site.boxes} boxes well`).join("; ");
  const svg = shape("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `Map of the sites. ${words}.` });
  svg.append(...grid(at));
  const taken = [];
  for (const site of [...placed].sort((a, b) => b.boxes - a.boxes)) svg.append(mark(site, at, taken));
  const rest = sites.length - placed.length;
  return make("figure", {}, svg, make("figcaption", { class: "hint" },
    `Area: boxes of the site; green: all are well, amber: some, red: none.${rest ? ` ${rest} sites have no place yet (Settings, Sites).` : ""}`));
}

// Degrees to places: as long as wide at the middle (equirectangular), all sites inside.
function projection(sites) {
  const north = sites.map((s) => s.latitude_deg), east = sites.map((s) => s.longitude_deg);
  const middle = [(Math.min(...north) + Math.max(...north)) / 2, (Math.min(...east) + Math.max(...east)) / 2];
  const narrow = Math.max(0.05, Math.cos((middle[0] * Math.PI) / 180));
  const span = Math.max((Math.max(...north) - Math.min(...north)) / (HEIGHT - 2 * EDGE), ((Math.max(...east) - Math.min(...east)) * narrow) / (WIDTH - 2 * EDGE), 0.0001);
  return {
    x: (degrees) => WIDTH / 2 + ((degrees - middle[1]) * narrow) / span, y: (degrees) => HEIGHT / 2 - (degrees - middle[0]) / span,
    east: (x) => middle[1] + ((x - WIDTH / 2) * span) / narrow, north: (y) => middle[0] - (y - HEIGHT / 2) * span,
  };
}

// Lines at round degrees.
function grid(at) {
  const step = round((at.north(0) - at.north(HEIGHT)) / 4);
  const digits = Math.max(0, Math.ceil(-Math.log10(step)));
  const found = [];
  for (let d = Math.ceil(at.north(HEIGHT) / step) * step; d < at.north(0); d += step) {
    const y = at.y(d).toFixed(1);
    found.push(shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }), shape("text", { class: "degrees", x: 3, y: Number(y) - 3 }, `${Math.abs(d).toFixed(digits)}° ${d < 0 ? "S" : "N"}`));
  }
  for (let d = Math.ceil(at.east(0) / step) * step; d < at.east(WIDTH); d += step) {
    const x = at.x(d).toFixed(1);
    found.push(shape("line", { class: "grid", x1: x, x2: x, y1: 0, y2: HEIGHT }), shape("text", { class: "degrees", x: Number(x) + 3, y: HEIGHT - 4 }, `${Math.abs(d).toFixed(digits)}° ${d < 0 ? "W" : "E"}`));
  }
  return found;
}

function round(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return ten * (value / ten >= 5 ? 5 : value / ten >= 2 ? 2 : 1);
}

function mark(site, at, taken) {
  const x = at.x(site.longitude_deg), y = at.y(site.latitude_deg), r = Math.min(26, 6 + 3 * Math.sqrt(site.boxes));
  const how = site.boxes === 0 || site.well === site.boxes ? "" : site.well ? "some" : "none";
  const name = site.name || site.id;
  const link = shape("a", { href: `#/boxes/${encodeURIComponent(site.id)}`, class: how, "aria-label": `${name}: ${site.well} of ${site.boxes} boxes well` },
    shape("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: r.toFixed(1) }));
  const words = `${name} ${site.well}/${site.boxes}`;
  const place = free(x, y, r, words.length * 6.6, taken);  // where names would lie on each other, the later one is left out
  if (place) link.append(shape("text", { x: place.x.toFixed(1), y: place.y.toFixed(1) }, words));
  return link;
}

function free(x, y, r, wide, taken) {
  for (const [left, top] of [[x + r + 4, y - 6], [x - r - 4 - wide, y - 6], [x - wide / 2, y - r - 17], [x - wide / 2, y + r + 4]]) {
    const box = { left, right: left + wide, top, bottom: top + 13 };
    if (box.left < 2 || box.right > WIDTH - 2 || box.top < 2 || box.bottom > HEIGHT - 2) continue;
    if (taken.some((other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom)) continue;
    taken.push(box);
    return { x: left, y: top + 11 };
  }
  return null;
}
