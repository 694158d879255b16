// Which of an ONVIF camera's streams is analysed (sub) and which one clips are cut from (main); the box proposes.

import { make, number } from "../ui.js";
import { choice, field } from "../forms.js";

export class StreamRoles {
  // use(analyse, record): addresses of the chosen streams.
  constructor(onvif, use) {
    const usable = onvif.profiles.filter((profile) => profile.url);
    const options = usable.map((profile) => [profile.token, wordsOf(profile)]);
    const address = (token) => usable.find((profile) => profile.token === token)?.url || "";
    this.analyse = choice(options, onvif.analyse);
    this.record = choice(options, onvif.record);
    const about = [onvif.manufacturer, onvif.model, onvif.firmware && `firmware ${onvif.firmware}`].filter(Boolean).join(" · ");
    this.element = make("div", {}, make("p", {}, `${about || "The camera"} offers ${usable.length} ${usable.length === 1 ? "stream" : "streams"}.`),
      ...onvif.notes.map((note) => make("p", { class: "hint" }, note)),
      ...(usable.length ? [field("Analysed stream (sub)", this.analyse, "Small is enough: models look at a few hundred pixels."),
        field("Stream for clips (main)", this.record, "The largest usually; clips are kept as the camera sent them."),
        make("button", { type: "button", onclick: () => use(address(this.analyse.value), address(this.record.value)) }, "Use these streams")] : []));
  }
}

const wordsOf = (profile) => [profile.name || profile.token, profile.width_px ? `${profile.width_px}×${profile.height_px} px` : "",
  profile.fps ? `${number(profile.fps, 0)} frames/s` : "", profile.codec].filter(Boolean).join(", ");
