"use strict";
// Sortable, filterable tables. A row is a list of [text, number or null, link address]; text is inserted as text.
{
  const STEP = 100;
  const LONGEST_WORD = 40; // as in frame.py

  function counted(rows) {
    return `${rows.toLocaleString("en")} row${rows === 1 ? "" : "s"}`;
  }

  function rowsIn(body) {
    return Array.from(body.rows, (row) =>
      Array.from(row.cells, (cell) => {
        const value = "v" in cell.dataset ? Number(cell.dataset.v) : null;
        return [cell.textContent, value, cell.querySelector("a")?.getAttribute("href")];
      }));
  }

  function rowElement(cells, numeric) {
    const row = document.createElement("tr");
    cells.forEach(([text, value, target], place) => {
      const cell = row.insertCell();
      if (target) {
        const link = element("a", text);
        link.href = target;
        cell.append(link);
      } else cell.textContent = text;
      if (value !== null) cell.dataset.v = value;
      else if (numeric[place]) cell.className = "unknown";
      else if (text.length > LONGEST_WORD) cell.className = "long";
    });
    return row;
  }

  // Unknown values come last in both directions.
  function order(place, numeric, sign) {
    if (!numeric) return (one, other) => sign * one[place][0].localeCompare(other[place][0], "en", { numeric: true });
    return (one, other) => {
      const [a, b] = [one[place][1], other[place][1]];
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (a - b);
    };
  }

  function element(kind, text) {
    const made = document.createElement(kind);
    made.textContent = text;
    return made;
  }

  class SortedTable {
    constructor(container) {
      this.table = container.querySelector("table");
      this.body = this.table.tBodies[0];
      this.rows = rowsIn(this.body);
      this.heads = Array.from(this.table.tHead.rows[0].cells);
      this.numeric = this.heads.map((head) => head.classList.contains("number"));
      this.sorting = null;
      this.shown = this.rows.length;
      this.heads.forEach((head, place) => this.makeSortable(head, place));
      this.addControls(container);
      this.packed = container.querySelector("script.more");
      if (this.packed) this.unpack();
      else this.tell(this.rows.length);
      this.sayWhetherItScrolls(container.querySelector(".wide"));
    }

    sayWhetherItScrolls(region) {
      const hint = element("p", "Scroll sideways for more columns.");
      hint.className = "quiet scrolls";
      region.after(hint);
      new ResizeObserver(() => { hint.hidden = region.scrollWidth <= region.clientWidth + 1; }).observe(region);
    }

    // Shows the rows that contain all of these words.
    search(words) {
      this.filter.value = words;
      this.show();
      return this.found().length;
    }

    async unpack() {
      this.rows = this.rows.concat(await unpacked(this.packed).json());
      this.packed.remove();
      this.show();
    }

    makeSortable(head, place) {
      if (!head.textContent) return; // columns without a name get no button
      const button = element("button", head.textContent);
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => this.sort(head, place));
    }

    sort(head, place) {
      const first = this.numeric[place] ? "descending" : "ascending";
      const second = first === "descending" ? "ascending" : "descending";
      const direction = head.getAttribute("aria-sort") === first ? second : first;
      for (const other of this.heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction);
      this.sorting = order(place, this.numeric[place], direction === "ascending" ? 1 : -1);
      this.show();
    }

    addControls(container) {
      const controls = element("div", "");
      controls.className = "controls";
      const label = element("label", "Filter ");
      this.filter = element("input", "");
      this.filter.type = "search";
      this.filter.addEventListener("input", () => this.show());
      label.append(this.filter);
      this.count = element("span", "");
      this.count.className = "quiet";
      this.count.setAttribute("role", "status");
      this.more = element("button", "");
      this.more.type = "button";
      this.more.addEventListener("click", () => { this.shown += STEP; this.show(); });
      controls.append(label, this.count, this.more);
      container.prepend(controls);
    }

    found() {
      const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = (row) => {
        const text = row.map((cell) => cell[0]).join("\n").toLowerCase();
        return words.every((word) => text.includes(word));
      };
      const rows = words.length ? this.rows.filter(fits) : this.rows.slice();
      return this.sorting ? rows.sort(this.sorting) : rows;
    }

    show() {
      const rows = this.found();
      this.body.replaceChildren(...rows.slice(0, this.shown).map((row) => rowElement(row, this.numeric)));
      this.tell(rows.length);
    }

    tell(found) {
      const shown = Math.min(found, this.shown);
      const total = counted(this.rows.length);
      const of = found === this.rows.length ? total : `${found.toLocaleString("en")} of ${total}`;
      this.count.textContent = shown < found ? `${of}, ${shown.toLocaleString("en")} shown` : of;
      this.more.hidden = shown === found;
      this.more.textContent = `Show ${Math.min(STEP, found - shown)} more`;
    }
  }

  const tables = Array.from(document.querySelectorAll(".table"), (container) => {
    const made = new SortedTable(container);
    if (made.rows.length < 5 && !made.packed) made.filter.parentElement.hidden = true;
    return [container, made];
  });

  // Collapsed sections

  const folds = Array.from(document.querySelectorAll("details.fold"));

  function unfoldTarget() {
    const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    const fold = target?.closest("details.fold");
    if (!fold) return;
    fold.open = true;
    fold.scrollIntoView();
  }
  addEventListener("hashchange", unfoldTarget);
  unfoldTarget();

  function searchAll(words) {
    let rows = 0;
    const having = new Set();
    for (const [container, made] of tables) {
      const found = made.search(words);
      rows += found;
      container.hidden = Boolean(words) && !found;
      if (found) having.add(container.closest("details.fold"));
    }
    for (const fold of folds) {
      fold.hidden = Boolean(words) && !having.has(fold);
      fold.open = Boolean(words) && having.has(fold);
    }
    return rows;
  }

  const search = document.getElementById("search");
  if (search) {
    const found = document.getElementById("found");
    let waiting = null;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        const words = search.value.trim();
        const rows = searchAll(words);
        found.textContent = words ? `${counted(rows)} found` : "";
      }, 150);
    });
    const unfold = document.getElementById("unfold");
    unfold.addEventListener("click", () => {
      const open = folds.some((fold) => !fold.open);
      for (const fold of folds) fold.open = open;
      unfold.textContent = open ? "Collapse all" : "Expand all";
    });
  }
}
