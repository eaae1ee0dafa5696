"use strict";
// Sorting, filtering and the distribution of a chosen site. Text from the run is only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const element = (name, attributes) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

for (const table of document.querySelectorAll("table.sortable")) {
  for (const button of table.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const header = button.closest("th"), column = header.cellIndex, body = table.tBodies[0];
      const down = header.getAttribute("aria-sort") !== "descending";
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const [p, q] = [Number(x), Number(y)];
        const order = Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y, undefined, { numeric: true }) : p - q;
        return down ? -order : order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  }
}

const filter = document.getElementById("filter"), kind = document.getElementById("kind");
const rows = [...document.querySelectorAll("#sites tbody tr")];
function narrow() {
  const wanted = filter.value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const fits = row.textContent.toLowerCase().includes(wanted) && (!kind.value || row.dataset.kind === kind.value);
    row.hidden = !fits;
    shown += fits;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length} sites shown`;
}
if (filter) {
  filter.addEventListener("input", narrow);
  kind.addEventListener("change", narrow);
}

const cells = [...document.querySelectorAll(".cell")];
function color(by) {
  for (const cell of cells) {
    const shade = cell.dataset[by];
    cell.toggleAttribute("data-shade", shade !== undefined && shade !== "");
    cell.style.setProperty("--shade", shade || 0);
    cell.classList.toggle("strong", Number(shade) > 0.55);
  }
}
for (const choice of document.querySelectorAll("input[name=color]")) {
  choice.addEventListener("change", () => color(choice.value));
  if (choice.checked) color(choice.value);
}

function draw(site, width) {
  const height = 250, left = 8, right = 8, bottom = 56, top = 12;
  const picture = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  picture.setAttribute("aria-label", `Distribution of the activations at ${site.site} and the levels that code them`);
  const counts = site.histogram, bins = counts.length, wide = (2 * site.span) / bins;
  const used = counts.map((n, i) => (n ? i : -1)).filter((i) => i >= 0);
  const low = Math.min(-0.2, -site.span + wide * Math.max(0, used[0] - 2));
  const high = Math.max(0.2, -site.span + wide * Math.min(bins, used[used.length - 1] + 3));
  const x = (c) => left + ((c - low) / (high - low)) * (width - left - right);
  const base = height - bottom, most = Math.log1p(Math.max(...counts));
  counts.forEach((n, i) => {
    if (!n) return;
    const start = x(-site.span + i * wide), tall = (Math.log1p(n) / most) * (base - top);
    picture.append(element("rect", { class: "bar", x: start, y: base - tall, width: Math.max(1, x(-site.span + (i + 1) * wide) - start - 1), height: tall }));
  });
  picture.append(element("line", { class: "axis", x1: left, x2: width - right, y1: base, y2: base }));
  const label = (text, at, y) => {
    const made = element("text", { class: "tick", x: at, y, "text-anchor": "middle" });
    made.textContent = text;
    picture.append(made);
  };
  let last = [-99, -99];
  for (const sign of [-1, 1]) {
    const step = site.steps[sign > 0 ? 0 : 1];
    if (!step) continue;
    for (const level of [...(sign > 0 ? [0] : []), ...site.levels]) {
      const at = Math.asinh(sign * level);
      if (at < low || at > high) continue;
      picture.append(element("line", { class: "level", x1: x(at), x2: x(at), y1: base - (level ? 8 : 0), y2: base + 8 }));
      if (Math.abs(x(at) - last[sign > 0 ? 1 : 0]) > 44) {
        label(String(sign * level), x(at), base + 21);
        label((sign * level * step).toPrecision(2), x(at), base + 36);
        last[sign > 0 ? 1 : 0] = x(at);
      }
    }
  }
  label("level fired, and the activation it stands for", width / 2, height - 4);
  return picture;
}

function choose(index) {
  const site = data.sites[index], place = document.getElementById("distribution");
  for (const cell of cells) cell.setAttribute("aria-pressed", String(Number(cell.dataset.index) === index));
  for (const row of rows) row.classList.toggle("chosen", Number(row.dataset.index) === index);
  document.getElementById("chosen-site").textContent = site.site;
  const words = document.getElementById("chosen-words");
  place.replaceChildren();
  if (!site.histogram) {
    words.textContent = `${site.neuron}. No distribution was measured here.`;
    return;
  }
  const share = (x) => `${(100 * x).toFixed(1)} %`;
  words.textContent = `${site.neuron}. Signal to noise ${site.snr_db.toFixed(1)} dB; of the error ${share(site.fine)} lies between consecutive levels, ${share(site.tail)} between sparse ones, ${share(site.clipping)} beyond the largest.` +
    (site.row_loss == null ? "" : ` Softmax rows lose ${share(site.row_loss)} of their sum.`);
  place.append(draw(site, Math.max(300, place.clientWidth)));
}
for (const button of document.querySelectorAll("[data-choose]")) {
  button.addEventListener("click", () => choose(Number(button.dataset.choose)));
}
if (data.sites && data.sites.length) {
  const first = data.sites.findIndex((site) => site.histogram);
  choose(Math.max(first, 0));
}
