// Cameras with where they are watched and why; pinning one.

import { act, api, make, number, percent, table } from "/static/ui.js";
import { PHASES, boxLink, chosenBox, mayOperate, share, wrapped } from "./words.js";

export function cameraTable(rows, context, again, caption = "Cameras") {
  if (!rows.length) return make("p", { class: "hint" }, "There is none.");
  const operator = mayOperate(context.role);
  return table(caption, ["camera", "customer", "watched by", "why there", "standby", "quality (0–1)", "in time", "received of needed", "model", ...(operator ? ["change"] : [])],
    rows.map((row) => [make("span", {}, row.name || row.camera, row.name ? make("span", { class: "hint" }, ` ${row.camera}`) : null), make("a", { href: `#/customers/${row.customer}` }, row.customer),
      make("span", {}, boxLink(row.box), row.pinned ? " pinned" : ""), wrapped(row.moving ? `on its way: ${PHASES[row.moving] ?? row.moving}` : row.why), row.standby ? boxLink(row.standby) : "–",
      number(row.quality), row.finish_frac === null ? "–" : percent(100 * row.finish_frac), `${share(row.received_pct)} of ${share(row.demand_pct)}`, wrapped(row.version),
      ...(operator ? [pinButton(row, again)] : [])]));
}

function pinButton(row, again) {
  const words = row.pinned ? "Unpin" : "Pin …";
  return make("button", { type: "button", class: "small", "aria-label": `${words} ${row.camera}`, onclick: async (event) => {
    const button = event.currentTarget, path = `fleet/cameras/${row.camera}/pin`;
    if (row.pinned) { if (await act(button, () => api.put(path, { box: "" }), `the fleet decides where ${row.camera} is watched`)) again(); return; }
    const view = await api.get("fleet/view");
    const boxes = view.boxes.filter((box) => box.online).map((box) => [box.id, `${box.id} (${box.site}, ${share(box.spare_pct)} spare)`]);
    const chosen = await chosenBox(`Where is ${row.camera} to be watched?`, "It stays there, whatever the fleet would prefer, until it is unpinned.", boxes, row.box);
    if (chosen && await act(button, () => api.put(path, chosen), `${row.camera} is pinned to ${chosen.box}`)) again();
  } }, words);
}
