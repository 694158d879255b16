// GPU: what every job was promised and received, over the last hour and per window; memory and its lanes; the devices themselves.

import { barRow, lineChart } from "../charts.js";
import { make, moment, number, percent, table } from "../ui.js";
import { badge, cameraTabs, facts, keyed, mib, more, polled, redrawn, section } from "../learning/parts.js";

export default {
  id: "gpu",
  title: "GPU",
  mount(root, context) {
    const camera = context.words[0] || "";
    const shown = make("div", {});
    let cameras = [];
    root.append(shown);
    context.status((status) => { cameras = status.cameras.map((c) => c.id); });
    return polled(shown, `gpu?windows=10${camera ? `&camera=${encodeURIComponent(camera)}` : ""}`, 4000, (told) => redrawn(shown, ...draw(told, cameras, camera))).stop;
  },
};

const draw = (told, cameras, camera) => [sharesSection(told), timeSection(told, cameras, camera), memorySection(told), devicesSection(told), windowsSection(told)];

function sharesSection(told) {
  const max = Math.max(told.capacity_pct, 1);
  return section("Shares now", `100 % are ${told.unit}. A share is a promise: the upper bar is what a job was promised, the lower one what it received over the last ${told.span_s} s. ` +
    "A job that has less to do gets less.",
  facts([
    ["may be promised", percent(told.capacity_pct)], ["spare", `${percent(told.spare_pct)}: nobody was promised it`],
    ["kept by", `${told.backend} (how shares are kept on this machine)`],
    ["a change of shares costs", `${number(told.change_settle_s, 1)} s until it holds, ${number(told.change_gpu_s, 1)} GPU-s and ${number(told.change_blind_s, 1)} s without inference per changed job`],
  ]),
  ...(told.shares.length ? told.shares.map((s) => barRow({ label: `${s.job} (${s.kind})`, max,
    words: `promised ${percent(s.promised_pct)} · received ${percent(s.received_pct)} · had work ${percent(100 * s.wanted_frac)} of the time`,
    bars: [{ value: s.promised_pct, kind: "promised" }, { value: s.received_pct, kind: "received" }] })) : [make("p", { class: "hint" }, "No job has a share now.")]),
  told.faults.length ? make("ul", { class: "notes" }, ...told.faults.map((f) => make("li", {}, `${moment(f.at_utc)}: ${f.text}. ${f.remedy}`))) : null);
}

function timeSection(told, cameras, camera) {
  const tabs = cameraTabs("gpu", cameras, camera, "all together");
  if (told.at_utc.length < 2) return section("The last hour", `A point is taken every ${told.every_s} s; the first ones are on their way.`, tabs);
  const points = (values) => values.map((value, i) => [told.at_utc[i], value]);
  return section("The last hour", `Promised against received share, a point every ${told.every_s} s. A gap: no such job ran. ` + (camera ? `Each job of ${camera}; its retrainings, window after window, are one job here.` :
    "All jobs of a kind together; choose a camera to see its own."),
  tabs, told.jobs.length ? null : make("p", { class: "hint" }, `No job of ${camera} ran in the last hour.`),
  make("div", { class: "cards" }, ...told.jobs.map((job) => make("div", { class: "card" }, keyed(lineChart({
    title: job.camera ? `${job.job} (${job.kind})` : `${job.kind}, all cameras`, unit: "% of one GPU or core", min: 0, max: Math.max(told.capacity_pct, 100),
    series: [{ name: "promised", points: points(job.promised_pct) }, { name: "received", points: points(job.received_pct) }],
  }), `job-${job.job}`)))));
}

function memorySection(told) {
  return section("Memory", "Jobs whose iterations take turns share a memory lane: the lane is as large as the hungriest iteration in it, and is paid once. " +
    "Persistent: what a job holds as long as it lives. Ephemeral: what one iteration takes beyond that.",
  told.lanes.length ? table("Memory lanes", ["lane", "size", "jobs in it"], told.lanes.map((l) => [String(l.lane), mib(l.size_mib), l.jobs.join(", ")])) : make("p", { class: "hint" }, "There are no memory lanes here."),
  told.memory.length ? table("Memory of each job", ["job", "holds now", "persistent", "ephemeral", "how it is known", "lane"], told.memory.map((m) =>
    [m.job, mib(m.held_mib), mib(m.persistent_mib), mib(m.ephemeral_mib), m.measured ? "measured" : m.persistent_mib === null ? "not known yet" : "declared",
      m.lane === null ? "waits for memory, or has none" : String(m.lane)])) : null);
}

function devicesSection(told) {
  if (!told.devices.length) return section("Devices", "This machine shows no GPU to the box: everything runs on the processor's cores.");
  const at = told.at_utc, points = (values) => values.map((value, i) => [at[i], value]);
  return section("Devices", "As their driver tells it. Throttled: the device holds its own clocks down, mostly because it is hot or at its power limit; shares are then of a slower device.",
    ...told.devices.map((d) => make("div", {}, make("h3", {}, `${d.index}: ${d.name} `, d.problem ? badge(d.problem, "bad") : d.throttled.length ? badge(`throttled: ${d.throttled.join(", ")}`, "warn") : badge("well", "good")),
      facts([
        ["memory", `${mib(d.memory_used_mib)} of ${mib(d.memory_total_mib)} used, by everybody`], ["busy", percent(d.utilisation_pct)],
        ["temperature", d.temperature_c === null ? "–" : `${number(d.temperature_c, 0)} °C`], ["power", d.power_w === null ? "–" : `${number(d.power_w, 0)} W`],
        ["memory errors", d.ecc_errors === null ? "not told" : `${d.ecc_errors} uncorrected since the driver was loaded`],
      ]))),
    at.length > 1 ? make("div", { class: "cards" }, ...told.device_history.flatMap((d) => [
      ["temperature", "°C", d.temperature_c], ["memory used", "MiB", d.memory_used_mib], ["busy", "%", d.utilisation_pct],
    ].filter(([, , values]) => values.some((v) => v !== null)).map(([name, unit, values]) => make("div", { class: "card" }, keyed(lineChart({
      title: `${name} of GPU ${d.index}`, unit, series: [{ name, points: points(values) }] }), `device-${d.index}-${name}`),
    name === "temperature" ? make("p", { class: "hint" }, `${d.throttled.filter(Boolean).length} of ${d.throttled.length} points were throttled.`) : null)))) : null);
}

function windowsSection(told) {
  return section("Closed windows", "Means over the time for which each job ran in the window.", ...(told.windows.length ? told.windows.map((w) =>
    more(`window-${w.window}`, `window ${w.window}, closed ${moment(w.closed_utc)}`, table(`Shares of window ${w.window}`, ["job", "kind", "promised", "received", "had work"],
      w.shares.map((s) => [s.job, s.kind, percent(s.promised_pct), percent(s.received_pct), percent(100 * s.wanted_frac)])))) : [make("p", { class: "hint" }, "No window has closed yet.")]));
}
