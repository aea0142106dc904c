// Draws /status once a second. Texts from the daemon only ever become text nodes.
"use strict";

const EVERY = 1000; // ms between two looks: as often as the daemon takes a sample
const PATIENCE = 4000; // ms for an answer, after which the daemon counts as lost
const SPAN = 300; // seconds of history that the charts show

const at = (id) => document.getElementById(id);

const shape = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// Numbers as people read them.

const whole = (n) => Math.round(n).toLocaleString("en-US");
const number = (n) => (n >= 99.95 ? whole(n) : n >= 9.995 ? n.toFixed(1) : n > 0 ? n.toFixed(2) : "0");
const percent = (share) => `${Math.round(Math.min(Math.max(share, 0), 1) * 100)}%`;
const counted = (n, one, many) => `${whole(n)} ${n === 1 ? one : many}`;

const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit + 1 < units.length) {
    n /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? whole(n) : n.toFixed(1)} ${units[unit]}`;
};

const duration = (seconds) => {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
};

const rate = (stage) =>
  stage.unit === "B/s" ? `${bytes(stage.rate)}/s` : `${number(stage.rate)} ${stage.unit}`;

// A loader: its pipeline as a picture, its numbers as a list.

const verdict = (loader) => {
  if (loader.bottleneck === null) return "idle";
  if (loader.bottleneck === "feed") return "the trainer is the slower part";
  return `${loader.bottleneck} holds it up`;
};

const drawPipeline = (svg, loader) => {
  const width = 156;
  const gap = (900 - loader.stages.length * width) / (loader.stages.length - 1);
  const parts = [];
  loader.stages.forEach((stage, n) => {
    const left = n * (width + gap);
    const middle = left + width / 2;
    const group = shape("g", { class: stage.bottleneck ? "stage hot" : "stage", "data-stage": stage.name });
    group.append(shape("rect", { x: left + 1, y: 2, width: width - 2, height: 78, rx: 8 }));
    group.append(shape("text", { x: middle, y: 24, class: "name" }, stage.name));
    group.append(shape("text", { x: middle, y: 45, class: "rate" }, rate(stage)));
    const more = [];
    if (stage.busy !== null) more.push(`${stage.busy.toFixed(1)} ${stage.name === "fetch" ? "reads" : "threads"}`);
    if (stage.queue !== null) more.push(`${whole(stage.queue)} ${stage.name === "feed" ? "ready" : "in work"}`);
    group.append(shape("text", { x: middle, y: 66, class: "more" }, more.join(", ")));
    if (stage.bottleneck) group.append(shape("text", { x: middle, y: 98, class: "mark" }, "bottleneck"));
    if (n > 0) {
      const end = left - 2;
      group.append(shape("path", { d: `M${left - gap + 2} 41H${end}m-6 -5l6 5l-6 5` }));
    }
    parts.push(group);
  });
  const told = loader.stages.map((s) => `${s.name} ${rate(s)}`).join(", ");
  svg.setAttribute("aria-label", `Pipeline of ${loader.name}: ${told}; ${verdict(loader)}`);
  svg.replaceChildren(...parts);
};

const used = (memory) => memory.window + memory.slab + memory.consumer;

const drawLoader = (article, loader) => {
  article.querySelector("h3").textContent =
    `${loader.name}, rank ${loader.rank} of ${loader.world_size}`;
  article.querySelector(".what").textContent =
    `process ${loader.pid}, ${counted(loader.threads, "thread", "threads")}, open ${duration(loader.open_seconds)}: ${verdict(loader)}`;
  drawPipeline(article.querySelector("svg"), loader);
  const facts = [
    ["rows a second", number(loader.rows_per_second)],
    ["rows", whole(loader.rows)],
    ["batches", whole(loader.batches)],
    ["trainer waits", percent(loader.trainer_blocked)],
    ["engine waits", percent(loader.backpressure)],
    ["memory", `${bytes(used(loader.memory))} of ${bytes(loader.memory.limit)}`],
  ];
  if (loader.bad_rows > 0) facts.push(["bad rows", whole(loader.bad_rows)]);
  if (loader.retries > 0) facts.push(["retries of reads", whole(loader.retries)]);
  article.querySelector("dl").replaceChildren(
    ...facts.map(([name, value]) => {
      const pair = document.createElement("div");
      const dt = document.createElement("dt");
      const dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      pair.append(dt, dd);
      return pair;
    }),
  );
};

const drawLoaders = (loaders) => {
  const list = at("loaders");
  while (list.children.length > loaders.length) list.lastElementChild.remove();
  while (list.children.length < loaders.length) {
    list.append(at("loader").content.cloneNode(true));
  }
  loaders.forEach((loader, n) => drawLoader(list.children[n], loader));
  at("none").hidden = loaders.length > 0;
};

// The charts: five minutes from left to right, now at the right.

const places = (history, now, width) =>
  history.map((moment) => width - ((now - moment.at) / SPAN) * width);

const drawMemory = (status) => {
  const { history, memory } = status;
  const most = Math.max(1, ...history.map(used), used(memory)) * 1.1;
  const x = places(history, status.uptime_seconds, 900);
  const y = (value) => 180 - (value / most) * 180;
  const floor = history.map(() => 0);
  const areas = ["window", "slab", "consumer"].map((kind) => {
    const below = floor.slice();
    history.forEach((moment, n) => (floor[n] += moment[kind]));
    const top = x.map((left, n) => `${left.toFixed(1)},${y(floor[n]).toFixed(1)}`);
    const bottom = x.map((left, n) => `${left.toFixed(1)},${y(below[n]).toFixed(1)}`).reverse();
    return shape("polygon", { class: kind, points: [...top, ...bottom].join(" ") });
  });
  at("memory").replaceChildren(...areas);
  at("memory-now").textContent =
    `${bytes(used(memory))} of ${bytes(memory.limit)} now, ${bytes(memory.peak)} at most: ` +
    `windows ${bytes(memory.window)}, slabs ${bytes(memory.slab)}, in the hands of trainers ${bytes(memory.consumer)}`;
  at("memory-scale").textContent = `the last five minutes, up to ${bytes(most)}`;
};

const drawRate = (status) => {
  const { history } = status;
  const most = Math.max(1, ...history.map((moment) => moment.rows)) * 1.1;
  const x = places(history, status.uptime_seconds, 900);
  const points = history.map((m, n) => `${x[n].toFixed(1)},${(120 - (m.rows / most) * 120).toFixed(1)}`);
  at("rate").replaceChildren(shape("polyline", { class: "rows", points: points.join(" ") }));
  const last = history.at(-1);
  at("rate-now").textContent =
    last === undefined ? "" : `${number(last.rows)} rows a second, ${bytes(last.read_bytes)}/s read`;
  at("rate-scale").textContent = `the last five minutes, up to ${number(most)} rows a second`;
};

const draw = (status) => {
  at("daemon").textContent =
    `${status.version}, process ${status.pid}, up ${duration(status.uptime_seconds)}, ` +
    `${counted(status.clients, "client", "clients")}, ${counted(status.loaders.length, "loader", "loaders")}`;
  drawLoaders(status.loaders);
  drawMemory(status);
  drawRate(status);
};

// The connection. It is announced when it changes, not once a second.

let shown = "";
let heard = null;

const say = (text, lost) => {
  document.body.classList.toggle("stale", lost);
  at("connection").classList.toggle("lost", lost);
  if (text !== shown) at("connection").textContent = shown = text;
};

const look = async () => {
  try {
    const answer = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const status = await answer.json();
    draw(status);
    heard = new Date();
    say(status.phase, false);
  } catch {
    say(
      heard === null
        ? "No connection to the sidecar"
        : `Connection lost: the numbers are from ${heard.toLocaleTimeString()}`,
      true,
    );
  }
  setTimeout(look, EVERY);
};

look();
