"use strict";
// Charts without a time axis: trees of boxes, points and the worker map. Bokeh draws them; this script fits boxes
// and labels to the view, and describes what is under the pointer.

// A page colour by name, in the current scheme.
function paintOf(name) {
  const variable = name === "ink" || name === "quiet" ? `--${name}` : `--rc-${name}`;
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

function partsOf(colour) {
  const value = Number.parseInt(colour.slice(1), 16);
  return [value >> 16, (value >> 8) & 0xff, value & 0xff];
}

// A colour at this opacity on the page.
function faded(parts, share) {
  const ground = partsOf(getComputedStyle(document.documentElement).getPropertyValue("--paper").trim());
  return parts.map((part, place) => Math.round(share * part + (1 - share) * ground[place]));
}

// Black or white, whichever has more contrast with a colour (WCAG 2).
function inkOn(parts) {
  const linear = parts.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

// Colours at each opacity are computed once per scheme.
function painter() {
  const known = new Map();
  return (name, share) => {
    const key = `${name} ${share}`;
    if (!known.has(key)) known.set(key, faded(partsOf(paintOf(name)), share));
    return known.get(key);
  };
}

// Lets users choose what to show, if there is a choice.
function addChoice(name, labels, chosen) {
  if (labels.length < 2) return;
  const label = document.createElement("label");
  const choice = document.createElement("select");
  labels.forEach((text, place) => choice.append(new Option(text, place)));
  choice.addEventListener("change", () => chosen(Number(choice.value)));
  label.className = "controls";
  label.append("Show ", choice);
  document.getElementById(`plot-${name}`).before(label);
}

// A link to a chart may choose what it shows.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-measure]");
  if (!link) return;
  for (const choice of document.querySelectorAll(`${link.getAttribute("href")} .controls select`)) {
    const found = [...choice.options].find((option) => option.text === link.dataset.measure);
    if (!found || found.selected) continue;
    choice.value = found.value;
    choice.dispatchEvent(new Event("change"));
  }
});

class BoxTree {
  static LETTER = 6.7; // pixels, on average
  static INK = Object.assign(document.createElement("canvas").getContext("2d"), { font: "12px helvetica" });
  static NARROWEST = 0.6;
  static PALE = 0.55;

  constructor(kit, name, figure, doc, view) {
    Object.assign(this, { figure, view, about: kit.told[name] });
    const choose = (place) => {
      Object.assign(this, this.about.trees[place]);
      this.count = this.left.length;
    };
    choose(0);
    addChoice(name, this.about.trees.map((tree) => tree.label), (place) => {
      choose(place);
      this.zoom(0);
    });
    this.boxes = doc.get_model_by_name(`${name}-boxes`);
    this.labels = doc.get_model_by_name(`${name}-labels`);
    this.at = 0;
  }

  window() {
    return [this.left[this.at], this.left[this.at] + this.width[this.at]];
  }

  zoom(at) {
    this.at = at;
    const [start, end] = this.window();
    this.figure.x_range.setv({ start, end });
    this.draw();
  }

  draw() {
    const [from, to] = this.window();
    const pixel = (to - from) / Math.max(this.view.frame.bbox.width, 1);
    const paint = painter();
    const boxes = { left: [], right: [], top: [], bottom: [], colour: [] };
    const labels = { x: [], y: [], text: [], colour: [] };
    for (let box = 0; box < this.count; box++) {
      const left = Math.max(this.left[box], from);
      const right = Math.min(this.left[box] + this.width[box], to);
      const wide = (right - left) / pixel;
      if (wide < BoxTree.NARROWEST) continue;
      const share = this.pale[box] ? BoxTree.PALE : 1;
      const parts = paint(this.paint[box], share);
      boxes.left.push(left);
      boxes.right.push(right - (wide > 3 ? pixel : 0));
      boxes.top.push(this.depth[box] + 0.03);
      boxes.bottom.push(this.depth[box] + 0.97);
      boxes.colour.push(`rgb(${parts.join(",")})`);
      let letters = Math.floor((wide - 8) / BoxTree.LETTER);
      while (letters > 2 && BoxTree.INK.measureText(this.shortened(box, letters)).width > wide - 8) letters--;
      if (letters < 3) continue;
      const name = this.shortened(box, letters);
      labels.x.push(left + 4 * pixel);
      labels.y.push(this.depth[box] + 0.5);
      labels.text.push(name.replace(/[$\\]/g, (sign) => `${sign}\u200b`));
      labels.colour.push(inkOn(parts));
    }
    this.boxes.data = boxes;
    this.labels.data = labels;
  }

  // The end of a file name says more than its beginning.
  shortened(box, letters) {
    const name = this.name[box];
    if (name.length <= letters) return name;
    return name.includes("/") ? `…${name.slice(1 - letters)}` : `${name.slice(0, letters - 1)}…`;
  }

  find(x, y) {
    const depth = Math.floor(y);
    for (let box = 0; box < this.count; box++) {
      if (this.depth[box] === depth && this.left[box] <= x && x < this.left[box] + this.width[box]) return box;
    }
    return -1;
  }

  tell(x, y) {
    const box = this.find(x, y);
    return box < 0 ? null : this.tip[box].map((line, place) => (place ? [line] : [line, paintOf(this.paint[box])]));
  }

  click(x, y) {
    const box = this.find(x, y);
    if (box >= 0) this.zoom(box);
  }

  // The box to which a key moves.
  step(key) {
    const inside = (box, other) => this.left[other] >= this.left[box] - 1e-9
      && this.left[other] + this.width[other] <= this.left[box] + this.width[box] + 1e-9;
    const all = Array.from({ length: this.count }, (_, box) => box);
    const level = all.filter((box) => this.depth[box] === this.depth[this.at]);
    const place = level.indexOf(this.at);
    return {
      Home: 0,
      ArrowUp: all.find((box) => this.depth[box] === this.depth[this.at] - 1 && inside(box, this.at)),
      ArrowDown: all.find((box) => this.depth[box] === this.depth[this.at] + 1 && inside(this.at, box)),
      ArrowLeft: level[place - 1],
      ArrowRight: level[place + 1],
    }[key];
  }

  key(key) {
    const next = this.step(key);
    if (next === undefined) return null;
    this.zoom(next);
    return this.tip[next].join(", ");
  }

  static KEYS = "arrow keys move up, down and sideways, Home shows everything";
}

class Points {
  static NEAR = 10; // pixels

  constructor(kit, name, figure, doc, view) {
    this.view = view;
    this.kinds = Object.entries(kit.told[name]).map(([kind, tips]) => [tips, doc.get_model_by_name(`points-${kind}`).data, kind]).reverse();
  }

  draw() {}

  tell(x, y) {
    const { x_scale: across, y_scale: up } = this.view.frame;
    let best = null;
    let near = Points.NEAR;
    for (const [tips, data, kind] of this.kinds) {
      tips.forEach((lines, place) => {
        const far = Math.hypot(across.compute(data.x[place]) - across.compute(x), up.compute(data.y[place]) - up.compute(y));
        if (far < near) [near, best] = [far, [lines, kind]];
      });
    }
    if (!best) return null;
    const [[first, ...others], kind] = best;
    return [[first, paintOf(kind === "usual" ? "computing" : "trouble")], ...others.map((line) => [line])];
  }
}

class WorkerMap {
  static MOST_LABELS = 24;

  constructor(kit, name, figure, doc) {
    Object.assign(this, { kit, about: kit.told[name], figure, measure: 0 });
    this.source = doc.get_model_by_name("heat-map");
    this.axis = figure.left.find((item) => item.ticker);
    this.nameRows();
    addChoice(name, this.about.maps.map(([measure]) => measure), (place) => {
      this.measure = place;
      this.draw();
    });
  }

  workersOf(row) {
    const { rows, workers } = this.about;
    return workers.filter((_, place) => Math.floor((place * rows) / workers.length) === row);
  }

  nameRows() {
    const { rows, slow, workers } = this.about;
    const name = (worker) => `${this.kit.label(this.kit.told.names[worker] ?? worker)}${slow[worker] ? ` ×${slow[worker]}` : ""}`;
    const step = Math.ceil(rows / WorkerMap.MOST_LABELS);
    const shown = rows === workers.length ? Array.from({ length: rows }, (_, row) => row).filter((row) => row % step === 0 || slow[workers[row]]) : [];
    this.axis.major_label_overrides = new Map(shown.map((row) => [row, name(workers[row])]));
    this.axis.ticker.ticks = shown;
    if (!shown.length) this.axis.axis_label = `${this.kit.digits(workers.length)} workers`;
  }

  draw() {
    const { rows, columns, seconds, paint } = this.about;
    const { ndarray } = Bokeh.require("core/util/ndarray");
    const [red, green, blue] = partsOf(paintOf(paint));
    const [, shares] = this.about.maps[this.measure]; // percent, or -1 if unknown
    const image = Uint32Array.from(shares, (share) => {
      const alpha = Math.round(2.55 * Math.max(share, 0));
      return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
    });
    const shown = ndarray(image.buffer, { dtype: "uint32", shape: [rows, columns] });
    this.source.data = { image: [shown], x: [0], y: [-0.5], dw: [seconds], dh: [rows] };
  }

  tell(x, y) {
    const { rows, columns, seconds, maps, slow } = this.about;
    const [row, column] = [Math.round(y), Math.floor((x / seconds) * columns)];
    if (row < 0 || row >= rows || column < 0 || column >= columns) return null;
    const { digits, duration, told } = this.kit;
    const [measure, shares] = maps[this.measure];
    const share = shares[row * columns + column];
    const amount = share < 0 ? "unknown" : `${share} %`;
    const of = this.workersOf(row);
    const names = of.length > 1 ? [[`${of.length} workers, starting with ${told.names[of[0]] ?? of[0]}`]] : [[told.names[of[0]] ?? of[0]], [of[0]]];
    const factor = of.length === 1 && slow[of[0]] ? [[`chunks take ${slow[of[0]]} times as long as on other workers`]] : [];
    return [...names, [`${measure}: ${amount}`, paintOf(this.about.paint)], [`after ${duration(x)}`], ...factor];
  }
}

const SHAPES = { flame: BoxTree, icicle: BoxTree, points: Points, heat: WorkerMap };
