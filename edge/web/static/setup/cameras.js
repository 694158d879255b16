// The box's cameras as the pages ask for them: one place that knows the routes.

import { api } from "../ui.js";

const path = (id) => `cameras/${encodeURIComponent(id)}`;

export const listCameras = () => api.get("cameras");
export const oneCamera = (id) => api.get(path(id));
export const addCamera = (document) => api.post("cameras", document);
// etag: of what was seen; the box refuses when somebody else has changed the camera since.
export const changeCamera = (id, changes, etag) => api.patch(path(id), changes, etag ? { "If-Match": `"${etag}"` } : {});
export const resetCamera = (id) => api.post(`${path(id)}/reset`);
export const removeCamera = (id) => api.remove(path(id));
export const discover = () => api.post("cameras/discover", {});
export const probe = (question) => api.post("cameras/probe", question);
// command: "watch", "learning" (with on) or "restart".
export const command = (name, camera, more = {}) => api.post(`commands/camera/${name}`, { camera, ...more });

// What a new camera begins with; the rest is the box's default.
export function newDraft() {
  return {
    url: "", record_url: null, credentials: null, name: "", id: "", task: "detection", classes: [], fps: 5, zones: {}, masks: [], objects: { lines: {}, snapshots: true },
    recording: { clips: true, pre_s: 5, post_s: 5, keep_days: null }, schedule: { time_zone: "", watch: [], learn: [] }, learning: true,
  };
}

// What the box says of a camera, as the forms want it: everything they ask for is there.
export function draftOf(entry) {
  const empty = newDraft();
  const told = Object.fromEntries(Object.keys(empty).filter((key) => entry[key] !== undefined && entry[key] !== null).map((key) => [key, entry[key]]));
  const inner = (key) => ({ ...empty[key], ...(told[key] || {}) });
  return { ...empty, ...told, objects: inner("objects"), recording: inner("recording"), schedule: inner("schedule") };
}

// A draft as the box wants it: without what was left empty.
export const documentOf = (draft) => Object.fromEntries(Object.entries(draft).filter(([, value]) => value !== null));

// "Gate, north" -> "gate-north": what may name folders and topics.
export function idOf(name) {
  const plain = name.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  return plain.replace(/[^a-z0-9_-]+/g, "-").replace(/^[-_]+|-+$/g, "").slice(0, 63);
}
