// The cameras, all at once or (#/live/ID) one at a time.

import { make, Refused, remember } from "../ui.js";
import { OneCamera } from "../live/one.js";
import { Pictures } from "../live/pictures.js";
import { Tile } from "../live/tile.js";
import { troubled } from "../live/words.js";
import { listCameras } from "../setup/cameras.js";

export default { id: "live", title: "Live", mount };

// A camera that came back stays among the first for a moment: one that comes and goes must not shuffle the page all the time.
const CALM_S = 20;

function mount(root, context) {
  const pictures = new Pictures();
  if (context.words.length) showOne(root, context, pictures, context.words[0]);
  else showAll(root, context, pictures);
  return () => pictures.stop();
}

function showOne(root, context, pictures, id) {
  const gone = make("p", { hidden: true }, "There is no camera of this id. ", make("a", { href: "#/live" }, "All cameras"));
  const one = new OneCamera(id, pictures, context.role);
  root.append(gone, one.element);
  context.status((status) => {
    const camera = status.cameras.find((each) => each.id === id);
    gone.hidden = Boolean(camera);
    one.element.hidden = !camera;
    if (camera) one.update(camera);
  });
}

function showAll(root, context, pictures) {
  const tiles = new Map();
  const grid = make("div", { id: "tiles", class: "tiles" });
  const none = make("p", { id: "no-cameras", hidden: true }, "No camera is watched yet. ",
    context.role === "viewer" ? null : make("a", { href: "#/setup", class: "button" }, "Add a camera"));
  root.append(make("p", { class: "hint" }, "Newest analysed picture with what the edge model sees. ", make("b", {}, "Quality"),
    " is that of the serving model against the golden model's labels of this camera's newest sample (F1 of its boxes, or accuracy where it ",
    "classifies what moves): 1 is agreement in everything, 0 in nothing. The curve shows it over time; a large green dot is a new model. ",
    "The name of a camera leads to its large picture. Cameras that give no frames stand first."),
  none, grid);
  const changed = remember(), first = new Set();
  context.status((status) => {
    none.hidden = status.cameras.length > 0;
    const present = new Set(status.cameras.map((camera) => camera.id));
    for (const [id, tile] of tiles) if (!present.has(id)) { tile.remove(); tiles.delete(id); }
    for (const camera of status.cameras) {
      if (!tiles.has(camera.id)) { tiles.set(camera.id, new Tile(camera.id, pictures)); grid.append(tiles.get(camera.id).element); }
      tiles.get(camera.id).update(camera);
    }
    arrange(grid, troubledFirst(status.cameras, first).map((camera) => tiles.get(camera.id).element));
    if (changed("zones", status.cameras.map((camera) => [camera.id, Object.keys(camera.zones)]))) outline(tiles, status.cameras);
  });
}

// first: the ids that stand first, kept from one status to the next.
function troubledFirst(cameras, first) {
  for (const camera of cameras) {
    if (troubled(camera)) first.add(camera.id);
    else if (camera.since_s >= CALM_S) first.delete(camera.id);
  }
  return [...cameras.filter((camera) => first.has(camera.id)), ...cameras.filter((camera) => !first.has(camera.id))];
}

// Moves only what stands elsewhere; what has the focus keeps it.
function arrange(grid, elements) {
  const focused = document.activeElement;
  elements.forEach((element, i) => { if (grid.children[i] !== element) grid.insertBefore(element, grid.children[i] ?? null); });
  if (focused !== document.activeElement && grid.contains(focused)) focused.focus({ preventScroll: true });
}

// Draws where the zones are, which the status only counts in; nothing is asked while there are none.
async function outline(tiles, cameras) {
  if (!cameras.some((camera) => Object.keys(camera.zones).length)) return;
  try {
    const list = await listCameras();
    for (const { id, entry } of list.cameras) tiles.get(id)?.setPlaces({ zones: entry.zones, masks: entry.masks, lines: entry.objects.lines });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;  // pictures are there without outlines too
  }
}
