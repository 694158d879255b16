// Events: tracked objects found again by camera, class, zone and time; each with its picture, its clip and what is known of it.
// "#/events" is the list, "#/events/camera/ID" that of one camera, "#/events/ID" one event. The list stays as it is while one reads; what is new is offered, not pushed in between.

import { act, announce, api, asked, clock, duration, make, moment, number, percent, Refused, setText, size } from "../ui.js";
import { check, choice, field } from "../forms.js";
import { mayOperate } from "../learning/parts.js";

const PAGE = 24;
const NEWER_EVERY_MS = 5000;
// What was looked for last, so that coming back from an event finds the same list.
const ANY = { camera: "", class: "", zone: "", from: "", to: "", clip: false, favourite: false };
const wanted = { ...ANY };

export default {
  id: "events",
  title: "Events",
  mount(root, context) {
    const [first, camera] = context.words;
    if (first && !camera) return showOne(root, context, first);
    if (first === "camera") {
      Object.assign(wanted, ANY, { camera });
      history.replaceState(null, "", "#/events");  // from here on the fields say what is looked for
    }
    return new List(root, context).start();
  },
};

const file = (id, name) => `/api/v1/events/${encodeURIComponent(id)}/${name}`;
const titleOf = (event) => `${event.class_name} · ${event.camera}`;
const lasted = (event) => (event.ended_utc === null ? "still there" : duration(event.ended_utc - event.started_utc));

// The question to the box that stands for what is looked for.
function query(more = {}) {
  const given = new URLSearchParams();
  for (const name of ["camera", "class", "zone"]) if (wanted[name]) given.set(name, wanted[name]);
  for (const name of ["clip", "favourite"]) if (wanted[name]) given.set(name, "true");
  for (const name of ["from", "to"]) if (wanted[name]) given.set(`${name}_utc`, String(new Date(wanted[name]).getTime() / 1000));
  for (const [name, value] of Object.entries(more)) given.set(name, value);
  return `events?${given}`;
}

// --- the list --------------------------------------------------------------------------------------------------------

class List {
  constructor(root, { status }) {
    Object.assign(this, { root, status, next: null, newest: null, gone: false, turn: 0 });
  }

  start() {
    this.line = make("p", { role: "status", id: "events-line" }, "loading …");
    this.newer = make("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.begin() }, "There is something newer: show it");
    this.grid = make("ul", { class: "event-grid" });
    this.more = make("button", { type: "button", class: "quiet", hidden: true, onclick: () => act(this.more, () => this.fetch()) }, "Show earlier events");
    this.root.append(make("section", {}, make("h2", {}, "What was seen"),
      make("p", { class: "hint" }, "An event is one object that a camera followed, from when it was first seen to when it was gone. The picture is its best; ",
        "a clip begins a few seconds before. How long they are kept is set under ", make("a", { href: "#/settings/box" }, "Settings"), " (by an admin); favourites stay."),
      this.filters(), this.newer, this.line, this.grid, make("div", { class: "buttons" }, this.more)));
    const stop = this.status((status) => this.fill(this.cameras, "all cameras", status.cameras.map((c) => [c.id, c.name || c.id]), "camera"));
    this.timer = setInterval(() => this.lookForNewer(), NEWER_EVERY_MS);
    this.begin();
    this.facets();
    return () => { this.gone = true; clearInterval(this.timer); stop(); };
  }

  filters() {
    const changed = (name, read) => (event) => { wanted[name] = read(event.target); this.begin(); };
    const value = (input) => input.value;
    this.cameras = choice([["", "all cameras"]], "", { onchange: changed("camera", value) });
    this.classes = choice([["", "everything"]], "", { onchange: changed("class", value) });
    this.zones = choice([["", "anywhere"]], "", { onchange: changed("zone", value) });
    const time = (name) => make("input", { type: "datetime-local", value: wanted[name], onchange: changed(name, value) });
    const flag = (name, words) => check(words, wanted[name], { onchange: changed(name, (input) => input.checked) }).element;
    return make("div", { class: "row-of-fields", role: "search", "aria-label": "Events" },
      field("Camera", this.cameras), field("Class", this.classes), field("Zone", this.zones), field("From", time("from")), field("To", time("to")),
      flag("clip", "with a clip"), flag("favourite", "favourites"));
  }

  // Options of a filter; what is chosen stays, also when the box does not name it any more.
  fill(select, words, options, name) {
    if (wanted[name] && !options.some(([key]) => key === wanted[name])) options.push([wanted[name], wanted[name]]);
    const all = [["", words], ...options];
    if (all.map(String).join() === this[`${name}Known`]) return;
    this[`${name}Known`] = all.map(String).join();
    select.replaceChildren(...all.map(([key, text]) => make("option", { value: key, selected: key === wanted[name] }, text)));
  }

  async facets() {
    await this.told(async () => {
      const { classes, zones } = await api.get("events/facets");
      this.fill(this.classes, "everything", classes.map((name) => [name, name]), "class");
      this.fill(this.zones, "anywhere", zones.map((name) => [name, name]), "zone");
    });
  }

  async begin() {
    this.turn += 1;
    Object.assign(this, { next: null, newest: null });
    this.newer.hidden = true;
    this.grid.replaceChildren();
    await this.told(() => this.fetch());
  }

  async fetch() {
    const turn = this.turn;
    const page = await api.get(query({ limit: PAGE, ...(this.next ? { after: this.next } : {}) }));
    if (this.gone || turn !== this.turn) return;
    const first = this.grid.children.length;
    this.next = page.next;
    if (!first) this.newest = page.events[0]?.id ?? null;
    this.grid.append(...page.events.map(card));
    this.more.hidden = !page.next;
    const count = this.grid.children.length;
    setText(this.line, count ? `${count} event${count === 1 ? "" : "s"}${page.next ? ", and earlier ones" : ""}, newest first` : "Nothing was found.");
    if (first) this.grid.children[first]?.querySelector("a").focus();
  }

  async lookForNewer() {
    if (document.hidden || this.gone || !this.newer.hidden) return;
    const turn = this.turn;
    try {
      const page = await api.get(query({ limit: 1 }));
      if (turn === this.turn && page.events.length && page.events[0].id !== this.newest) this.newer.hidden = false;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;  // the page says by itself that the box is away
    }
  }

  async told(work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      announce(error.message, true);
      setText(this.line, "The events could not be read.");
    }
  }
}

function card(event) {
  const words = [event.has_clip ? "clip" : "", event.favourite ? "favourite" : ""].filter(Boolean);
  return make("li", {}, make("a", { href: `#/events/${event.id}` },
    event.has_snapshot ? make("img", { src: file(event.id, "thumbnail.jpg"), alt: "", loading: "lazy", width: 256, height: 192 }) : make("span", { class: "no-picture" }, "no picture"),
    make("span", { class: "event-title" }, titleOf(event)),
    make("span", { class: "event-words" }, `${moment(event.started_utc)}, ${lasted(event)}`),
    event.zones_been.length ? make("span", { class: "event-words" }, `in ${event.zones_been.join(", ")}`) : null,
    words.length ? make("span", { class: "event-words" }, words.join(" · ")) : null));
}

// --- one event -------------------------------------------------------------------------------------------------------

function showOne(root, { role, go }, id) {
  let gone = false;
  const draw = async () => {
    try {
      const event = await api.get(`events/${encodeURIComponent(id)}`);
      if (!gone) root.replaceChildren(one(event, mayOperate(role), go, draw));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (!gone) root.replaceChildren(make("p", { class: "hint" }, `${error.message}. `, make("a", { href: "#/events" }, "Back to the events")));
    }
  };
  draw();
  return () => { gone = true; };
}

function one(event, operator, go, draw) {
  return make("section", { class: "one-event" }, make("p", {}, make("a", { href: "#/events" }, "Back to the events")),
    make("h2", {}, titleOf(event)), make("p", { class: "hint" }, `${moment(event.started_utc)}, ${lasted(event)}`),
    clips(event), event.has_snapshot ? snapshot(event) : make("p", { class: "hint" }, "There is no picture of it (any more)."),
    facts(event), operator ? tools(event, go, draw) : make("p", { class: "hint" }, "Marking and deleting need the role operator."));
}

function snapshot(event) {
  const where = file(event.id, "snapshot.jpg");
  return make("figure", {}, make("img", { src: where, alt: `${event.class_name} in its box, as camera ${event.camera} saw it best` }),
    make("figcaption", { class: "hint" }, "Its best picture, privacy masks burnt in. ", make("a", { href: where, download: `${event.camera}-${event.id}.jpg` }, "Save the picture")));
}

function clips(event) {
  if (!event.clips.length) {
    const why = event.ended_utc === null ? "A clip is written when it is gone." : "There is no clip of it (any more).";
    return make("p", { class: "hint" }, why);
  }
  return make("div", {}, ...event.clips.map((clip) => player(event, clip)));
}

function player(event, clip) {
  const where = `${file(event.id, "clip.mp4")}?part=${clip.part}`;
  const about = `${clock(clip.began_utc)} to ${clock(clip.ended_utc)}, ${duration(clip.ended_utc - clip.began_utc)}, ${clip.codec}, ${size(clip.size_bytes)}`;
  const cannot = make("p", { class: "hint", hidden: true }, "This browser cannot play this clip; save it and play it elsewhere.");
  const video = make("video", { controls: true, preload: "metadata", playsinline: true, muted: true, src: where, "aria-label": `Clip of ${titleOf(event)}, ${about}` });
  video.addEventListener("error", () => { cannot.hidden = false; });
  const begin = Math.max(0, event.started_utc - clip.began_utc - 1);
  video.addEventListener("loadedmetadata", () => { if (begin < video.duration) video.currentTime = begin; }, { once: true });
  return make("figure", {}, video, cannot, make("figcaption", { class: "hint" }, about,
    clip.masked ? ", encoded anew with the camera's privacy masks" : ", as the camera sent it", ". ", make("a", { href: `${where}&download=true` }, "Save the clip")));
}

function facts(event) {
  const rows = [
    ["Score", `${number(event.score)}: how sure the model was at best, 0 to 1`],
    ["First seen", moment(event.started_utc)],
    ["Last seen", event.ended_utc === null ? `${moment(event.seen_utc)}, still there${event.still ? ", standing still" : ""}` : moment(event.seen_utc)],
    ["Zones", event.zones_been.map((zone) => `${zone}${event.dwell_s[zone] ? ` (${duration(event.dwell_s[zone])})` : ""}`).join(", ") || "none"],
    ["Lines crossed", Object.entries(event.lines).map(([line, way]) => `${line} (${way})`).join(", ") || "none"],
    ["Size", `${percent((event.box[2] - event.box[0]) * (event.box[3] - event.box[1]) * 100)} of the picture, when last told`],
    ["Seen by", event.version || "unknown"],
    ["Camera", make("a", { href: `#/live/${encodeURIComponent(event.camera)}` }, event.camera)],
    ["Event", event.id],
  ];
  return make("dl", {}, ...rows.flatMap(([name, words]) => [make("dt", {}, name), make("dd", {}, words)]));
}

function tools(event, go, draw) {
  const mark = make("button", { type: "button", class: "quiet", "aria-pressed": String(event.favourite) }, event.favourite ? "★ Favourite: it stays" : "☆ Keep as a favourite");
  mark.addEventListener("click", () => act(mark, async () => {
    await api.put(`events/${event.id}/favourite`, { favourite: !event.favourite });
    await draw();
  }, event.favourite ? "It may be deleted when it is old." : "It stays, with its files, until you take the mark back."));
  const remove = make("button", { type: "button", class: "danger", disabled: event.ended_utc === null, title: event.ended_utc === null ? "when it is gone" : null }, "Delete …");
  remove.addEventListener("click", async () => {
    const body = make("p", {}, "Its pictures go with it, and clips that no other event is in. This cannot be taken back.");
    if (await asked(`Delete this event of ${event.camera}?`, body, [["no", "Keep it"], ["yes", "Delete it"]]) !== "yes") return;
    await act(remove, async () => { await api.remove(`events/${event.id}`); go("#/events"); }, "The event is deleted.");
  });
  return make("div", { class: "buttons" }, mark, remove);
}
