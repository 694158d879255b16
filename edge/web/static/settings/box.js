// What stands in the configuration file: every key in force with its meaning. It is changed there, and counts from the next start on;
// what is kept of events is changed here.

import { make, moment, size } from "../ui.js";
import { load } from "./load.js";
import { mediaOf } from "./media.js";

const MIB = 1024 * 1024;

export function show(root, context) {
  const place = make("div");
  root.append(place);
  const draw = () => load(place, "settings", (view) => [aboutOf(view), context.role === "admin" ? mediaOf(view, draw) : null,
    make("h2", {}, "All keys"), ...view.sections.map(sectionOf)].filter(Boolean));
  draw();
}

function aboutOf(view) {
  const { disk, certificate, mqtt } = view;
  return make("section", { "aria-labelledby": "h-box" }, make("h2", { id: "h-box" }, "This box"), make("dl", { class: "summary" },
    make("dt", {}, "Software"), make("dd", {}, `Driftbox ${view.software}`),
    make("dt", {}, "Configuration file"), make("dd", {}, view.file || "none: the built-in demo"),
    ...(disk ? [make("dt", {}, "Data folder"), make("dd", {}, disk.data_dir),
      make("dt", {}, "Disk"), make("dd", {}, `${size(disk.free_mib * MIB)} free of ${size(disk.total_mib * MIB)}; below ` +
        `${size(disk.min_free_mib * MIB)} nothing is sampled or trained (inference goes on)`)] : []),
    make("dt", {}, "Certificate"), make("dd", {}, ...(certificate ? certificateOf(certificate) : ["none: the pages come over plain HTTP"])),
    make("dt", {}, "MQTT"), make("dd", {}, mqtt ? mqttOf(mqtt) : "switched off (telemetry.mqtt.enabled)")),
  make("p", { class: "hint" }, "What follows stands in that file and is changed there: ", make("code", {}, "driftbox check"),
    " says what is wrong with it, and it counts from the next start on. Passwords are shown as where they come from, never as they are. ",
    "Cameras are changed on the page Cameras, and how long events, snapshots and clips are kept is changed below, without a restart."));
}

const STATES = { good: "good", soon: "ends within three weeks", expired: "has expired", early: "is not valid yet" };

// Its fingerprint is what one compares with what the browser shows, before trusting it.
function certificateOf(certificate) {
  const kind = certificate.kind === "own" ? "the box's own" : "given by the operator";
  return [`${kind}; ${STATES[certificate.state] || certificate.state}; valid until ${moment(certificate.until_utc)}, for ${certificate.names.join(", ")}. SHA-256 `,
    make("code", {}, certificate.fingerprint)];
}

function mqttOf(mqtt) {
  const told = [`${mqtt.connected ? "connected to" : "not connected to"} ${mqtt.broker}`, mqtt.discovery ? "announces itself to Home Assistant" : "",
    mqtt.obeys ? "obeys commands" : "obeys no commands (telemetry.mqtt.commands)"];
  return make("span", { class: mqtt.connected ? "" : "bad-words" }, told.filter(Boolean).join("; "));
}

function sectionOf(section) {
  const given = section.settings.filter((one) => one.given).length;
  return make("details", { class: "card" }, make("summary", {}, make("b", {}, section.key), ` – ${plain(section.meaning)} `,
    make("span", { class: "hint" }, `(${given} of ${section.settings.length} given in the file)`)),
  make("dl", { class: "keys" }, ...section.settings.flatMap((one) => [
    make("dt", {}, make("code", {}, one.key), one.changed ? make("span", { class: "badge" }, "changed here")
      : one.given ? make("span", { class: "badge" }, "in the file") : null),
    make("dd", {}, make("p", { class: "value" }, shown(one)), make("p", { class: "hint" }, `${plain(one.meaning)} ${limits(one)}`))])));
}

const plain = (words) => words.replaceAll("`", "");
const EMPTY = new Set(["", "[]", "{}"]);
const SAID_BY_THE_KEY = new Set(["port"]);

function shown(one) {
  if (EMPTY.has(one.value)) return one.default && !/^(none|empty)$/.test(one.default) ? `none (${plain(one.default)})` : "none";
  return one.unit && !SAID_BY_THE_KEY.has(one.unit) ? `${one.value} ${one.unit}` : one.value;
}

function limits(one) {
  const told = [one.range ? `Allowed: ${plain(one.range)}.` : "", one.default && !one.given ? "" : one.default ? `Default: ${plain(one.default)}.` : ""];
  return told.filter(Boolean).join(" ");
}
