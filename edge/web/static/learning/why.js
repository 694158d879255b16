// "Why?": a plan's reasons, what other policies would have made of the same moment, and what one quantum more would be worth to whom.

import { act, api, make, moment, number, percent, table } from "../ui.js";
import { badge, change, facts, more, polled, redrawn, seconds, section } from "./parts.js";

const JOBS = { infer: "inference", train: "retraining" };

// The plan in force and the ones before it. Returns how to stop.
export function plansInto(root) {
  const shown = make("div", {}), answer = make("div", { "aria-live": "polite" });
  root.append(section("Plans", "A plan says how many percent of the GPU each camera's inference and retraining get, and which retraining runs. " +
    "It is made when a window's preparation ends, and anew when something has changed.", shown, answer));
  const poll = polled(shown, "plans?limit=12", 4000, ({ plans }) => redrawn(shown, ...drawPlans(plans, answer)));
  return poll.stop;
}

function drawPlans(plans, answer) {
  if (!plans.length) return [make("p", { class: "hint" }, "No plan was made yet.")];
  const [newest, ...others] = plans;
  return [
    make("p", {}, make("strong", {}, `Plan ${newest.number}`), ` of window ${newest.window}, ${moment(newest.at_utc)}, by ${newest.policy}: `,
      `expected quality ${number(newest.expected_quality, 3)} (0 to 1, mean over cameras and the rest of the window), ${percent(newest.spare_pct)} of a GPU spare.`),
    make("ul", { class: "notes" }, ...newest.reasons.map((reason) => make("li", {}, reason))),
    newest.explainable ? whyButton(newest.number, answer, true) : make("p", { class: "hint" }, "What it was made from is not kept any more: it cannot be explained."),
    others.length ? more("earlier-plans", "Earlier plans", table("Earlier plans", ["plan", "made", "expected quality (0–1)", "what was said", ""],
      others.map((plan) => [String(plan.number), moment(plan.at_utc), number(plan.expected_quality, 3),
        make("div", {}, ...plan.reasons.map((reason) => make("div", {}, reason))), plan.explainable ? whyButton(plan.number, answer, false) : ""]))) : null,
  ];
}

function whyButton(plan, answer, main) {
  const button = make("button", { type: "button", class: main ? "main" : "small", "data-key": `why-${plan}`, "aria-label": main ? null : `Why plan ${plan}?`,
    onclick: () => act(button, async () => answer.replaceChildren(drawWhy(await api.get(`plans/${plan}/why`)))) }, "Why?");
  return button;
}

export function drawWhy(why) {
  const { answer } = why, quantum = why.quantum_pct;
  return make("div", { class: "card why" }, make("h3", {}, `Why plan ${why.number} is as it is`),
    facts([
      ["time left in the window", seconds(why.remaining_s)],
      ["given out", `${percent(why.capacity_pct)} of a GPU, in steps of ${quantum} %`],
      ["floor", `quality ${number(why.min_quality)} (0 to 1) for every camera before its model changes`],
      ["best possible plan", `${number(answer.optimal_quality, 4)}; this one ${number(answer.expected_quality, 4)} (expected quality, 0 to 1)`],
      [`${quantum} % more of GPU`, `${worth(answer.explain.quantum_worth)} of expected quality if the box had it`],
    ]),
    table("What each camera gets, and why", ["camera", "inference", "share", "retraining", "share", "expected quality (0–1)", "why"],
      answer.streams.map((s) => [s.id, s.knobs ?? "paused", percent(s.infer_pct), s.retrain ?? "none", percent(s.train_pct),
        make("span", {}, number(s.expected_quality, 3), s.below_floor ? badge("below the floor", "bad") : ""), wrapped(s.why)])),
    make("p", { class: "hint" }, `What one quantum (${quantum} % of a GPU) more would be worth to each job, everything else held still. `,
      "A gain in the column “taken from another” would mean that shares can be moved for the better; a plan at rest has none. ",
      answer.policy.startsWith("lookahead") ? "The policy lookahead moves shares again when a retraining ends, which these columns do not see." : ""),
    table(`The value of one quantum (${quantum} % of a GPU)`,
      ["camera", "job", "share", "one more", "one less", "taken from another", "in words"],
      answer.explain.jobs.map((j) => [j.stream, JOBS[j.kind], percent(j.share_pct), worth(j.one_more), j.one_less ? worth(j.one_less) : "–",
        j.net ? `${worth(j.net)} (${payer(j.payer)})` : "–", wrapped(j.why)])),
    table("What other policies would have made of the same moment", ["policy", "expected quality (0–1)", "retrainings", "below the floor", "what it does"],
      [[`${answer.policy} (this plan)`, number(answer.expected_quality, 4), String(answer.streams.filter((s) => s.retrain).length),
        String(answer.streams.filter((s) => s.below_floor).length), ""],
      ...why.alternatives.map((a) => [a.policy, a.expected_quality === null ? "no plan" : number(a.expected_quality, 4),
        a.expected_quality === null ? "–" : String(a.retrainings), a.expected_quality === null ? "–" : String(a.below_floor), wrapped(a.problem || a.words)])]),
    make("p", { class: "hint" }, `Explained in ${number(why.took_ms, 0)} ms by the code that plans; driftbox decide ekya --explain answers the same for a file.`));
}

const payer = (who) => (who.stream === null ? "the spare share" : `${who.stream}'s ${JOBS[who.kind]}`);

function worth({ quality, below }) {
  const cameras = below ? `, ${Math.abs(below)} ${Math.abs(below) === 1 ? "camera" : "cameras"} ${below > 0 ? "under" : "back above"} the floor` : "";
  return Math.abs(quality) < 5e-6 && !below ? "no change" : change(quality, 4) + cameras;
}

const wrapped = (words) => make("span", { class: "words" }, words);
