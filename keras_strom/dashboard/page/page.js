// Reads the job's state about once a second and shows what has changed.
"use strict";

const $ = (id) => document.getElementById(id);
const ROW = 28, FEW = 120, MOST_LINES = 24, PERIOD = 1000, SLOW_PERIOD = 2500, CHART_PERIOD = 3000, PATIENCE = 10000;

const view = {
  state: null, workers: [], order: [], events: [], lastEvent: 0, sort: "tree", down: false,
  chosen: null, metric: "loss", failures: 0,
};

// ------------------------------------------------------------------ figures in words

function figure(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0";
  if (seconds >= 1) return `${figure(seconds)} s`;
  if (seconds >= 1e-3) return `${figure(seconds * 1e3)} ms`;
  return `${figure(seconds * 1e6)} µs`;
}
function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (value >= size) return `${figure(value / size)} ${unit}B`;
  return `${Math.round(value)} B`;
}
const rate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);
const share = (value) => (value === null || value === undefined ? "–" : `${figure(100 * value)} %`);
const range = (value, all) => (value === null ? "–" : all ? `${value}/${all}` : `${value}`);

// ------------------------------------------------------------------ the table

const COLUMNS = [
  { name: "rank", title: "worker", of: (w) => w.rank },
  { name: "activity", title: "does", text: true, of: (w) => w.activity },
  { name: "epoch", title: "epoch", of: (w) => w.epoch, show: (w) => range(w.epoch, w.epochs) },
  { name: "steps", title: "steps", of: (w) => w.steps, show: (w) => figure(w.steps, 6) },
  { name: "step_seconds", title: "step", of: (w) => w.step_seconds, show: (w) => duration(w.step_seconds), bar: true },
  { name: "waited_seconds", title: "waits", of: (w) => w.waited_seconds, show: (w) => duration(w.waited_seconds) },
  { name: "metric", title: "loss", of: (w) => metricOf(w), show: (w) => figure(metricOf(w), 4) },
  { name: "staleness", title: "staleness", of: (w) => w.staleness, show: (w) => figure(w.staleness) },
  { name: "density", title: "density", of: (w) => w.density, show: (w) => figure(w.density) },
  { name: "threshold", title: "threshold", of: (w) => w.threshold, show: (w) => figure(w.threshold) },
  { name: "residual_norm", title: "residual", of: (w) => w.residual_norm, show: (w) => figure(w.residual_norm) },
  { name: "sent", title: "sends", of: (w) => w.sent, show: (w) => rate(w.sent) },
  { name: "received", title: "receives", of: (w) => w.received, show: (w) => rate(w.received) },
  { name: "round_trip", title: "round trip", of: (w) => w.round_trip, show: (w) => duration(w.round_trip) },
  { name: "loss", title: "lost", of: (w) => w.loss, show: (w) => share(w.loss), alarm: (w) => w.loss > 0.05 },
  { name: "host", title: "host", text: true, of: (w) => w.host },
];
const metricOf = (w) => (w.logs && view.metric in w.logs ? w.logs[view.metric] : null);

function makeHead() {
  for (const column of COLUMNS) {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (column.text) cell.className = "text";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.title;
    button.addEventListener("click", () => sortBy(column.name));
    cell.append(button);
    column.head = cell;
    $("columns").append(cell);
  }
}

// A first press sorts the largest up, the next the least; a third goes back to the tree's order.
function sortBy(name) {
  if (view.sort !== name) [view.sort, view.down] = [name, name !== "rank" && name !== "host" && name !== "activity"];
  else if (view.down === (name !== "rank" && name !== "host" && name !== "activity")) view.down = !view.down;
  else view.sort = "tree";
  showRows();
}

function sorted() {
  const words = $("filter").value.trim().toLowerCase();
  let rows = view.order;
  if (words) {
    rows = rows.filter(([w]) => String(w.rank) === words || w.activity.includes(words) ||
      String(w.host).toLowerCase().includes(words));
  }
  const column = COLUMNS.find((one) => one.name === view.sort);
  if (!column) return rows;
  const turn = view.down ? -1 : 1;
  return [...rows].sort(([a], [b]) => {
    const [x, y] = [column.of(a), column.of(b)];
    if (x === null || x === undefined || y === null || y === undefined) return (x ?? null) === (y ?? null) ? 0 : (x ?? null) === null ? 1 : -1;
    return x < y ? -turn : x > y ? turn : a.rank - b.rank;
  });
}

function makeRow() {
  const row = document.createElement("tr");
  const cells = COLUMNS.map((column) => {
    const cell = document.createElement("td");
    if (column.text) cell.className = "text";
    row.append(cell);
    return cell;
  });
  const button = document.createElement("button");
  button.type = "button";
  button.addEventListener("click", () => choose(row.rank));
  cells[0].append(button);
  const does = document.createElement("span");
  cells[1].append(does);
  const step = COLUMNS.findIndex((column) => column.bar);
  const text = document.createTextNode(""), bar = document.createElement("span");
  bar.className = "bar";
  for (const kind of ["c", "i", "w"]) bar.append(Object.assign(document.createElement("i"), { className: kind }));
  cells[step].append(text, bar);
  Object.assign(row, { cells_: cells, button, does, text, bar });
  return row;
}

const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };

function fillRow(row, worker, depth, slowest) {
  row.rank = worker.rank;
  set(row.button, String(worker.rank));
  row.button.setAttribute("aria-label", `worker ${worker.rank}, details`);
  const indent = view.sort === "tree" ? `${Math.min(depth - 1, 6) * 14}px` : "";
  if (row.button.style.marginLeft !== indent) row.button.style.marginLeft = indent;
  const does = worker.silent ? `${worker.activity}, silent ${worker.silent} s` : worker.activity;
  set(row.does, does);
  row.does.className = `does ${worker.activity.split(" ")[0]}`;
  row.does.title = worker.why || "";
  COLUMNS.forEach((column, at) => {
    if (at < 2) return;
    const cell = row.cells_[at];
    const shown = column.show ? column.show(worker) : String(column.of(worker) ?? "–");
    const kind = `${column.text ? "text " : ""}${shown === "–" ? "none " : ""}${column.alarm && column.alarm(worker) ? "alarm" : ""}`.trim();
    if (cell.className !== kind) cell.className = kind;
    if (!column.bar) return set(cell, shown);
    set(row.text, shown);
    const whole = worker.step_seconds || 0, input = worker.input_seconds || 0, waits = worker.waited_seconds || 0;
    const parts = [Math.max(0, whole - input - waits), input, waits];
    parts.forEach((part, i) => { row.bar.children[i].style.width = slowest ? `${(100 * part) / slowest}%` : "0"; });
    row.bar.title = `computes ${duration(parts[0])}, waits for input ${duration(input)}, for others ${duration(waits)}`;
  });
  row.classList.toggle("chosen", worker.rank === view.chosen);
}

let spare = [];
function showRows() {
  for (const column of COLUMNS) {
    const state = column.name === view.sort ? (view.down ? "descending" : "ascending") : null;
    if (state) column.head.setAttribute("aria-sort", state);
    else column.head.removeAttribute("aria-sort");
  }
  set(COLUMNS.find((one) => one.name === "metric").head.firstChild, view.metric);
  const rows = sorted();
  const box = $("workers"), body = $("rows");
  // Of many workers only those in sight have rows.
  const windowed = rows.length > FEW;
  const height = (spare[0] && spare[0].offsetHeight) || ROW;
  const first = windowed ? Math.max(0, Math.min(rows.length - 1, Math.floor(box.scrollTop / height) - 10)) : 0;
  const last = windowed ? Math.min(rows.length, first + Math.ceil(box.clientHeight / height) + 20) : rows.length;
  const slowest = Math.max(0, ...view.workers.map((w) => w.step_seconds || 0));
  while (spare.length < last - first) spare.push(makeRow());
  const wanted = spare.slice(0, last - first);
  wanted.forEach((row, at) => fillRow(row, rows[first + at][0], rows[first + at][1], slowest));
  const parts = [spacer("above", first * height), ...wanted, spacer("below", (rows.length - last) * height)].filter(Boolean);
  if (parts.length !== body.children.length || parts.some((part, at) => body.children[at] !== part)) body.replaceChildren(...parts);
  body.parentElement.setAttribute("aria-rowcount", rows.length + 1);
  const count = view.workers.length;
  set($("workers-words"), rows.length === count ? "" : `${rows.length} of ${count} workers`);
}
const spacers = {};
function spacer(name, height) {
  if (!height) return null;
  if (!spacers[name]) {
    spacers[name] = document.createElement("tr");
    spacers[name].className = "spacer";
    spacers[name].setAttribute("aria-hidden", "true");
    spacers[name].append(document.createElement("td"));
  }
  spacers[name].firstChild.style.height = `${height}px`;
  return spacers[name];
}

// ------------------------------------------------------------------ one worker

function choose(rank) {
  view.chosen = view.chosen === rank ? null : rank;
  showOne();
  showRows();
  readCharts();
}

function showOne() {
  const worker = view.workers.find((one) => one.rank === view.chosen);
  $("one").hidden = !worker;
  if (!worker) return;
  set($("one-title"), `Worker ${worker.rank}${worker.host ? ` on ${worker.host}` : ""}`);
  const whole = worker.step_seconds, input = worker.input_seconds, waits = worker.waited_seconds;
  const pairs = [
    ["does", worker.activity], ["because", worker.why], ["silent for", worker.silent && `${worker.silent} s`],
    ["started", worker.attempt ? `${worker.attempt + 1} times` : "once"],
    ["parent", worker.parent === -1 ? "the master" : worker.parent >= 0 ? `worker ${worker.parent}` : null],
    ["fit", worker.fit || null], ["epoch", worker.epoch && range(worker.epoch, worker.epochs)],
    ["batch", worker.batch && range(worker.batch, worker.batches)], ["steps", worker.steps],
    ["step", whole !== null ? duration(whole) : null],
    ["computes", whole !== null ? duration(Math.max(0, whole - (input || 0) - (waits || 0))) : null],
    ["waits for input", input !== null ? duration(input) : null], ["waits for others", waits !== null ? duration(waits) : null],
    ["staleness", worker.staleness !== null ? `${figure(worker.staleness)} steps` : null],
    ["density", worker.density !== null ? figure(worker.density) : null],
    ["threshold", worker.threshold !== null ? figure(worker.threshold) : null],
    ["residual norm", worker.residual_norm !== null ? figure(worker.residual_norm) : null],
    ["divergence", worker.divergence !== null ? figure(worker.divergence) : null],
    ["sends", worker.sent !== null ? rate(worker.sent) : null], ["receives", worker.received !== null ? rate(worker.received) : null],
    ["round trip", worker.round_trip !== null ? duration(worker.round_trip) : null],
    ["packets lost", worker.loss !== null ? share(worker.loss) : null], ["queued", worker.queued !== null ? bytes(worker.queued) : null],
    ["through", worker.round_trip !== null ? (worker.shared_memory ? "shared memory" : "UDP") : null],
    ...Object.entries(worker.logs || {}).map(([name, value]) => [name, figure(value, 5)]),
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const list = $("one-figures");
  while (list.children.length > pairs.length) list.lastChild.remove();
  pairs.forEach(([name, value], at) => {
    if (!list.children[at]) {
      const pair = document.createElement("div");
      pair.append(document.createElement("dt"), document.createElement("dd"));
      list.append(pair);
    }
    set(list.children[at].firstChild, name);
    set(list.children[at].lastChild, String(value));
  });
}

// ------------------------------------------------------------------ the rest of the page

function showHead() {
  const state = view.state;
  document.title = `${state.name} – keras-strom`;
  set($("name"), state.name);
  const activities = Object.entries(state.activities);
  const word = state.ended || activities.map(([name, count]) => `${count} ${name}`).join(", ") || "starting";
  set($("state"), word);
  $("state").className = `state ${/failed/.test(word) || state.activities.away ? "bad" : state.ended ? "rest" : ""}`;
  const sent = view.workers.reduce((sum, w) => sum + (w.sent || 0), 0);
  const facts = [["runs for", Charts.seconds(state.seconds)],
    ["workers", `${view.workers.length} of ${state.workers_wanted}`],
    ["parameters", state.master.parameters ? state.master.parameters.toLocaleString("en") : null],
    ["workers send", sent ? rate(sent) : null]].filter(([, value]) => value);
  const html = facts.map(([name, value]) => `${name} ${value}`).join("|");
  if ($("facts").dataset.shown === html) return;
  $("facts").dataset.shown = html;
  $("facts").replaceChildren(...facts.map(([name, value]) => {
    const pair = document.createElement("div");
    pair.append(Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value }));
    return pair;
  }));
}

function showSlow() {
  const slow = view.state.slow.slice(0, 8);
  const text = JSON.stringify(slow.map((one) => [one.rank, one.cause, one.words]));
  const list = $("slow-list");
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  if (!slow.length) {
    const item = document.createElement("li");
    item.className = "none";
    item.textContent = "Nobody is slower than the others.";
    list.replaceChildren(item);
    return;
  }
  list.replaceChildren(...slow.map((one) => {
    const item = document.createElement("li"), cause = document.createElement("span"), words = document.createElement("span");
    cause.className = `cause ${one.cause}`;
    cause.textContent = one.cause;
    if (one.rank >= 0) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `worker ${one.rank}`;
      button.addEventListener("click", () => choose(one.rank));
      words.append(button, " ");
    }
    words.append(one.words);
    item.append(cause, words);
    return item;
  }));
}

function logItem(seconds, text) {
  const item = document.createElement("li"), time = document.createElement("time"), words = document.createElement("span");
  time.textContent = Charts.seconds(seconds);
  words.textContent = text;
  item.append(time, words);
  return item;
}

function showLogs(fresh) {
  const list = $("events");
  for (const [, seconds, , , text] of fresh) list.prepend(logItem(seconds, text));
  while (list.children.length > 500) list.lastChild.remove();
  const made = $("checkpoints"), known = view.state.checkpoints;
  const shown = JSON.stringify(known);
  if (made.dataset.shown === shown) return;
  made.dataset.shown = shown;
  if (known.length) made.replaceChildren(...[...known].reverse().map(([seconds, path]) => logItem(seconds, path)));
  else made.replaceChildren(Object.assign(document.createElement("li"), { className: "none", textContent: "None so far." }));
}

function showKey() {
  const text = Object.keys(view.state.activities).join("|");
  if ($("tree-key").dataset.shown === text) return;
  $("tree-key").dataset.shown = text;
  $("tree-key").replaceChildren(...Object.keys(view.state.activities).map((name) =>
    Object.assign(document.createElement("span"), { className: name.split(" ")[0], textContent: name })));
}

function showMetrics() {
  const names = view.state.metrics.filter((name) => name !== "step seconds");
  const select = $("metric");
  if ([...select.options].map((one) => one.value).join("|") === names.join("|")) return;
  if (names.length && !names.includes(view.metric)) view.metric = names[0];
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === view.metric)));
}

function linkWords(w) {
  const link = w.round_trip === null ? "" :
    `: sends ${rate(w.sent)}, receives ${rate(w.received)}, round trip ${duration(w.round_trip)}, ${share(w.loss)} lost`;
  return `worker ${w.rank}, ${w.activity}${link}`;
}

let metricChart, stepChart;
async function readCharts() {
  if (!view.state) return;
  await Promise.all([
    readChart(metricChart, view.metric, $("metric-words"), (v) => figure(v, 4)),
    readChart(stepChart, "step seconds", $("step-words"), duration)]).catch(() => {});
}
async function readChart(chart, metric, words, format) {
  const ranks = view.workers.map((w) => w.rank);
  const many = ranks.length > MOST_LINES;
  const url = (wanted) => `series.json?metric=${encodeURIComponent(metric)}${wanted ? `&ranks=${wanted.join(",")}` : ""}`;
  const found = await read(url(many ? null : ranks));
  let names = many ? ["least", "largest", "median"] : ranks.map((rank) => `worker ${rank}`);
  // What is drawn last lies above the rest.
  let values = many ? [found.values[0], found.values[2], found.values[1]] : found.values;
  if (many && view.chosen !== null) {
    values = [...values, ...(await read(url([view.chosen]))).values];
    names = [...names, `worker ${view.chosen}`];
  }
  values = values.map((line) => found.times.map((_, at) => line[at] ?? null));
  const bold = view.chosen === null ? null : `worker ${view.chosen}`;
  chart.show(found.times, values, names, bold, many);
  const last = values.map((line) => line.findLast((value) => value !== null) ?? null);
  const at = bold === null ? -1 : names.indexOf(bold);
  const chosen = at >= 0 && last[at] !== null ? `; ${bold} ${format(last[at])}` : "";
  const known = last.map((value, i) => [value, names[i]]).filter(([value]) => value !== null).sort(([a], [b]) => a - b);
  if (!known.length) set(words, "");
  else if (many) set(words, `of ${ranks.length} workers: least ${format(last[0])}, median ${format(last[2])}, largest ${format(last[1])}${chosen}`);
  else if (known.length === 1) set(words, `now ${format(known[0][0])}`);
  else set(words, `now ${format(known[0][0])} (${known[0][1]}) to ${format(known.at(-1)[0])} (${known.at(-1)[1]})${chosen}`);
}

async function read(url) {
  // Where the way is gone without a word a browser itself waits for minutes.
  const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

function show(state) {
  view.state = state;
  view.workers = state.workers.map((row) => Object.fromEntries(state.columns.map((name, at) => [name, row[at]])));
  const fresh = state.events.filter(([number]) => number > view.lastEvent);
  if (fresh.length) view.lastEvent = fresh[fresh.length - 1][0];
  showHead();
  showSlow();
  showMetrics();
  showKey();
  view.order = Tree.draw($("tree"), view.workers, linkWords, choose);
  showRows();
  showOne();
  showLogs(fresh);
  document.body.dataset.updates = Number(document.body.dataset.updates || 0) + 1;
}

async function poll() {
  let pause = PERIOD;
  if (!document.hidden) {
    try {
      const state = await read(`state.json?after=${view.lastEvent}`);
      view.failures = 0;
      show(state);
      if (state.workers.length > 200) pause = SLOW_PERIOD;
    } catch (error) {
      view.failures += 1;
      if (view.failures > 2) {
        set($("state"), view.state && view.state.ended ? view.state.ended : "the job has ended, or its page cannot be reached");
        $("state").className = "state rest";
        pause = 5000;
      }
    }
  }
  setTimeout(poll, pause);
}

metricChart = new Charts.Chart($("metric-chart"), (v) => figure(v, 4));
stepChart = new Charts.Chart($("step-chart"), duration);
makeHead();
$("filter").addEventListener("input", showRows);
$("workers").addEventListener("scroll", () => view.order.length > FEW && requestAnimationFrame(showRows), { passive: true });
$("metric").addEventListener("change", (event) => { view.metric = event.target.value; showRows(); readCharts(); });
$("one-close").addEventListener("click", () => choose(view.chosen));
addEventListener("keydown", (event) => { if (event.key === "Escape" && view.chosen !== null) choose(view.chosen); });
addEventListener("resize", () => view.state && (view.order = Tree.draw($("tree"), view.workers, linkWords, choose)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readCharts);
poll();
setInterval(() => { if (!document.hidden && view.failures === 0) readCharts(); }, CHART_PERIOD);
setTimeout(readCharts, 400);
