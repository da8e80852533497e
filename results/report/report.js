/* Makes report.html interactive: the timeline's zoom and read-out, stories in a panel, the filter of checks, copy buttons.
   The page is complete without it. It builds no markup from text: stories are copies of what the page has already. */
"use strict";
(() => {
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);
const seconds = (value) => `${value.toFixed(value >= 1000 ? 0 : 2)} s`;

/* --- the timeline: one range of time, two custom properties for the lanes and a scale for each chart --- */
const box = byId("timeline"), data = JSON.parse(byId("data").textContent);
const FAILED = "#e03131", GREY = "#808080", PRINT_PX = 700;
let from = 0, to = data.end_s;
const number = (element, name) => parseFloat(element.style.getPropertyValue(name));
const gutter = () => parseFloat(getComputedStyle(box).getPropertyValue("--gutter"));
const side = () => parseFloat(getComputedStyle(box).getPropertyValue("--side"));
const places = all(".chart", box), charts = [];

function clock(at, step) {
  const whole = Math.floor(at), two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (data.end_s <= 600 || step < 1) return String(+at.toFixed(2));
  return data.end_s < 3600 ? `${Math.floor(whole / 60)}:${two(whole % 60)}` : `${Math.floor(whole / 3600)}:${two(whole % 3600 / 60)}` + (step < 60 ? `:${two(whole % 60)}` : "");
}

function xAxis() {
  return { stroke: GREY, size: 22, gap: 2, font: "11px system-ui, sans-serif", ticks: { size: 4, stroke: GREY, width: 1 }, grid: { stroke: "#80808026", width: 1 },
    space: 70, incrs: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 864000],
    values: (_, splits, index, space, step) => splits.map((at) => clock(at, step)) };
}

function options(chart, width, height) {
  const limits = chart && chart.limits;
  return { width, height, padding: [chart ? 6 : 0, side(), 0, 0], legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false }, y: chart ? { distr: chart.log ? 3 : 1, range: () => limits } : { range: [0, 1] } },
    series: [{}, ...(chart ? chart.names.map((name, at) => ({ label: name, stroke: chart.colours[at], width: 1.4, points: { size: 3.5 } })) : [{ show: false }])],
    axes: [xAxis(), { show: true, stroke: GREY, size: gutter, font: "11px system-ui, sans-serif", grid: { show: !!chart, stroke: "#80808026", width: 1 }, ticks: { show: false }, filter: (_, splits) => splits, splits: chart && chart.log ? () => decades(limits) : undefined,
      values: (_, splits) => splits.map((value) => value === null || !chart ? "" : String(+value.toPrecision(6))) }],
    hooks: chart ? { drawClear: [(plot) => bands(plot)], draw: [(plot) => failures(plot, chart)] } : {} };
}

function decades([low, high]) {
  const splits = [];
  for (let at = low; at <= high; at *= 10) splits.push(at);
  return splits;
}

function bands(plot) {
  const { ctx, bbox } = plot;
  for (const [start, end, colour] of data.bands) {
    const left = Math.max(bbox.left, plot.valToPos(start, "x", true)), right = Math.min(bbox.left + bbox.width, plot.valToPos(end, "x", true));
    ctx.fillStyle = `${colour}38`;
    if (right > bbox.left && left < bbox.left + bbox.width) ctx.fillRect(left, bbox.top, Math.max(1, right - left), bbox.height);
  }
}

function failures(plot, chart) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio;
  ctx.fillStyle = FAILED;
  (chart.failed || []).forEach((count, at) => {
    const x = plot.valToPos(chart.x[at], "x", true);
    if (count && x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillRect(x - ratio, bbox.top, 2 * ratio, bbox.height / 10);
  });
}

/* Charts of one family share the limits of their values, so that clients can be compared by eye. */
for (const family of new Set(data.charts.map((chart) => chart.family))) {
  const related = data.charts.filter((chart) => chart.family === family);
  const values = related.flatMap((chart) => chart.y.flat()).filter((value) => value !== null);
  const low = Math.min(...values), high = Math.max(...values);
  const limits = !values.length ? [1, 10] : related[0].log ? [10 ** Math.floor(Math.log10(low)), high * 1.3] : [0, Math.max(high * 1.1, 1)];
  for (const chart of related) chart.limits = limits;
}

function draw() {
  const ruler = box.querySelector(".ruler");
  ruler.replaceChildren();
  charts.push(new uPlot(options(null, box.clientWidth, 26), [[0, data.end_s], [null, null]], ruler));
  for (const place of places) {
    const chart = data.charts[place.dataset.chart];
    charts.push(new uPlot(options(chart, box.clientWidth, 130), [chart.x, ...chart.y], place));
  }
}

function zoom(start, end) {
  const least = Math.min(data.end_s, Math.max(data.end_s / 5000, 0.02)), length = Math.min(data.end_s, Math.max(least, end - start));
  from = Math.min(Math.max(0, start + (end - start - length) / 2), data.end_s - length);
  to = from + length;
  box.style.setProperty("--from", from);
  box.style.setProperty("--len", length);
  for (const plot of charts) plot.setScale("x", { min: from, max: to });
  byId("shown").textContent = length === data.end_s ? "" : `${seconds(from)} to ${seconds(to)}`;
  box.querySelector('[data-zoom="all"]').disabled = length === data.end_s;
}

const moves = { in: () => scaled(0.5, (from + to) / 2), out: () => scaled(2, (from + to) / 2), left: () => pan(-0.25), right: () => pan(0.25), all: () => zoom(0, data.end_s) };
const scaled = (factor, at) => zoom(at - (at - from) * factor, at + (to - at) * factor);
function pan(share) {
  const by = Math.max(-from, Math.min(data.end_s - to, share * (to - from)));
  zoom(from + by, to + by);
}

function layout(width) {
  for (const plot of charts) plot.setSize({ width, height: plot.height });
}

/* The time under the pointer, null beside lanes and charts. */
function pointed(happening) {
  const area = box.getBoundingClientRect(), left = area.left + gutter(), width = area.right - side() - left;
  const over = happening.target.closest && happening.target.closest(".track, .chart, .ruler");
  return over && happening.clientX >= left && happening.clientX <= left + width ? from + (happening.clientX - left) / width * (to - from) : null;
}

const line = document.createElement("div"), choice = document.createElement("div"), tip = byId("tip");
line.className = "cursor"; choice.className = "choice"; line.hidden = choice.hidden = true;
let began = null, dragged = false;

function place(element, start, end) {
  const width = box.clientWidth - gutter() - side(), x = (at) => gutter() + (at - from) / (to - from) * width;
  element.style.left = `${x(start)}px`;
  element.style.width = `${x(end) - x(start)}px`;
}

const segments = all(".seg", box).map((element) => ({ element, a: number(element, "--a"), b: number(element, "--b"), text: element.textContent, lane: element.closest(".lane") }));
function nearest(values, at) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < at) low = middle + 1; else high = middle;
  }
  return low > 0 && at - values[low - 1] < values[low] - at ? low - 1 : low;
}

function readOut(happening, at) {
  const slack = (to - from) / 300, lane = happening.target.closest(".lane"), chartPlace = happening.target.closest(".chart");
  const here = segments.filter((one) => one.a - slack <= at && at <= one.b + slack);
  const texts = here.filter((one) => one.lane === lane || one.element.classList.contains("fault")).map((one) => one.text);
  const rows = [seconds(at) + (lane ? `, ${lane.firstChild.textContent}` : ""), ...new Set(texts)].slice(0, 12);
  if (chartPlace) {
    const chart = data.charts[chartPlace.dataset.chart], index = nearest(chart.x, at);
    const values = chart.names.map((name, of) => `${name} ${chart.y[of][index] === null ? "-" : chart.y[of][index]}`).reverse();
    if (chart.failed) values.push(`${chart.failed[index]} of ${chart.n[index]} records failed`);
    rows.push(`at ${seconds(chart.x[index])}: ${values.join(", ")}`);
  }
  tip.replaceChildren(...rows.map((text, index) => Object.assign(document.createElement(index ? "div" : "b"), { textContent: text })));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(happening.clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${happening.clientY + 18 + height > innerHeight ? happening.clientY - height - 10 : happening.clientY + 18}px`;
}

function interact() {
  box.append(line, choice);
  box.addEventListener("pointerdown", (happening) => {
    dragged = false;
    began = happening.button ? null : pointed(happening);
  });
  box.addEventListener("dragstart", (happening) => happening.preventDefault());
  addEventListener("pointermove", (happening) => {
    const at = box.contains(happening.target) ? pointed(happening) : null;
    line.hidden = at === null;
    if (at === null) tip.hidden = true; else { place(line, at, at); readOut(happening, at); }
    if (began === null || at === null) return;
    dragged = dragged || Math.abs(at - began) > (to - from) * 0.01;
    choice.hidden = !dragged;
    place(choice, Math.min(began, at), Math.max(began, at));
    choice.dataset.a = Math.min(began, at); choice.dataset.b = Math.max(began, at);
  });
  addEventListener("pointerup", () => {
    if (began !== null && dragged) zoom(+choice.dataset.a, +choice.dataset.b);
    began = null;
    choice.hidden = true;
  });
  addEventListener("pointercancel", () => { began = null; choice.hidden = true; });
  box.addEventListener("click", (happening) => {
    const at = pointed(happening);
    if (dragged) { happening.preventDefault(); happening.stopPropagation(); dragged = false; return; }
    // a click on a chart is a click on the fault whose band is there
    const told = at !== null && happening.target.closest(".chart") && segments.find((one) => one.element.classList.contains("fault") && one.a <= at && at <= one.b);
    if (told && told.element.hash) story(byId(told.element.hash.slice(1)), told.element);
  }, true);
  box.addEventListener("wheel", (happening) => {
    const at = pointed(happening);
    if (at === null || !(happening.ctrlKey || happening.metaKey || happening.shiftKey)) return;
    happening.preventDefault();
    if (happening.shiftKey) pan((happening.deltaY || happening.deltaX) / 1000); else scaled(Math.exp(happening.deltaY / 400), at);
  }, { passive: false });
  for (const button of all("[data-zoom]", box)) button.addEventListener("click", () => moves[button.dataset.zoom]());
  addEventListener("resize", () => layout(box.clientWidth));
  addEventListener("beforeprint", () => { box.classList.add("printed"); layout(PRINT_PX); });
  addEventListener("afterprint", () => { box.classList.remove("printed"); layout(box.clientWidth); });
  box.querySelector(".controls").hidden = false;
  zoom(0, data.end_s);
}

/* --- stories: a copy of a chapter, a check or a slow record of the page in a panel --- */
const panel = byId("panel"), body = byId("panel-body");
let opener = null;

function story(element, from_) {
  const title = element.querySelector("summary, td code");
  byId("panel-title").textContent = element.matches("details") ? element.querySelector("summary").textContent.trim() : title.textContent;
  body.replaceChildren();
  if (element.matches("tr")) {
    const heads = all("thead th", element.closest("table")), facts = document.createElement("dl");
    [...element.cells].forEach((cell, at) => {
      if (!cell.textContent.trim()) return;
      const name = document.createElement("dt"), value = document.createElement("dd");
      name.textContent = heads[at].textContent;
      value.append(...[...cell.childNodes].map((node) => node.cloneNode(true)));
      facts.append(name, value);
    });
    body.append(facts);
  } else body.append(...[...element.children].filter((child) => !child.matches("summary")).map((child) => child.cloneNode(true)));
  for (const copy of all("[id]", body)) copy.removeAttribute("id");
  for (const folded of all("details", body)) folded.open = true;
  copyButtons(body);
  const at = element.dataset.at || element.dataset.a;
  byId("panel-zoom").hidden = at === undefined;
  byId("panel-zoom").onclick = () => {
    const start = +at, end = element.dataset.at ? start : +(element.dataset.b || data.end_s), room = Math.max(1, (end - start) * 0.3);
    zoom(start - room, end + room);
    if (matchMedia("(max-width: 44rem)").matches) close();
    box.scrollIntoView({ block: "start" });
  };
  byId("panel-link").href = `#${element.id}`;
  opener = from_ || document.activeElement;
  panel.hidden = false;
  tip.hidden = line.hidden = true;
  panel.scrollTop = 0;
  panel.focus();
}

function close() {
  if (panel.hidden) return;
  panel.hidden = true;
  if (opener && opener.focus) opener.focus();
}

function unfold(element) {
  for (let at = element; at; at = at.parentElement) if (at.matches("details")) at.open = true;
}

function stories() {
  document.addEventListener("click", (happening) => {
    const link = happening.target.closest('a[href^="#"]'), target = link && byId(link.hash.slice(1));
    if (link && link.id === "panel-link") { close(); unfold(target); return; }
    if (target && target.matches(".story")) {
      happening.preventDefault();
      story(target, link);
    } else {
      const row = happening.target.closest("tr.story");
      if (row && !panel.contains(row) && !happening.target.closest("a, button, details, pre") && getSelection().isCollapsed) story(row, row);
    }
  });
  byId("panel-close").addEventListener("click", close);
  addEventListener("keydown", (happening) => { if (happening.key === "Escape") close(); });
}

/* --- the filter of checks --- */
function filter() {
  const form = document.querySelector(".filter"), rows = all("#checks tr[data-status]"), groups = all("#checks > details");
  const opened = new Map(groups.map((group) => [group, group.open]));
  form.hidden = false;
  form.addEventListener("submit", (happening) => happening.preventDefault());
  form.addEventListener("input", () => {
    const text = byId("find").value.trim().toLowerCase(), status = byId("status").value, subject = byId("subject").value;
    const active = Boolean(text || status || subject);
    for (const row of rows) {
      row.hidden = !((!status || row.dataset.status === status) && (!subject || row.dataset.subject === subject) && (!text || row.textContent.toLowerCase().includes(text)));
    }
    for (const group of groups) {
      group.hidden = active && !all("tr[data-status]", group).some((row) => !row.hidden);
      group.open = active || opened.get(group);
    }
    byId("found").textContent = active ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} checks` : "";
  });
}

/* --- a copy button at each text that is worth pasting --- */
function copyButtons(within) {
  if (!navigator.clipboard) return;
  for (const old of all("button.copy", within)) old.remove();
  for (const text of all("pre.paste", within)) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy as Markdown";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    });
    text.before(button);
  }
}

stories();
filter();
copyButtons(document);
draw();
interact();
document.documentElement.classList.add("scripted");
})();
