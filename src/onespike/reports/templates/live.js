"use strict";
// Asks this server about one input at a time. What comes back is only ever set as text, numbers and data: images.
const facts = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const element = (name, attributes, text = "") => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
};
const paragraph = (text) => Object.assign(document.createElement("p"), { textContent: text });
const joules = (pj) => {
  for (const [unit, size] of [["J", 1e12], ["mJ", 1e9], ["µJ", 1e6], ["nJ", 1e3]])
    if (pj >= size) return `${(pj / size).toPrecision(3)} ${unit}`;
  return `${pj.toPrecision(3)} pJ`;
};
const session = { count: 0, spent: 0, original: 0 };
let last = null, running = false, waiting = false;

const slider = find("scale");
const scale = () => Math.min(1, facts.scale * 4 ** (slider.value / 100));
function showScale() { find("scale-shown").textContent = scale().toPrecision(3); }

async function ask() {
  if (last === null) return;
  if (running) { waiting = true; return; }
  running = true;
  find("status").textContent = "Both networks are running …";
  const options = new URLSearchParams(last.options);
  if (slider && slider.value !== "0") options.set("scale", String(scale()));
  try {
    const reply = await fetch(`answer?${options}`, { method: "POST", body: last.body, headers: { "X-Onespike": "live" } });
    const found = await reply.json();
    if (reply.ok) show(found);
    find("status").textContent = reply.ok ? `Done; ${found.sites.length} sites spiked.` : found.error;
  } catch (error) {
    find("status").textContent = "The server does not answer. Start it again: onespike serve";
  }
  running = false;
  if (waiting) { waiting = false; ask(); }
}

function show(found) {
  const { answer } = found;
  find("pictures").replaceChildren(...Object.entries(answer.pictures).map(([name, source]) => {
    const shown = new Image();
    shown.src = source;
    shown.alt = name;
    return shown;
  }));
  find("pictures").classList.toggle("pictures", Object.keys(answer.pictures).length > 1);
  find("label").textContent = answer.label ?? "";
  find("words").replaceChildren(...answer.text.map(paragraph));
  find("agree").textContent = answer.agree ? "They agree." : "They differ.";
  find("agree").className = answer.agree ? "" : "differ";
  find("measured").hidden = false;
  const spent = (found.ratio ?? 0) * found.original_pj;
  session.count += 1;
  session.spent += spent;
  session.original += found.original_pj;
  find("joules").textContent = joules(spent);
  find("original").textContent = joules(found.original_pj);
  find("saved").textContent = joules(session.spent);
  find("count").textContent = session.count === 1 ? "1 input" : `${session.count} inputs`;
  find("total").textContent = joules(session.original);
  drawSpikes(found.sites);
  drawCurve(found);
}

function drawSpikes(sites) {
  const blocks = new Map();
  for (const site of sites) blocks.set(site.block, [...(blocks.get(site.block) ?? []), site]);
  find("spikes").replaceChildren(...[...blocks].map(([name, members]) => {
    const row = document.createElement("div"), cells = document.createElement("div");
    row.className = "row";
    cells.className = "cells";
    row.append(Object.assign(document.createElement("span"), { textContent: name }), cells);
    for (const site of members) {
      const figure = document.createElement("figure"), canvas = document.createElement("canvas");
      const { width, height, bytes } = site.picture, values = atob(bytes);
      Object.assign(canvas, { width, height, title: site.site });
      const context = canvas.getContext("2d"), image = context.createImageData(width, height);
      for (let i = 0; i < values.length; i += 1) {
        const dark = values.charCodeAt(i) / 255;
        image.data.set([255 - 255 * dark, 255 - 172 * dark, 255 - 110 * dark, 255], 4 * i);
      }
      context.putImageData(image, 0, 0);
      const caption = document.createElement("figcaption");
      const short = site.site.startsWith(name) ? site.site.slice(name.length).replace(/^[.:]/, "") : site.site;
      caption.append(...short.split(/(?<=[.:])/).flatMap((part) => [part, document.createElement("wbr")]), ` ${site.spikes.toPrecision(2)}`);
      figure.append(canvas, caption);
      cells.append(figure);
    }
    return row;
  }));
}

let drawing = 0;
function drawCurve(found) {
  const sums = [0];
  for (const site of found.sites) sums.push(sums[sums.length - 1] + site.share);
  const others = Object.values(found.others).reduce((a, b) => a + b, 0);
  if (others) sums.push(sums[sums.length - 1] + others);
  const top = Math.max(sums[sums.length - 1], 1e-9), left = 60, width = 570, height = 160;
  const x = (i) => left + (width * i) / (sums.length - 1), y = (v) => 175 - (height * v) / top;
  const mine = (drawing += 1), started = performance.now();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const frame = (now) => {
    if (mine !== drawing) return;
    const part = still ? 1 : Math.min(1, Math.max(0, now - started) / 900), steps = part * (sums.length - 1), whole = Math.floor(steps);
    const points = sums.slice(0, whole + 1).map((v, i) => [x(i), y(v)]);
    let reached = sums[whole];
    if (whole < sums.length - 1) {
      reached += (steps - whole) * (sums[whole + 1] - sums[whole]);
      points.push([x(steps), y(reached)]);
    }
    const path = points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ");
    const end = points[points.length - 1][0].toFixed(1);
    find("curve").replaceChildren(
      element("line", { class: "whole", x1: left, x2: left + width, y1: y(top), y2: y(top) }),
      element("polygon", { class: "under", points: `${left},175 ${path} ${end},175` }),
      element("polyline", { class: "spent", points: path }),
      element("text", { x: 4, y: y(top) + 4 }, top.toPrecision(3)),
      element("text", { x: 4, y: 179 }, "0"),
      element("text", { x: left, y: 195 }, found.sites[0]?.site ?? ""),
      element("text", { x: left + width, y: 195, "text-anchor": "end" }, others ? "beside spikes" : found.sites[found.sites.length - 1]?.site ?? ""),
    );
    find("ratio").textContent = found.ratio === null ? "–" : (part < 1 ? reached : found.ratio).toFixed(3);
    if (part < 1) requestAnimationFrame(frame);
  };
  frame(started);
}

function take(file) {
  if (!file) return;
  const suffix = /\.[^.]*$/.exec(file.name)?.[0] ?? "";
  last = { options: { suffix }, body: file };
  ask();
}
if (slider) {
  showScale();
  slider.addEventListener("input", () => { showScale(); ask(); });
}
if (find("file")) {
  const drop = find("drop");
  find("file").addEventListener("change", (event) => take(event.target.files[0]));
  for (const [name, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", over);
      if (name === "drop") take(event.dataTransfer.files[0]);
    });
  }
}
if (find("text")) {
  find("send").addEventListener("click", () => {
    last = { options: { suffix: ".txt" }, body: find("text").value };
    ask();
  });
}
for (const button of document.querySelectorAll("[data-sample]")) {
  button.addEventListener("click", () => {
    last = { options: { sample: button.dataset.sample }, body: "" };
    ask();
  });
}
