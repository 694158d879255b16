// What is about to be added, in words.

import { make } from "../ui.js";

export function summaryOf(draft, tried) {
  const count = (things, one, many) => `${things} ${things === 1 ? one : many}`;
  const rows = [
    ["Name", draft.name || draft.id], ["Id", draft.id], ["Address", shownAddress(draft.url)],
    ["Main stream for clips", draft.record_url ? shownAddress(draft.record_url) : "the analysed one"],
    ["Tried", tried ? (tried.ok ? "it works" : "it did not work; the box will keep trying") : "not yet; the box will try"],
    ["Task", draft.task], ["Objects told", draft.classes.join(", ") || "all"], ["Analysed", draft.fps ? `${draft.fps} frames/s` : "every frame"],
    ["Places", [count(Object.keys(draft.zones).length, "zone", "zones"), count(Object.keys(draft.objects.lines).length, "line", "lines"),
      count(draft.masks.length, "privacy mask", "privacy masks")].join(", ")],
    ["Learning", draft.learning ? "yes" : "no"], ["Watched", draft.schedule.watch.join("; ") || "always"],
    ["Clips", draft.recording.clips ? `yes, ${draft.recording.pre_s} s before and ${draft.recording.post_s} s after` : "no"],
    ["Kept", draft.recording.keep_days ? count(draft.recording.keep_days, "day", "days") : "as the box keeps clips and snapshots"],
  ];
  return make("dl", { class: "summary" }, ...rows.flatMap(([name, words]) => [make("dt", {}, name), make("dd", {}, words)]));
}

// Never the password, not even on the screen of whoever typed it.
export const shownAddress = (url) => url.replace(/:\/\/[^@/]*@/, "://***@");
