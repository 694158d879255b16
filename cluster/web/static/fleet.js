// The pages of a controller, in the frame that boxes have too (/static/shell.js).

import { number } from "/static/ui.js";
import { start } from "/static/shell.js";

const PAGES = {
  boxes: ["Boxes", () => import("./pages/boxes.js")],
  customers: ["Customers", () => import("./pages/customers.js")],
  cameras: ["Cameras", () => import("./pages/cameras.js")],
  models: ["Models and rollouts", () => import("./pages/models.js")],
  history: ["History", () => import("./pages/history.js")],
  settings: ["Settings", () => import("./pages/settings.js")],
  box: ["Box", () => import("./pages/box.js")],
};

function told(view) {
  const t = view.totals, c = view.controller;
  const trouble = !c.in_charge ? ` · this controller is not in charge${c.reason ? `: ${c.reason}` : ""}` : !c.broker_up ? " · the broker is away" : "";
  return {
    name: `fleet · ${c.id}`, software: view.software,
    words: `${t.there} of ${t.boxes} boxes there · ${t.live} of ${t.cameras} cameras live · ${t.met} of ${t.judged} goals met · mean quality ` +
      `${t.quality === null ? "not measured yet" : number(t.quality)}${trouble}`,
  };
}

start({ pages: PAGES, home: "boxes", outside: ["box"], first: "#/settings/invite", told });
