// Charts as SVG made here, each with its words: a title, what it says in one sentence, and the same numbers as a table to open.
// Series differ by colour and by dash or mark, so that they are told apart without seeing colours.

import { clock, make, number, table } from "./ui.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 400, HEIGHT = 190;
const LEFT = 40, RIGHT = 392, TOP = 10, BOTTOM = 164;
const TABLE_ROWS = 200;

// shape("circle", {cx: 1, ...}, child): like make, for SVG; also its title and desc.
export function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// lineChart({title, unit, series: [{name, points: [[x_utc, y], ...], band: [[x_utc, low, high], ...]}], min, max}) -> figure.
// y null: a gap. min, max: ends of the axis; without them those of the numbers. x: words of a place on the axis, else the time of day.
export function lineChart({ title, unit = "", series, min, max, x = null }) {
  const places = series.flatMap((one) => [...one.points.map((p) => p[0]), ...(one.band || []).map((b) => b[0])]);
  const values = series.flatMap((one) => [...one.points.map((p) => p[1]), ...(one.band || []).flatMap((b) => [b[1], b[2]])]);
  const axis = { x: scale(places, LEFT, RIGHT), y: scale(values.filter((v) => v !== null), BOTTOM, TOP, min, max) };
  const words = x || timeWords(axis.x);
  const svg = frame(title, sentence(title, unit, series));
  drawAxes(svg, axis, words, unit);
  series.forEach((one, i) => {
    if (one.band?.length) svg.append(shape("path", { class: `band series-${i % 6}`, d: bandPath(one.band, axis) }));
    svg.append(shape("path", { class: `line series-${i % 6}`, d: linePath(one.points, axis) }));
    const marks = one.points.length > 60 ? [] : one.points.filter((p) => p[1] !== null);
    svg.append(...marks.map(([px, py]) => shape("circle", { class: `mark series-${i % 6}`, cx: fixed(axis.x.at(px)), cy: fixed(axis.y.at(py)), r: 2.5 })));
  });
  return figure(title, unit, svg, series, () => table(title, ["time", "series", unit || "value"],
    series.flatMap((one) => one.points.map(([px, py]) => [words(px), one.name, number(py)])).slice(-TABLE_ROWS)));
}

// scatter({title, x: {name, unit}, y: {name, unit}, groups: [{name, points: [[x, y, words], ...], joined}]}) -> figure. joined: as a line.
export function scatter({ title, x, y, groups }) {
  const points = groups.flatMap((group) => group.points);
  const axis = { x: scale(points.map((p) => p[0]), LEFT, RIGHT, x.min, x.max), y: scale(points.map((p) => p[1]), BOTTOM, TOP, y.min, y.max) };
  const svg = frame(title, `${title}: ${points.length} points, ${y.name} over ${x.name}.`);
  drawAxes(svg, axis, (value) => short(value), `${y.name}${y.unit ? ` (${y.unit})` : ""}`);
  svg.append(shape("text", { x: RIGHT, y: HEIGHT - 2, "text-anchor": "end" }, `${x.name}${x.unit ? ` (${x.unit})` : ""}`));
  groups.forEach((group, i) => {
    if (group.joined) svg.append(shape("path", { class: `line series-${i % 6}`, d: linePath(group.points, axis) }));
    svg.append(...group.points.map(([px, py, words]) => shape("circle", { class: `mark series-${i % 6}`, cx: fixed(axis.x.at(px)), cy: fixed(axis.y.at(py)), r: 4 },
      shape("title", {}, words || `${short(px)}, ${short(py)}`))));
  });
  return figure(title, "", svg, groups, () => table(title, ["group", "point", headed(x), headed(y)],
    groups.flatMap((group) => group.points.map(([px, py, words]) => [group.name, words || "–", short(px), short(py)])).slice(0, TABLE_ROWS)));
}

// barRow({label, words, max, bars: [{value, kind}]}) -> a labelled row of bars on one scale; kind: "promised", "received", "good", "bad".
export function barRow({ label, words = "", max, bars }) {
  return make("div", { class: "bar-row" },
    make("div", { class: "row" }, make("span", {}, label), make("span", { class: "numbers" }, words)),
    ...bars.map(({ value, kind }) => {
      const fill = make("i", { class: kind });
      fill.style.width = `${Math.max(0, Math.min(100, 100 * value / Math.max(max, 1e-9)))}%`;
      return make("div", { class: "bar", "aria-hidden": "true" }, fill);
    }));
}

// --- inside ------------------------------------------------------------------------------------------------------------

const headed = (axis) => `${axis.name}${axis.unit ? ` (${axis.unit})` : ""}`;
const fixed = (value) => value.toFixed(1);
const short = (value) => (value === null ? "–" : Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

// Where a value lies between two ends of the drawing. Equal ends are spread, so that one point stands in the middle.
function scale(values, from, to, min, max) {
  let low = min ?? (values.length ? values.reduce((a, b) => Math.min(a, b)) : 0);
  let high = max ?? (values.length ? values.reduce((a, b) => Math.max(a, b)) : 1);
  if (high <= low) { const half = Math.abs(low) * 0.05 || 0.5; low -= half; high += half; }
  const at = (value) => from + (to - from) * Math.min(1, Math.max(0, (value - low) / (high - low)));
  return { low, high, at };
}

function timeWords(axis) {
  const days = (axis.high - axis.low) / 86_400;
  if (days < 1) return clock;
  return (utc) => new Date(utc * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit" });
}

function frame(title, words) {
  return shape("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words },
    shape("title", {}, title), shape("desc", {}, words));
}

function drawAxes(svg, axis, words, unit) {
  for (const part of [0, 0.5, 1]) {
    const value = axis.y.low + part * (axis.y.high - axis.y.low);
    const y = fixed(axis.y.at(value));
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y, y2: y }),
      shape("text", { x: LEFT - 4, y: Number(y) + 4, "text-anchor": "end" }, short(value)));
  }
  svg.append(shape("text", { x: LEFT, y: BOTTOM + 13 }, words(axis.x.low)),
    shape("text", { x: RIGHT, y: BOTTOM + 13, "text-anchor": "end" }, words(axis.x.high)));
  if (unit) svg.append(shape("text", { x: LEFT + 3, y: TOP + 9, class: "unit" }, unit));
}

function linePath(points, axis) {
  let pen = "M";
  return points.map(([px, py]) => {
    if (py === null) { pen = "M"; return ""; }
    const step = `${pen}${fixed(axis.x.at(px))} ${fixed(axis.y.at(py))}`;
    pen = "L";
    return step;
  }).join("");
}

function bandPath(band, axis) {
  const there = band.map(([px, , high], i) => `${i ? "L" : "M"}${fixed(axis.x.at(px))} ${fixed(axis.y.at(high))}`);
  const back = [...band].reverse().map(([px, low]) => `L${fixed(axis.x.at(px))} ${fixed(axis.y.at(low))}`);
  return `${there.join("")}${back.join("")}Z`;
}

function sentence(title, unit, series) {
  const told = series.map((one) => {
    const known = one.points.filter((p) => p[1] !== null);
    if (!known.length) return `${one.name}: nothing measured yet`;
    return `${one.name}: from ${number(known[0][1])} to ${number(known[known.length - 1][1])}${unit ? ` ${unit}` : ""}, ${known.length} points`;
  });
  return `${title}. ${told.join("; ")}.`;
}

function figure(title, unit, svg, series, makeTable) {
  const legend = make("ul", { class: "legend" }, ...series.map((one, i) =>
    make("li", {}, shape("svg", { viewBox: "0 0 24 8", class: "sample", "aria-hidden": "true" }, shape("path", { class: `line series-${i % 6}`, d: "M0 4L24 4" })), one.name)));
  const details = make("details", {}, make("summary", {}, "as a table"));
  // Made when opened: hundreds of rows cost time that nobody asked for.
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(makeTable()); });
  return make("figure", { class: "chart-figure" }, make("figcaption", {}, unit ? `${title} (${unit})` : title), svg,
    series.length > 1 ? legend : null, details);
}
