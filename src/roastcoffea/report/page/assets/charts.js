"use strict";
// Charts drawn by Bokeh; this script fills the task stream for the visible window, and describes what is under the pointer.
{
  const MOST_BARS = 5000; // maximum number of visible tasks drawn as individual bars
  const SETTLED = 120; // milliseconds without a move after which the stream is redrawn
  const MARGIN = 0.5; // extra width drawn on each side, as a fraction of the window, so that dragging shows no gap
  const MOST_LABELS = 24;
  const PAPER = 690; // pixels between the margins of A4 and US letter
  const WIDE_BORDER = 100; // as in charts.py
  const KEYS = {
    ArrowLeft: "earlier", ArrowRight: "later", "+": "in", "=": "in", "-": "out", Home: "all", 0: "all",
  };

  let told = {}; // data from charts.py

  const narrow = () => innerWidth < 600;

  // Words

  const digits = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));

  // A whole number of small units, with sixty in each large unit.
  const sixties = (whole, large, small) => `${Math.floor(whole / 60)} ${large} ${whole % 60} ${small}`;

  function duration(seconds) {
    const size = Number(seconds.toPrecision(3));
    if (Math.round(seconds) >= 3600) return sixties(Math.round(seconds / 60), "h", "min");
    if (size >= 60) return sixties(Math.round(seconds), "min", "s");
    if (size >= 1 || size === 0) return `${digits(size)} s`;
    return size >= 1e-3 ? `${digits(1e3 * size)} ms` : `${digits(1e6 * size)} us`;
  }

  const percent = (share) => `${digits(100 * share)} %`;

  // Bokeh interprets $$x$$ and \(x\) as formulas.
  function label(name) {
    const [begin, end] = narrow() ? [1, 5] : [3, 8];
    const short = name.length > begin + end + 1 ? `${name.slice(0, begin)}…${name.slice(-end)}` : name;
    return short.replace(/[$\\]/g, (sign) => `${sign}\u200b`);
  }

  // Steps whose source holds only what is visible, because distant points slow down drawing.
  class Steps {
    constructor(source) {
      this.source = source;
      this.all = Object.fromEntries(Object.entries(source.data).map(([name, all]) => [name, Float64Array.from(all)]));
    }

    // Steps in a window and one more on each side, with the outermost steps shortened.
    show(from, to) {
      const length = to - from;
      const x = this.all.x;
      const first = Math.max(placeOf(x, from - length), 0);
      const last = Math.min(placeOf(x, to + length) + 2, x.length);
      const data = Object.fromEntries(Object.entries(this.all).map(([name, all]) => [name, all.slice(first, last)]));
      data.x = data.x.map((at) => Math.min(Math.max(at, from - 2 * length), to + 2 * length));
      this.source.data = data;
    }
  }

  // Tooltips

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  function showTip(lines, event) {
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map(([text, colour]) => {
      const line = document.createElement("div");
      if (colour) {
        const swatch = document.createElement("i");
        swatch.style.background = colour;
        line.append(swatch);
      }
      line.append(text);
      return line;
    }));
    const left = event.clientX + 16 + tip.offsetWidth < innerWidth ? event.clientX + 14 : event.clientX - tip.offsetWidth - 14;
    const top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.max(top, 4)}px`;
  }

  // Last index whose value does not exceed the given one.
  function placeOf(values, sought, from = 0, to = values.length) {
    let low = from;
    let high = to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= sought) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // A span between two times in milliseconds, with enough digits to distinguish them.
  function span(from, to) {
    const places = Math.min(Math.max(1 - Math.floor(Math.log10(Math.max(to - from, 1e-3) / 1e3)), 0), 6);
    const rounded = (moment) => Number((Math.max(moment, 0) / 1e3).toFixed(places));
    const word = (moment) => {
      const seconds = rounded(moment);
      const whole = [[3600, "h", Infinity], [60, "min", 3600]].filter(([size]) => rounded(to) >= size);
      const parts = whole.map(([size, name, most]) => `${Math.floor((seconds % most) / size)} ${name}`);
      return [...parts, `${(parts.length ? seconds % 60 : seconds).toFixed(places)} s`].join(" ");
    };
    return `${word(from)} to ${word(to)}`;
  }

  // Lines that describe the stack at a moment, largest part first.
  function tellStacked({ names, colours }, things, data, x) {
    const place = placeOf(data.x, x);
    if (place < 0 || place >= data.x.length - 1) return null;
    const amounts = names.map((name, number) => {
      const below = number ? data[number - 1][place] : 0;
      return [name, data[number][place] - below, paintOf(colours[number])];
    });
    const total = (data.total ?? data[names.length - 1])[place];
    const shown = amounts.filter(([, amount]) => amount > 1e-3 * total).sort((one, other) => other[1] - one[1]);
    return [
      [`${span(data.x[place], data.x[place + 1])}: ${digits(total)} ${things}`],
      ...shown.map(([name, amount, colour]) => [`${name} ${digits(amount)} (${percent(amount / total)})`, colour]),
    ];
  }

  function tellRates(rates, workers, x) {
    const lines = [];
    const place = placeOf(rates.x, x);
    if (place >= 0 && place < rates.x.length - 1) {
      lines.push([`${span(rates.x[place], rates.x[place + 1])}: ${digits(rates.rate[place])} ${told.rates.unit}`]);
    }
    const at = workers && x <= workers.x.at(-1) ? placeOf(workers.x, x) : -1;
    if (at >= 0) lines.push([`${digits(workers.workers[at])} workers`]);
    return lines.length ? lines : null;
  }

  // The task stream

  const PALER = 0.22; // for each quarter of a chunk's time spent waiting for a core or the GIL
  let colours = []; // of all classes, then of all paler classes, and so on
  let pixels = new Uint32Array(0); // bytes in the order red, green, blue, alpha

  function mixColours() {
    const classes = told.stream?.classes ?? [];
    const parts = [0, 1, 2, 3].flatMap((pale) => classes.map(([, family]) => faded(partsOf(paintOf(family)), 1 - PALER * pale)));
    colours = parts.map((part) => `rgb(${part.join(",")})`);
    pixels = Uint32Array.from(parts, ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0);
  }

  // Lines that describe a task or pixel, from its class and paleness.
  function tellKind(kind, seconds) {
    const { classes } = told.stream;
    const pale = Math.floor(kind / classes.length);
    const waited = ["", "25 to 50 %", "50 to 75 %", "over 75 %"][pale];
    const lines = [[`${classes[kind % classes.length][0]}, ${duration(seconds)}`, colours[kind]]];
    return waited ? [...lines, [`${waited} waiting for a core or the GIL`]] : lines;
  }

  // Every task: starts and ends in milliseconds, by lane and time.
  class Tasks {
    constructor({ tasks, steps, unit, kind, group, groups }) {
      Object.assign(this, { kind, group, groups });
      this.first = [0];
      for (const count of tasks) this.first.push(this.first.at(-1) + count);
      this.begin = new Float64Array(steps.length / 2);
      this.end = new Float64Array(steps.length / 2);
      let now = 0;
      steps.forEach((step, place) => {
        now += step;
        (place % 2 ? this.end : this.begin)[place >> 1] = 1e3 * unit * now;
      });
    }

    // Range of a lane's tasks that overlap a window.
    within(lane, from, to) {
      const [first, last] = [this.first[lane], this.first[lane + 1]];
      return [Math.max(placeOf(this.end, from, first, last) + 1, first), placeOf(this.begin, to, first, last) + 1];
    }

    visible(lanes, from, to) {
      let count = 0;
      for (let lane = lanes[0]; lane < lanes[1]; lane++) {
        const [first, last] = this.within(lane, from, to);
        count += last - first;
      }
      return count;
    }

    // A pixel shows a failure if there is one, otherwise the class that took most of it; mostly idle pixels stay empty.
    picture(lanes, from, to, rows, columns) {
      const image = new Uint32Array(rows * columns);
      const width = (to - from) / columns;
      const sums = new Float32Array(columns * (told.stream.classes.length + 1)); // the last one is for paleness
      for (let row = 0; row < rows; row++) {
        const [top, bottom] = [0, 1].map((edge) => lanes[0] + Math.floor(((row + edge) * (lanes[1] - lanes[0])) / rows));
        sums.fill(0);
        for (let lane = top; lane < bottom; lane++) this.addLane(lane, from, to, columns, sums);
        paintRow(image.subarray(row * columns, (row + 1) * columns), sums, (width * (bottom - top)) / 2);
      }
      return image;
    }

    addLane(lane, from, to, columns, sums) {
      const classes = told.stream.classes.length;
      const width = (to - from) / columns;
      const [first, last] = this.within(lane, from, to);
      for (let task = first; task < last; task++) {
        const [begin, end] = [Math.max(this.begin[task], from), Math.min(this.end[task], to)];
        const right = Math.min(Math.floor((end - from) / width), columns - 1);
        for (let column = Math.floor((begin - from) / width); column <= right; column++) {
          const left = from + column * width;
          const part = Math.min(end, left + width) - Math.max(begin, left) + 1e-9;
          const place = column * (classes + 1);
          sums[place + (this.kind[task] % classes)] += part;
          sums[place + classes] += part * Math.floor(this.kind[task] / classes);
        }
      }
    }

    tell(lane, x) {
      const [first, last] = [this.first[lane], this.first[lane + 1]];
      const task = placeOf(this.begin, x, first, last);
      if (task < first || this.end[task] < x) return null;
      const [begin, end] = [this.begin[task], this.end[task]];
      return [
        ...tellKind(this.kind[task], (end - begin) / 1e3),
        [span(begin, end)],
        ...this.groups[this.group[task]].map((word) => [word]),
      ];
    }
  }

  function paintRow(image, sums, half) {
    const classes = told.stream.classes.length;
    const failed = told.stream.classes.findIndex(([name]) => name === "failed");
    for (let column = 0; column < image.length; column++) {
      let [best, most, busy] = [-1, 0, 0];
      for (let kind = 0; kind < classes; kind++) {
        const sum = sums[column * (classes + 1) + kind];
        busy += sum;
        if (sum > most) [best, most] = [kind, sum];
      }
      const pale = Math.round(sums[column * (classes + 1) + classes] / busy);
      if (sums[column * (classes + 1) + failed] > 0) image[column] = pixels[failed];
      else if (best >= 0 && busy >= half) image[column] = pixels[best + classes * pale];
    }
  }

  // Sums per pixel, if there are too many tasks for bars.
  class Sums {
    constructor(about, lanes) {
      Object.assign(this, about, { lanes });
    }

    image() {
      return Uint32Array.from(this.kind, (kind) => (kind < 0 ? 0 : pixels[kind]));
    }

    tell(lane, x) {
      const row = Math.floor((lane * this.rows) / this.lanes);
      const column = Math.floor(x / 1e3 / this.seconds);
      if (column < 0 || column >= this.columns) return null;
      const place = row * this.columns + column;
      const lanes = Math.ceil(((row + 1) * this.lanes) / this.rows) - Math.ceil((row * this.lanes) / this.rows);
      const room = lanes * this.seconds;
      const lines = [
        [span(1e3 * column * this.seconds, 1e3 * (column + 1) * this.seconds)],
        [`${digits(lanes)} threads, busy for ${percent(this.busy[place] / 1e3)} of ${duration(room)}`],
      ];
      return this.kind[place] < 0 ? lines : [...lines, ...tellKind(this.kind[place], (this.most[place] / 1e3) * room)];
    }
  }

  class Stream {
    constructor(figure, doc) {
      this.figure = figure;
      this.about = told.stream;
      this.workers = this.about.workers;
      this.names = this.workers.map(([name]) => told.names[name] ?? name);
      this.firstLane = [];
      let lanes = 0;
      for (const [, threads] of this.workers) {
        this.firstLane.push(lanes);
        lanes += threads;
      }
      this.lanes = lanes;
      this.picture = doc.get_model_by_name("picture");
      this.bars = doc.get_model_by_name("bars");
      this.axis = figure.left.find((item) => item.ticker);
      this.holds = "tasks" in this.about ? new Tasks(this.about) : new Sums(this.about, lanes);
      this.drawn = null;
    }

    window() {
      const { x_range: x, y_range: y } = this.figure;
      const first = Math.max(Math.floor(Math.min(y.start, y.end) + 0.5), 0);
      return { from: x.start, to: x.end, lanes: [first, Math.min(Math.ceil(Math.max(y.start, y.end) + 0.5), this.lanes)] };
    }

    draw(size) {
      const window = this.window();
      this.nameLanes(window.lanes);
      if (this.holds instanceof Sums) {
        if (!this.drawn) this.setPicture(this.holds.image(), this.holds.rows, this.holds.columns, [0, this.lanes], 0, 1e3 * this.holds.seconds * this.holds.columns);
        this.drawn = window;
        return;
      }
      const aside = MARGIN * (window.to - window.from);
      const [from, to] = [window.from - aside, window.to + aside];
      if (this.holds.visible(window.lanes, from, to) <= MOST_BARS) this.setBars(window.lanes, from, to);
      else {
        this.clear(this.bars);
        const rows = Math.min(window.lanes[1] - window.lanes[0], size.height);
        const columns = Math.round(size.width * (1 + 2 * MARGIN));
        const image = this.holds.picture(window.lanes, from, to, rows, columns);
        this.setPicture(image, rows, columns, window.lanes, from, to);
      }
      this.drawn = window;
    }

    clear(source) {
      source.data = Object.fromEntries(Object.keys(source.data).map((name) => [name, []]));
    }

    setPicture(image, rows, columns, lanes, from, to) {
      const { ndarray } = Bokeh.require("core/util/ndarray");
      const shown = ndarray(image.buffer, { dtype: "uint32", shape: [rows, columns] });
      this.picture.data = { image: [shown], x: [from], y: [lanes[0] - 0.5], dw: [to - from], dh: [lanes[1] - lanes[0]] };
    }

    setBars(lanes, from, to) {
      const data = { left: [], right: [], top: [], bottom: [], colour: [] };
      for (let lane = lanes[0]; lane < lanes[1]; lane++) {
        const [first, last] = this.holds.within(lane, from, to);
        for (let task = first; task < last; task++) {
          data.left.push(this.holds.begin[task]);
          data.right.push(this.holds.end[task]);
          data.top.push(lane - 0.42);
          data.bottom.push(lane + 0.42);
          data.colour.push(colours[this.holds.kind[task]]);
        }
      }
      this.clear(this.picture);
      this.bars.data = data;
    }

    // Labels each worker at its first lane, if there is room for names.
    nameLanes(lanes) {
      const places = [];
      for (let worker = placeOf(this.firstLane, lanes[0]); worker < this.workers.length && this.firstLane[worker] < lanes[1]; worker++) {
        places.push(worker);
      }
      const shown = places.length <= MOST_LABELS ? places : [];
      const lane = (worker) => Math.max(this.firstLane[worker], lanes[0]);
      this.axis.major_label_overrides = new Map(shown.map((worker) => [lane(worker), label(this.names[worker])]));
      this.axis.ticker.ticks = shown.map(lane);
    }

    tell(x, y) {
      const lane = Math.round(y);
      if (lane < 0 || lane >= this.lanes) return null;
      const lines = this.holds.tell(lane, x);
      if (!lines) return null;
      const worker = placeOf(this.firstLane, lane);
      const [address] = this.workers[worker];
      return this.holds instanceof Sums ? lines : [...lines, [this.names[worker] === address ? address : `${this.names[worker]}, ${address}`]];
    }
  }

  // Moving the time window

  function move(range, how) {
    const length = range.end - range.start;
    const [low, high] = range.bounds;
    const whole = [0, (high - low) / 1.04];
    const middle = (range.start + range.end) / 2;
    const moved = {
      earlier: [range.start - length / 3, range.end - length / 3],
      later: [range.start + length / 3, range.end + length / 3],
      in: [middle - length / 4, middle + length / 4],
      out: [middle - length, middle + length],
      all: whole,
    }[how];
    const span = Math.min(moved[1] - moved[0], high - low);
    const start = Math.min(Math.max(moved[0], low), high - span);
    range.setv({ start, end: start + span });
  }

  // How each chart draws a window and describes a point.

  function ratesChart(figure, doc) {
    const rates = new Steps(figure.renderers[0].data_source);
    const counted = doc.get_model_by_name("workers");
    const workers = counted ? new Steps(counted) : null;
    const draw = (from, to) => [rates, workers].forEach((steps) => steps?.show(from, to));
    return { draw, tell: (x) => tellRates(rates.all, workers?.all, x) };
  }

  const stackedChart = (name, things) => (figure) => {
    const steps = new Steps(figure.renderers[0].data_source);
    return { draw: (from, to) => steps.show(from, to), tell: (x) => tellStacked(told[name], things, steps.all, x) };
  };

  function streamChart(figure, doc, view) {
    const stream = new Stream(figure, doc);
    const recolour = () => { stream.drawn = null; };
    return { draw: () => stream.draw(view.frame.bbox), tell: (x, y) => stream.tell(x, y), recolour };
  }

  const OVER_TIME = {
    rates: ratesChart, classes: stackedChart("classes", "threads"), datasets: stackedChart("datasets", "chunks"), stream: streamChart,
  };

  // The load event waits for a frame that is being written, so printed or captured pages include the charts.
  async function main() {
    const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true, title: "loading" }));
    frame.contentDocument.open();
    try {
      await drawAll();
    } finally {
      frame.contentDocument.close();
      frame.remove();
    }
  }

  async function drawAll() {
    told = await unpacked(document.getElementById("charts")).json();
    const render = { docid: "doc", roots: told.roots, root_ids: Object.keys(told.roots) };
    mixColours();
    const [views] = await Bokeh.embed.embed_items({ doc: told.doc }, [render]);
    const doc = Bokeh.documents.at(-1);
    const figures = new Map(doc.roots().map((figure) => [figure.name, figure]));
    const kit = { told, digits, duration, label };
    const charts = new Map();
    for (const [name, figure] of figures) {
      const view = views.get(figure);
      charts.set(name, OVER_TIME[name] ? OVER_TIME[name](figure, doc, view) : new SHAPES[name](kit, name, figure, doc, view));
    }
    const moving = new Map([...figures].filter(([name]) => OVER_TIME[name]));
    const range = moving.size ? moving.values().next().value.x_range : null;
    for (const [name, figure] of figures) {
      watchPointer(name, views.get(figure), charts.get(name));
      if (OVER_TIME[name]) watchKeys(name, range);
    }
    for (const [name, chart] of charts) if (chart.key) watchBoxes(name, views.get(figures.get(name)), chart);
    const drawMoving = () => moving.forEach((_, name) => charts.get(name).draw(range.start, range.end));
    if (range) watchWindow(range, moving, drawMoving);
    watchSizes([...charts].filter(([name]) => SHAPES[name]), () => fitBorders(figures));
    fitBorders(figures);
    const recolour = () => {
      mixColours();
      for (const figure of figures.values()) paintFigure(figure);
      charts.forEach((chart, name) => { chart.recolour?.(); if (SHAPES[name]) chart.draw(); });
      if (range) drawMoving();
      figures.forEach((figure) => repaintSoon(views.get(figure)));
    };
    recolour();
    document.addEventListener("scheme", recolour);
    fitPaper();
    figures.forEach((figure) => (views.get(figure).repaint ?? views.get(figure).paint).call(views.get(figure)));
    document.documentElement.dataset.charts = "drawn";
  }

  // Versions of Bokeh before 3.7 use a different name.
  function repaintSoon(view) {
    (view.request_repaint ?? view.request_render).call(view);
  }

  // Paints glyphs whose names request a page colour.
  function paintFigure(figure) {
    for (const renderer of figure.renderers) {
      if (!renderer.name?.startsWith("paint-")) continue;
      const value = paintOf(renderer.name.slice("paint-".length));
      const { glyph } = renderer;
      if ("fill_color" in glyph) glyph.fill_color = { value };
      if ("line_color" in glyph) glyph.line_color = { value };
    }
  }

  function watchSizes(charts, fit) {
    for (const [name, chart] of charts) {
      let waiting = null;
      new ResizeObserver(() => {
        clearTimeout(waiting);
        waiting = setTimeout(() => { fit(); chart.draw(); }, SETTLED);
      }).observe(document.getElementById(`plot-${name}`));
    }
  }

  const headingOf = (place) => place.closest("section").querySelector("h2").textContent;

  function watchPointer(name, view, chart) {
    const place = document.getElementById(`plot-${name}`);
    const at = (event) => {
      const box = view.el.getBoundingClientRect();
      const [sx, sy] = [event.clientX - box.left, event.clientY - box.top];
      return view.frame.bbox.contains(sx, sy) ? [view.frame.x_scale.invert(sx), view.frame.y_scale.invert(sy)] : null;
    };
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `Chart: ${headingOf(place)}, ${name}`);
    place.addEventListener("pointermove", (event) => {
      const point = event.buttons === 0 ? at(event) : null;
      showTip(point && chart.tell(...point), event);
    });
    place.addEventListener("pointerleave", () => showTip(null));
    if (!chart.click) return;
    place.addEventListener("click", (event) => {
      const point = at(event);
      if (point) chart.click(...point);
      showTip(null);
    });
  }

  function watchKeys(name, range) {
    const place = document.getElementById(`plot-${name}`);
    place.tabIndex = 0;
    place.setAttribute("role", "application");
    place.setAttribute("aria-label", `${name}: arrow keys pan in time, plus and minus zoom, Home shows the whole run`);
    place.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(range, KEYS[event.key]);
    });
  }

  function watchBoxes(name, view, chart) {
    const place = document.getElementById(`plot-${name}`);
    const said = document.createElement("p");
    said.className = "quiet";
    said.setAttribute("role", "status");
    place.after(said);
    place.tabIndex = 0;
    place.setAttribute("role", "application");
    place.setAttribute("aria-label", `${chart.about.label}: ${BoxTree.KEYS}`);
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const words = chart.key(event.key);
      if (words === null) return;
      event.preventDefault();
      said.textContent = words;
    });
  }

  // Narrow pages have no room for wide borders; trees have no borders.
  function fitBorders(figures) {
    const border = narrow() ? 52 : WIDE_BORDER;
    for (const figure of figures.values()) {
      if (figure.min_border_left > 1) figure.setv({ min_border_left: border, min_border_right: narrow() ? 12 : border });
      if (figure.name === "points") figure.below[0].ticker.desired_num_ticks = narrow() ? 2 : 4;
    }
  }

  function watchWindow(range, figures, draw) {
    let waiting = null;
    let held = false;
    const status = document.getElementById("window");
    const settled = () => {
      if (held) return;
      draw();
      status.textContent = span(range.start, range.end);
    };
    const later = () => {
      clearTimeout(waiting);
      waiting = setTimeout(settled, SETTLED);
    };
    // Do not redraw while the user drags, because that would make dragging jerky.
    addEventListener("pointerdown", () => { held = true; }, true);
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { held = false; later(); }, true);
    range.change.connect(later);
    figures.get("stream")?.y_range.change.connect(later);
    new ResizeObserver(later).observe(document.querySelector(".plot"));
    for (const button of document.querySelectorAll("[data-move]")) {
      button.addEventListener("click", () => move(range, button.dataset.move));
    }
    settled();
  }

  // Paper is narrower than a window, so charts are scaled down; there is no time to redraw them. Dark
  // charts keep their background.
  function fitPaper() {
    const root = document.documentElement;
    addEventListener("beforeprint", () => {
      const dark = getComputedStyle(root).colorScheme === "dark";
      root.style.setProperty("--print-zoom", Math.min(1, PAPER / document.querySelector(".plot").offsetWidth));
      root.style.setProperty("--print-ground", dark ? getComputedStyle(root).getPropertyValue("--paper") : "transparent");
    });
  }

  main();
}
