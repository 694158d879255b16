// One box: how it is, what it gives to whom, its cameras and why they are there; emptying it, pinning cameras.

import { act, api, make, moment, number, percent, remember, table } from "/static/ui.js";
import { boxLink, facts, loaded, mayOperate, section, share, stateBadge, sureButton } from "../parts/words.js";
import { cameraTable } from "../parts/camera_table.js";

export default { id: "box", title: "Box", mount };

function mount(root, context) {
  const id = context.words[0] ?? "", place = make("div"), changed = remember();
  root.append(place);
  const load = loaded(place, `fleet/view/boxes/${encodeURIComponent(id)}`, (box, again) => draw(box, context, again));
  // The live view says when something about this box changed; its cameras are asked for then.
  context.status((view) => {
    const row = view.boxes.find((box) => box.id === id);
    const about = [row, view.handoffs.filter((h) => h.source === id || h.target === id), view.placements.rows.filter((p) => p.box === id || p.home === id)];
    if (changed("box", about)) load.again();
  });
  return load.end;
}

function draw(box, context, again) {
  return [
    section("how", box.id, `Site ${box.site}; joined ${moment(box.joined_utc)}.`, make("p", {}, stateBadge(box.state), box.draining ? " It gets nothing new; its cameras move to others." : ""),
      facts([["cameras live", `${box.live} of ${box.cameras}`], ["quality (0–1)", number(box.quality)], ["capacity", share(box.capacity_pct)], ["received", share(box.received_pct)],
        ["spare", share(box.spare_pct)], ["GPU memory", box.memory_mib ? `${(box.memory_mib / 1024).toFixed(1)} GiB` : "–"], ["software", box.software || "–"],
        ["last heard", box.last_heard_utc ? moment(box.last_heard_utc) : "never"]]),
      ...words("What it says is wrong", box.alarms), ...words("What is not believed of it", box.doubts), ...words("What it could not do", [box.refused, ...box.problems].filter(Boolean)),
      mayOperate(context.role) ? buttons(box, context, again) : null),
    section("shares", "Shares of customers", "Of one GPU; a floor: what a customer leaves idle, others use.",
      box.shares.length ? table("Shares", ["customer", "share"], box.shares.map((one) => [make("a", { href: `#/customers/${one.customer}` }, one.customer), percent(one.share_pct)])) :
        make("p", { class: "hint" }, "No customer has a share here.")),
    section("cameras", "Cameras that it watches", `Networks that it reaches: ${box.networks.join(", ") || "none told"}.`, cameraTable(box.camera_rows, context, again)),
  ];
}

const words = (title, lines) => (lines.length ? [make("h3", {}, title), make("ul", { class: "notes" }, ...lines.map((line) => make("li", {}, line)))] : []);

function buttons(box, context, again) {
  const path = `fleet/boxes/${encodeURIComponent(box.id)}`;
  const drain = box.draining ?
    make("button", { type: "button", onclick: async (event) => { if (await act(event.currentTarget, () => api.put(`${path}/drain`, { on: false }), `${box.id} may be used again`)) again(); } }, "Use it again") :
    sureButton({ words: "Empty it", question: `Empty ${box.id}?`, detail: "Its cameras move to other boxes where they can; it gets nothing new until you let it be used again.",
      kind: "", work: () => api.put(`${path}/drain`, { on: true }), told: `${box.id} is being emptied`, done: again });
  const remove = context.role === "admin" ? sureButton({ words: "Remove from the fleet", question: `Remove ${box.id} from the fleet?`, kind: "danger",
    detail: "Its certificate is worth nothing from then on; it goes on watching its own cameras by itself.", work: async () => { await api.remove(`${path}/certificate`); await api.remove(path); },
    told: `${box.id} is no member any more`, done: () => context.go("#/boxes") }) : null;
  return make("div", { class: "row-of-buttons" }, drain, remove);
}
