// The cameras of the box: changed here they change at once, and no other camera loses a frame.

import { act, announce, api, asked, make, Refused, setText, table } from "../ui.js";
import { refresh } from "../feed.js";
import { About } from "../setup/about.js";
import { Address } from "../setup/address.js";
import { changeCamera, command, draftOf, listCameras, oneCamera, removeCamera, resetCamera } from "../setup/cameras.js";
import { Places } from "../setup/places.js";
import { Times } from "../setup/times.js";

export function show(root, context) {
  if (context.words.length) showOne(root, context, context.words[0]);
  else showAll(root);
}

// --- all ---------------------------------------------------------------------------------------------------------------

function showAll(root) {
  const place = make("div");
  const draw = async () => {
    try {
      const list = await listCameras();
      const held = place.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
      place.replaceChildren(...allOf(list, draw));
      if (held) place.querySelector(`[aria-label="${CSS.escape(held)}"]`)?.focus();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      place.replaceChildren(make("p", { class: "error" }, error.message));
    }
  };
  root.append(make("section", { "aria-labelledby": "h-cameras" }, make("h2", { id: "h-cameras" }, "Cameras"), make("p", { class: "hint" },
    "Changes count at once, without a restart, and cost no other camera a frame. What the configuration file says of a camera stays the ",
    "ground; what is changed here lies over it."), place, make("div", { class: "buttons" }, make("a", { href: "#/setup", class: "button main" }, "Add a camera"))));
  draw();
}

function allOf(list, again) {
  return [...list.findings.map((words) => make("p", { class: "hint" }, words)), listOf(list.cameras, again),
    ...list.removed.map((id) => make("p", {}, `${id} stands in the configuration file and was removed here. `,
      make("button", { type: "button", class: "small quiet", onclick: (event) => resetAsked(event.target, id, again) }, `Bring ${id} back`)))];
}

const SOURCES = { file: "the file", changed: "the file, changed here", added: "added here" };

function listOf(cameras, again) {
  if (!cameras.length) return make("p", {}, "There is no camera yet.");
  return table("Cameras of this box", ["name", "state", "from", "watched", "learns", "change"], cameras.map((camera) => [
    make("span", {}, camera.title, make("br"), make("code", {}, camera.id)), make("span", { class: "words" }, camera.state, camera.why ? make("span", { class: "error" }, ` ${camera.why}`) : null),
    SOURCES[camera.source] || camera.source,
    switchOf(`Watch ${camera.id}`, camera.entry.enabled, (on) => command("watch", camera.id, { on }), again),
    switchOf(`Let ${camera.id} learn`, camera.entry.learning, (on) => command("learning", camera.id, { on }), again), buttonsOf(camera, again)]));
}

function buttonsOf(camera, again) {
  const button = (words, work, kind = "quiet") => make("button", { type: "button", class: `small ${kind}`, "aria-label": `${words} ${camera.id}`,
    onclick: (event) => work(event.target) }, words);
  const restart = (target) => act(target, () => command("restart", camera.id), `${camera.title} is opened anew`);
  return make("span", { class: "row-of-buttons" },
    make("a", { class: "button small", href: `#/settings/cameras/${encodeURIComponent(camera.id)}`, "aria-label": `Change ${camera.id}` }, "Change"),
    button("Restart", restart), camera.source === "changed" ? button("Reset", (target) => resetAsked(target, camera.id, again)) : null,
    button("Remove", (target) => removeAsked(target, camera, again), "danger"));
}

async function resetAsked(button, id, again) {
  const sure = await asked(`Reset ${id}?`, make("p", {}, "What was changed here is dropped: the camera is as the configuration file says again."),
    [["", "Keep"], ["yes", "Reset"]]);
  if (sure === "yes" && await act(button, () => resetCamera(id), `${id} is as the file says again`)) { refresh(); again(); }
}

function switchOf(label, on, change, again) {
  const input = make("input", { type: "checkbox", role: "switch", checked: on, "aria-label": label });
  input.addEventListener("change", async () => {
    const wanted = input.checked;
    if (!await act(input, () => change(wanted), `${label}: ${wanted ? "on" : "off"}`)) { input.checked = !wanted; return; }
    refresh();
    await again();
  });
  return input;
}

async function removeAsked(button, camera, again) {
  const sure = await asked(`Remove ${camera.title}?`, make("p", {}, "It is no longer watched. Its samples, models and clips stay on the disk ",
    "until their time is over, and serve again when a camera of this id is added."), [["", "Keep"], ["yes", "Remove"]]);
  if (sure !== "yes" || !await act(button, () => removeCamera(camera.id), `${camera.title} was removed`)) return;
  refresh();
  again();
}

// --- one ---------------------------------------------------------------------------------------------------------------

async function showOne(root, context, id) {
  const place = make("div");
  root.append(make("p", {}, make("a", { href: "#/settings/cameras" }, "← All cameras")), place);
  try {
    const [camera, choices] = await Promise.all([oneCamera(id), api.get("settings/choices")]);
    place.append(changeForm(camera, choices, context));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    place.append(make("p", { class: "error" }, error.message));
  }
}

function changeForm(camera, choices, context) {
  const before = draftOf(camera.entry);
  const draft = structuredClone(before);
  const picture = `/api/v1/cameras/${encodeURIComponent(camera.id)}/picture.jpg?boxes=false&width=1280`;
  const parts = [new About(draft, choices, { fixedId: true }), new Address(draft), new Places(draft, picture), new Times(draft)];
  const problem = make("p", { class: "error", role: "alert" });
  const save = make("button", { type: "button", class: "main", onclick: async () => {
    const wrong = parts.map((part) => part.take(draft)).find(Boolean) || "";
    setText(problem, wrong);
    if (wrong) return;
    const changes = Object.fromEntries(Object.keys(draft).filter((key) => key !== "id" && JSON.stringify(draft[key]) !== JSON.stringify(before[key]))
      .map((key) => [key, draft[key]]));
    if (!Object.keys(changes).length) { announce("Nothing was changed"); return; }
    save.disabled = true;
    try {
      await changeCamera(camera.id, changes, camera.etag);
      refresh();
      context.go("#/settings/cameras");
      announce(`${camera.title} was changed; it counts from now on`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setText(problem, error.message);
    } finally {
      save.disabled = false;
    }
  } }, "Save the changes");
  return make("div", {}, ...parts.map((part, i) => make("section", { "aria-labelledby": `h-part-${i}` }, make("h2", { id: `h-part-${i}` }, part.title), part.element)),
    make("section", { "aria-label": "Save" }, problem, make("div", { class: "buttons" }, make("a", { href: "#/settings/cameras" }, "Leave it as it is"), save)));
}
