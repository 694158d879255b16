// Which camera: found in the network, or by its address; tried at once, with its picture or what is wrong in plain words.

import { announce, make, number, Refused } from "../ui.js";
import { field, text } from "../forms.js";
import { discover, probe } from "./cameras.js";
import { StreamRoles } from "./roles.js";

const PROBLEMS = {
  auth: "The camera refused the user or the password.", not_found: "The camera answers, but there is no video under this path.",
  timeout: "Nothing answered in time: is it switched on, and in the same network?", codec: "There is something, but no video that can be decoded.",
  network: "The connection was refused or broken: check address and port.", malformed: "Something answers there, but not as a camera should.",
};
const problemOf = (answer) => [make("p", { class: "error" }, PROBLEMS[answer.code] || "It did not work."), make("p", { class: "hint" }, answer.error || "")];

export class Find {
  // onTried: told what trying the address gave.
  constructor(draft, { onTried }) {
    this.title = "Find the camera";
    this.onTried = onTried;
    this.draft = draft;
    this.url = text(draft.url, { inputmode: "url", autocapitalize: "none", size: 40 });
    this.user = text("", { autocapitalize: "none" });
    this.password = text("", { type: "password", autocomplete: "new-password" });
    this.record = text("", { inputmode: "url", autocapitalize: "none", size: 40 });
    this.found = make("div", { "aria-live": "polite" });
    this.streams = make("div", { "aria-live": "polite" });
    this.told = make("div", { class: "tried", "aria-live": "polite" });
    this.search = make("button", { type: "button", class: "quiet", onclick: () => this.look() }, "Search the network");
    this.attempt = make("button", { type: "button", onclick: () => this.tryIt() }, "Try it");
    this.more = make("details", {}, make("summary", {}, "A second, larger stream for clips"), field("Main stream", this.record,
      "Many cameras have a small stream and a large one. The small one is analysed (above), clips are cut from this one. Empty: from the analysed one."));
    this.element = make("div", {},
      make("fieldset", {}, make("legend", {}, "User and password of the camera"), make("p", { class: "hint" },
        "Only where it asks for them. The box keeps the password by itself and shows it nowhere."),
      make("div", { class: "row-of-fields" }, field("User", this.user), field("Password", this.password))),
      make("fieldset", {}, make("legend", {}, "In the network"), make("p", { class: "hint" },
        "Asks for cameras that speak ONVIF, for a few seconds. Nothing is changed on them."), this.search, this.found, this.streams),
      make("fieldset", {}, make("legend", {}, "By its address"),
        field("Address", this.url, "rtsp://192.0.2.10/stream1, an http address of MJPEG or HLS, the path of a video file, /dev/video0, or " +
          "rendered:street?seed=1 for a drawn scene to try the box with."), this.more, this.attempt, this.told));
    this.url.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); this.tryIt(); } });
  }

  get who() { return { user: this.user.value, password: this.password.value }; }

  // Runs a question to the box: the button rests, the place says what is going on, then what came of it.
  async ask(button, place, words, question, draw) {
    button.disabled = true;
    place.replaceChildren(make("p", {}, words));
    try {
      place.replaceChildren(...draw(await question()));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      place.replaceChildren(make("p", { class: "error" }, error.message));
    } finally {
      button.disabled = false;
    }
  }

  look() {
    this.streams.replaceChildren();
    return this.ask(this.search, this.found, "searching …", discover, ({ cameras }) => {
      if (!cameras.length) return [make("p", {}, "No camera answered. Some answer only after ONVIF was switched on in their settings; by its address every camera works.")];
      return [make("ul", { class: "plain" }, ...cameras.map((camera) => make("li", {},
        make("button", { type: "button", class: "quiet", onclick: (event) => this.askStreams(event.target, camera) }, `Use ${camera.name || camera.address}`),
        ` ${[camera.address, camera.hardware, camera.location].filter(Boolean).join(" · ")}`)))];
    });
  }

  askStreams(button, camera) {
    return this.ask(button, this.streams, `asking ${camera.name || camera.address} for its streams …`,
      () => probe({ onvif: camera.address, ...this.who }), ({ onvif }) => {
        if (!onvif.ok) return problemOf(onvif);
        this.roles = new StreamRoles(onvif, (analyse, record) => this.useStreams(onvif, camera, analyse, record));
        return [this.roles.element];
      });
  }

  useStreams(onvif, camera, analyse, record) {
    this.url.value = analyse;
    this.record.value = record === analyse ? "" : record;
    this.more.open = Boolean(this.record.value);
    this.draft.name ||= camera.name || onvif.model;
    announce("The streams were chosen; trying the analysed one");
    this.tryIt();
  }

  tryIt() {
    return this.ask(this.attempt, this.told, "trying; this takes some seconds …", () => probe({ url: this.url.value.trim(), ...this.who }), ({ url }) => {
      this.onTried(url);
      if (!url.ok) return problemOf(url);
      const facts = [`${url.width_px}×${url.height_px} px`, url.fps ? `${number(url.fps, 1)} frames/s` : "", `first picture after ${number(url.took_s, 1)} s`];
      return [make("p", { class: "good-words" }, `It works: ${facts.filter(Boolean).join(", ")}.`),
        ...(url.picture_url ? [make("img", { src: url.picture_url, alt: "What the camera shows now", class: "preview" })] : [])];
    });
  }

  take(draft) {
    if (!this.url.value.trim()) return "Give the camera's address, or choose one that was found.";
    Object.assign(draft, { url: this.url.value.trim(), record_url: this.record.value.trim() || null,
      credentials: this.user.value || this.password.value ? this.who : null });
    return "";
  }
}
