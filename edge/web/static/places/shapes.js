// Zones, masks and lines of a camera as one list of shapes, and what can be done to them. Pure: every function gives a new list.
// A shape: {kind: "zone" | "mask" | "line", name, points: [[x, y], ...]}; x and y are fractions of width and height, 0 to 1, from the upper
// left. A line has two points; seen from the first to the second, "in" is from right to left of it.

export const LEAST_CORNERS = { zone: 3, mask: 3, line: 2 };

// What the box keeps -> shapes, and back.
export function shapesOf({ zones = {}, masks = [], lines = {} }) {
  const named = (kind, places) => Object.entries(places).map(([name, points]) => ({ kind, name, points }));
  return [...named("zone", zones), ...named("line", lines),
    ...masks.map((points, i) => ({ kind: "mask", name: `mask ${i + 1}`, points }))];
}

export function placesOf(shapes) {
  const named = (kind) => Object.fromEntries(shapes.filter((s) => s.kind === kind).map((s) => [s.name, s.points]));
  return { zones: named("zone"), lines: named("line"), masks: shapes.filter((s) => s.kind === "mask").map((s) => s.points) };
}

const rounded = (value) => Math.round(Math.min(1, Math.max(0, value)) * 1e4) / 1e4;
const point = (x, y) => [rounded(x), rounded(y)];
const replaced = (shapes, at, shape) => shapes.map((old, i) => (i === at ? shape : old));
const withPoints = (shapes, at, points) => replaced(shapes, at, { ...shapes[at], points });

// A new shape stands in the middle: it is valid at once, and its corners can be moved with whatever one has.
export function added(shapes, kind) {
  if (kind === "line") return [...shapes, { kind, name: freshName(shapes, kind), points: [point(0.3, 0.5), point(0.7, 0.5)] }];
  const half = kind === "zone" ? 0.25 : 0.1;
  const points = [point(0.5 - half, 0.5 - half), point(0.5 + half, 0.5 - half), point(0.5 + half, 0.5 + half), point(0.5 - half, 0.5 + half)];
  return [...shapes, { kind, name: freshName(shapes, kind), points }];
}

function freshName(shapes, kind) {
  const taken = new Set(shapes.map((shape) => shape.name));
  for (let i = 1; ; i += 1) {
    const name = kind === "mask" ? `mask ${i}` : `${kind}${i}`;
    if (!taken.has(name)) return name;
  }
}

export const removed = (shapes, at) => shapes.filter((_, i) => i !== at);
export const renamed = (shapes, at, name) => replaced(shapes, at, { ...shapes[at], name });

export function moved(shapes, at, corner, x, y) {
  return withPoints(shapes, at, shapes[at].points.map((old, i) => (i === corner ? point(x, y) : old)));
}

// Without one corner; as many stay as the shape needs.
export function cornerRemoved(shapes, at, corner) {
  const { kind, points } = shapes[at];
  return points.length <= LEAST_CORNERS[kind] ? shapes : withPoints(shapes, at, points.filter((_, i) => i !== corner));
}

// A corner halfway between one and the next.
export function cornerAfter(shapes, at, corner) {
  const { kind, points } = shapes[at];
  if (kind === "line") return shapes;
  const [x, y] = points[corner], [nextX, nextY] = points[(corner + 1) % points.length];
  return withPoints(shapes, at, points.toSpliced(corner + 1, 0, point((x + nextX) / 2, (y + nextY) / 2)));
}

// A corner at a place, in the side that is nearest to it.
export function cornerAt(shapes, at, x, y) {
  const { kind, points } = shapes[at];
  if (kind === "line") return shapes;
  const distances = points.map((from, i) => distance([x, y], from, points[(i + 1) % points.length]));
  const side = distances.indexOf(Math.min(...distances));
  return withPoints(shapes, at, points.toSpliced(side + 1, 0, point(x, y)));
}

function distance([x, y], [ax, ay], [bx, by]) {
  const length = (bx - ax) ** 2 + (by - ay) ** 2;
  const part = length ? Math.min(1, Math.max(0, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length)) : 0;
  return Math.hypot(x - ax - part * (bx - ax), y - ay - part * (by - ay));
}

// What is wrong with the names, in words; "" when nothing is. The box itself judges the rest.
export function problemOf(shapes) {
  const named = shapes.filter((shape) => shape.kind !== "mask");
  const bad = named.find((shape) => !/^[a-z0-9][a-z0-9_-]{0,62}$/.test(shape.name));
  if (bad !== undefined) return `"${bad.name}" cannot be a ${bad.kind}'s name: use lower case letters, digits, - and _`;
  const twice = named.find((shape, i) => named.findIndex((other) => other.kind === shape.kind && other.name === shape.name) !== i);
  return twice === undefined ? "" : `two ${twice.kind}s are called "${twice.name}"`;
}

// Steps back and forth. change(next, key): several changes with one key (a corner that is dragged) are one step.
export class History {
  constructor(value) { Object.assign(this, { value, past: [], future: [], key: "" }); }

  change(next, key = "") {
    if (next === this.value) return;
    if (!key || key !== this.key) this.past.push(this.value);
    Object.assign(this, { value: next, future: [], key });
  }

  undo() { this.step(this.past, this.future); }

  redo() { this.step(this.future, this.past); }

  step(from, to) {
    if (!from.length) return;
    to.push(this.value);
    this.value = from.pop();
    this.key = "";
  }
}
