// The pages of a box.

import { number } from "./ui.js";
import { start } from "./shell.js";

const PAGES = {
  live: ["Live", () => import("./pages/live.js")],
  overview: ["Overview", () => import("./pages/overview.js")],
  events: ["Events", () => import("./pages/events.js")],
  labels: ["Labels", () => import("./pages/labels.js")],
  learning: ["Learning", () => import("./pages/learning.js")],
  models: ["Models", () => import("./pages/models.js")],
  queries: ["Queries", () => import("./pages/queries.js")],
  gpu: ["GPU", () => import("./pages/gpu.js")],
  health: ["Health", () => import("./pages/health.js")],
  settings: ["Settings", () => import("./pages/settings.js")],
  setup: ["Add a camera", () => import("./pages/setup.js")],
};

function told(status) {
  const live = status.cameras.filter((camera) => camera.state === "live").length;
  const measured = status.cameras.filter((camera) => camera.quality !== null);
  const names = [...new Set(measured.map((camera) => camera.quality_name))].sort().join(" and ");
  const mean = measured.reduce((sum, camera) => sum + camera.quality, 0) / measured.length;
  return {
    name: status.site ? `${status.box} · ${status.site}` : status.box, software: status.software,
    words: `${live} of ${status.cameras.length} cameras live · mean quality ` +
      (measured.length ? `${number(mean)} (${names}, 0 to 1)` : "not measured yet"),
    trouble: status.degraded.length ? { href: "#/health", words: `degraded: ${status.degraded.length === 1 ? "a reason" : `${status.degraded.length} reasons`}, see Health` } : null,
  };
}

start({ pages: PAGES, home: "live", outside: ["setup"], first: "#/setup", told });
