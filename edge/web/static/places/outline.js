// Zones, masks and lines as SVG over a picture, drawn from data: the picture itself stays as it is.

import { shape } from "../charts.js";

// A layer that lies over a picture; its units are thousandths of the picture's height, so that circles are round.
export function layer(ratio = 16 / 9) {
  const svg = shape("svg", { class: "places", "aria-hidden": "true", preserveAspectRatio: "none" });
  svg.setAttribute("viewBox", `0 0 ${Math.round(1000 * ratio)} 1000`);
  return svg;
}

export const setRatio = (svg, ratio) => svg.setAttribute("viewBox", `0 0 ${Math.round(1000 * ratio)} 1000`);
export const sizeOf = (svg) => svg.getAttribute("viewBox").split(" ").slice(2).map(Number);

// places: {zones: {name: points}, masks: [points], lines: {name: [from, to]}}.
export function drawPlaces(svg, { zones = {}, masks = [], lines = {} }) {
  const [width, height] = sizeOf(svg);
  const along = (points) => points.map(([x, y]) => `${(x * width).toFixed(1)},${(y * height).toFixed(1)}`).join(" ");
  const unit = 1000 / (svg.clientHeight || 500);
  const name = (text, [x, y]) => shape("text", { x: x * width + 4 * unit, y: Math.max(15 * unit, y * height - 4 * unit), "font-size": 13 * unit }, text);
  svg.replaceChildren(
    ...masks.map((points) => shape("polygon", { class: "mask", points: along(points) })),
    ...Object.entries(zones).flatMap(([zone, points]) => [shape("polygon", { class: "zone", points: along(points) }), name(zone, highest(points))]),
    ...Object.entries(lines).flatMap(([line, points]) => [shape("polyline", { class: "crossing", points: along(points) }), name(line, points[0])]));
}

export const highest = (points) => points.reduce((best, one) => (one[1] < best[1] ? one : best));
