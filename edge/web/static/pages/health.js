// Health: what is wrong and what to do about it; doctor, workers, faults, log, disk, back-ups, a bundle for whoever helps.

import { act, announce, api, duration, make, moment, Refused, setText, size, table } from "../ui.js";
import { badge, facts, mayAdminister, mayOperate, more, polled, redrawn, section } from "../learning/parts.js";

const LEVELS = { ok: "good", warn: "warn", bad: "bad" };
const MODES = { well: ["well", "good"], tried: ["started anew just now", "warn"], pausing: ["is to be started anew", "warn"], given_up: ["given up", "bad"] };
const DISK_WORDS = {
  database: "cameras, models' records, windows, notes, messages that wait", samples: "frames kept for labelling", models: "versions of the cameras' models",
  events: "journal of decisions (driftbox replay)", media: "clips and snapshots", forms: "models compiled for this machine", backups: "back-ups, beside what they share with the rest",
  exports: "what was exported", other: "keys, certificates and the like",
};
const BACKUP_WORDS = { "by-hand": "made by hand", daily: "made by the box", "before-upgrade": "before an upgrade", "before-restore": "before a restore" };

export default { id: "health", title: "Health", mount };

function mount(root, context) {
  const shown = make("div"), log = mayOperate(context.role) ? logSection() : null;
  root.append(shown, ...(log ? [log.element] : []));
  const poll = polled(shown, "health", 2500, (health) => redrawn(shown, ...draw(health, context, () => poll.again())));
  return () => { poll.stop(); log?.stop(); };
}

const draw = (health, context, again) => [
  stateSection(health, context, again), doctorSection(health.doctor, context, again), workersSection(health.workers), faultsSection(health.faults),
  notesSection(health.notes), diskSection(health), backupSection(health, context, again), mayAdminister(context.role) ? bundleSection() : null,
];

// --- how it is ----------------------------------------------------------------------------------------------------------

function stateSection(health, context, again) {
  const stopped = [...new Set(health.workers.filter((w) => w.mode === "given_up" && w.camera).map((w) => w.camera))];
  const word = !health.ready ? badge("starting", "warn") : health.degraded.length ? badge("degraded", "bad") : badge("all is well", "good");
  return section("State", "Degraded means: the box does its work, but something is not as it should be, for each reason below. A camera in quarantine did harm again and again; it is left alone so that the others go on.",
    make("p", {}, word),
    health.degraded.length ? make("ul", { class: "notes" }, ...health.degraded.map((text) => make("li", {}, text))) : null,
    ...(mayOperate(context.role) ? stopped.map((camera) => make("button", { type: "button", "data-key": `lift-${camera}`,
      onclick: (e) => act(e.currentTarget, () => api.post("commands/camera/restart", { camera }).then(again), `${camera} is opened anew.`) }, `Try ${camera} again`)) : []),
    facts([["software", `Driftbox ${health.software}`], ["up for", duration(health.uptime_s)], ["memory of the process", size(health.resident_bytes), "resident memory"],
      ["threads", String(health.threads)], ...(health.fleet ? [["fleet", health.fleet]] : [])]));
}

// --- doctor -------------------------------------------------------------------------------------------------------------

function doctorSection(doctor, context, again) {
  const rows = [...doctor.findings].sort((a, b) => order(a) - order(b)).map((f) => [badge(f.level, LEVELS[f.level]), f.check, f.text, f.remedy || "–"]);
  const when = doctor.running ? "It looks just now." : doctor.at_utc ? `It looked on ${moment(doctor.at_utc)}.` : "It has not looked since the box started.";
  return section("Doctor", `Looks at libraries, GPU, disk, clock, broker and cameras, and says what to do about what it finds. ${when}`,
    mayOperate(context.role) ? make("p", {}, make("button", { type: "button", "data-key": "doctor", disabled: doctor.running,
      onclick: (e) => act(e.currentTarget, () => api.post("health/doctor").then(again), "Doctor looks; findings come in a moment.") }, "Look now")) : null,
    rows.length ? table("Findings, worst first", ["level", "what", "finding", "what to do"], rows) : null);
}

const order = (finding) => ["bad", "warn", "ok"].indexOf(finding.level);

// --- workers, faults, notes ---------------------------------------------------------------------------------------------

function workersSection(workers) {
  const ill = workers.filter((w) => w.mode !== "well");
  const row = (w) => [w.name, badge(...(MODES[w.mode] ?? [w.mode, ""])), `${w.silent_s.toFixed(0)} s`, String(w.restarts), w.reason || "–"];
  const head = ["worker", "state", "silent", "restarts", "what is or was wrong"];
  return section("Workers", "Threads of the box that the watchdog looks after about once a second. One that died, hangs or only fails is started anew; when that does not help a few times within an hour it is given up. " +
    "Silent: for how long nothing was heard although something should have been.",
  ill.length ? table("Workers in trouble", head, ill.map(row)) : make("p", {}, workers.length ? `All ${workers.length} workers are well.` : "Nobody is looked after yet."),
  workers.length ? more("workers", "all workers", table("All workers", head, workers.map(row))) : null);
}

const faultsSection = (faults) => faults.length ? section("Faults of jobs and devices", "What went wrong on the GPU or CPU, newest first.",
  table("Faults", ["when", "job", "what", "what to do"], faults.map((f) => [moment(f.at_utc), f.job || "device", f.text, f.remedy || "–"]))) : null;

const notesSection = (notes) => section("Notes", "What an operator should know, newest first.",
  notes.length ? make("ul", { class: "notes" }, ...notes.slice(0, 20).map((n) => make("li", {}, `${moment(n.at_utc)} ${n.camera ? `${n.camera}: ` : ""}${n.text}`))) : make("p", {}, "None so far."));

// --- disk, back-ups, bundle ---------------------------------------------------------------------------------------------

const diskSection = (health) => section("Disk", `${size(health.disk_free_bytes)} are free on the disk of the data folder.`,
  table("What the box takes", ["kind", "size", "what it is"], health.disk.filter((d) => d.size_bytes > 0).sort((a, b) => b.size_bytes - a.size_bytes)
    .map((d) => [d.what, size(d.size_bytes), DISK_WORDS[d.what] ?? ""])));

function backupSection(health, context, again) {
  const rows = health.backups.map((b) => [b.name, moment(b.created_utc), BACKUP_WORDS[b.reason] ?? b.reason, size(b.size_bytes)]);
  return section("Back-ups", "Database, serving models and keys, in the folder backups of the data folder. Samples and clips are not in them. Copy them to another machine: a back-up on the same disk does not outlive it. To restore one, stop the box and use driftbox backup restore.",
    mayAdminister(context.role) ? make("p", {}, make("button", { type: "button", "data-key": "backup",
      onclick: (e) => act(e.currentTarget, () => api.post("health/backups").then(again), "The back-up is made.") }, "Back up now")) : null,
    rows.length ? table("Newest first; the size includes files shared with the box", ["name", "made", "why", "size"], rows) : make("p", {}, "There is none yet."));
}

const bundleSection = () => section("Diagnostics", "One file for whoever helps you: status, configuration without secrets, findings, versions, the log's end and metrics. Passwords, keys, tokens, pictures and samples are not in it.",
  make("p", {}, make("a", { href: "/api/v1/health/diagnostics.zip", download: "driftbox-diagnostics.zip", "data-key": "bundle" }, "Download diagnostics (zip)")));

// --- log ----------------------------------------------------------------------------------------------------------------

function logSection() {
  const level = make("select", { id: "log-level" }, ...[["INFO", "everything"], ["WARNING", "warnings and errors"], ["ERROR", "errors only"]].map(([value, words]) => make("option", { value }, words)));
  const words = make("input", { id: "log-words", type: "search", autocomplete: "off", spellcheck: "false" });
  const lines = make("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Newest lines of the log" });
  let timer = 0, stopped = false;
  async function turn() {
    clearTimeout(timer);
    try {
      const sought = words.value.trim().toLowerCase();
      const told = (await api.get(`health/log?limit=${sought ? 1000 : 200}&level=${level.value}`)).filter((l) => l.text.toLowerCase().includes(sought));
      const text = told.map((l) => `${moment(l.at_utc)} ${l.level} ${l.text}`).join("\n") || (sought ? "No such line." : "Nothing yet.");
      const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
      setText(lines, text);
      if (atEnd) lines.scrollTop = lines.scrollHeight;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      announce(error.message, true);
    }
    if (!stopped && !document.hidden) timer = setTimeout(turn, 3000);
  }
  const seen = () => { if (!document.hidden && !stopped) turn(); };
  level.addEventListener("change", turn);
  words.addEventListener("change", turn);
  document.addEventListener("visibilitychange", seen);
  turn();
  const element = section("Log", "The last lines since the start, oldest first; the service's own log (journalctl) reaches further back. Credentials are blotted out.",
    make("p", {}, make("label", { for: "log-level" }, "Show "), level, " ", make("label", { for: "log-words" }, "with these words "), words), lines);
  return { element, stop: () => { stopped = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); } };
}
