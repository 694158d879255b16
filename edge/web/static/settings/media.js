// How long events, snapshots and clips are kept, and how much room they take: changed here, in force at once.

import { announce, api, make, Refused } from "../ui.js";
import { field, form, numeric, text } from "../forms.js";

const KEY = "storage.media.";
const WORDS = { max_gib: "Room for snapshots and clips", min_free_mib: "Keep free on the disk", clip_days: "Keep clips", snapshot_days: "Keep snapshots",
  event_days: "Keep events", max_events: "Most events", class_days: "Other days by class" };

export function mediaOf(view, again) {
  const keys = view.sections.flatMap((section) => section.settings).filter((one) => one.live && one.key.startsWith(KEY));
  if (!keys.length) return null;
  const fields = keys.map(fieldOf);
  const save = async (patch) => {
    try {
      await api.patch("settings/media", patch, { "If-Match": `"${view.media_etag}"` });
    } catch (error) {
      if (error.status !== 412) throw error;
      announce(`${error.message}. What holds now is shown.`, true);
      again();
      return;
    }
    announce("The new bounds are in force");
    again();
  };
  const reset = make("button", { type: "button", class: "quiet", disabled: !keys.some((one) => one.changed),
    onclick: () => save(Object.fromEntries(keys.map((one) => [one.key.slice(KEY.length), null]))).catch(told) }, "As the file says");
  const whole = form("Save", () => save(Object.fromEntries(fields.map((one) => [one.name, one.value()]))), ...fields.map((one) => one.element));
  whole.querySelector(".buttons").append(reset);
  return make("section", { "aria-labelledby": "h-media" }, make("h2", { id: "h-media" }, "Events, snapshots and clips"), make("p", { class: "hint" },
    "In force at once, without a restart. What is over new bounds is deleted within seconds, the oldest first; favourites stay. ",
    "A camera may have days of its own (Cameras, Change)."), whole);
}

function told(error) {
  if (!(error instanceof Refused)) throw error;
  announce(error.message, true);
}

// {name, element, value()} of one key.
function fieldOf(one) {
  const name = one.key.slice(KEY.length);
  const label = `${WORDS[name] || name}${one.unit ? `, ${one.unit}` : ""}`;
  const hint = [one.meaning.replaceAll("`", ""), one.range ? `Allowed: ${one.range.replaceAll("`", "")}.` : "", one.changed ? "Changed here." : ""].filter(Boolean).join(" ");
  const input = name === "class_days" ? text(Object.entries(JSON.parse(one.value || "{}")).map(([key, days]) => `${key} ${days}`).join(", "), { autocapitalize: "none" })
    : numeric(one.value, { step: "any" });
  const value = () => name === "class_days" ? daysOf(input.value) : numberOf(input, label);
  return { name, value, element: field(label, input, name === "class_days" ? `${hint} Written: person 30, car 3.` : hint) };
}

function numberOf(input, label) {
  if (!Number.isFinite(input.valueAsNumber)) throw new Refused(0, `${label}: a number is needed`);
  return input.valueAsNumber;
}

function daysOf(words) {
  return Object.fromEntries(words.split(",").map((part) => part.trim()).filter(Boolean).map((part) => {
    const [, name, days] = /^(.+?)[\s:]+([\d.]+)$/.exec(part) || [];
    if (!name) throw new Refused(0, `days by class: "${part}" is no class with its days, as in: person 30`);
    return [name, Number(days)];
  }));
}
