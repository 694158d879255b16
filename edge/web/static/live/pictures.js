// Pictures that renew themselves, gently: one request at a time for each, only for what is on the screen of a visible tab, only when the
// camera has a newer frame, and no wider than it is shown.

const LOOK_MS = 125;
const WIDTHS_PX = [240, 320, 480, 640, 960, 1280, 1920];

// pictures = new Pictures(); picture = pictures.add(img, id, {most_fps}); picture.newest(frames) as statuses come; pictures.stop() at the end.
export class Pictures {
  constructor() {
    this.all = new Set();
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.target.onScreen = entry.isIntersecting;
    }, { rootMargin: "80px" });
    this.timer = setInterval(() => { if (!document.hidden) for (const picture of this.all) picture.renew(); }, LOOK_MS);
  }

  add(img, camera, { mostFps, onPicture = () => {} }) {
    const picture = new Picture(img, camera, mostFps, onPicture);
    this.all.add(picture);
    this.seen.observe(img.parentElement);
    return picture;
  }

  drop(picture) {
    this.all.delete(picture);
    this.seen.unobserve(picture.img.parentElement);
  }

  stop() {
    clearInterval(this.timer);
    this.seen.disconnect();
    for (const picture of this.all) picture.img.removeAttribute("src");
    this.all.clear();
  }
}

class Picture {
  constructor(img, camera, mostFps, onPicture) {
    Object.assign(this, { img, camera, leastMs: 1000 / mostFps, frames: 0, shown: 0, waiting: false, asked: 0, plain: false });
    img.addEventListener("load", () => { this.waiting = false; onPicture(true); });
    img.addEventListener("error", () => { this.waiting = false; });
  }

  newest(frames) {
    if (frames < this.shown) this.shown = 0;  // the box has begun anew
    this.frames = frames;
  }

  // plain: without the boxes.
  setPlain(plain) { this.plain = plain; this.shown = 0; }

  renew() {
    const now = performance.now();
    if (this.waiting || !this.frames || this.shown === this.frames || now - this.asked < this.leastMs) return;
    if (!this.img.parentElement.onScreen) return;
    this.waiting = true;
    this.asked = now;
    this.shown = this.frames;
    const query = new URLSearchParams({ n: this.frames, width: this.width(), ...(this.plain ? { boxes: "false" } : {}) });
    this.img.src = `/api/v1/cameras/${encodeURIComponent(this.camera)}/picture.jpg?${query}`;
  }

  // One of few widths, so that viewers with different windows share what was encoded.
  width() {
    const wanted = this.img.parentElement.clientWidth * Math.min(2, window.devicePixelRatio || 1);
    return WIDTHS_PX.find((width) => width >= wanted * 0.9) || WIDTHS_PX.at(-1);
  }
}
