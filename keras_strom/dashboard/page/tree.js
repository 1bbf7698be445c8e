// The tree of workers: the master above, each worker below its parent, leaves side by side.
"use strict";

const Tree = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name) => document.createElementNS(SVG, name);
  let layout = "";
  let circles = new Map(), lines = new Map();

  // Workers in the order of the tree: each before those below it.
  function inOrder(workers) {
    const below = new Map();
    const known = new Set(workers.map((one) => one.rank));
    for (const one of workers) {
      const parent = known.has(one.parent) && one.parent !== one.rank ? one.parent : -1;
      if (!below.has(parent)) below.set(parent, []);
      below.get(parent).push(one);
    }
    const found = [], seen = new Set();
    const visit = (parent, depth) => {
      for (const one of below.get(parent) || []) {
        if (seen.has(one.rank)) continue;
        seen.add(one.rank);
        found.push({ one, depth, parent, leaf: !below.has(one.rank) });
        visit(one.rank, depth + 1);
      }
    };
    visit(-1, 1);
    for (const one of workers) if (!seen.has(one.rank)) found.push({ one, depth: 1, parent: -1, leaf: true });
    return found;
  }

  function draw(svg, workers, words, choose) {
    const order = inOrder(workers);
    const width = svg.clientWidth || 900;
    const depth = Math.max(1, ...order.map((place) => place.depth));
    const key = JSON.stringify([width, order.map((place) => [place.one.rank, place.parent])]);
    if (key !== layout) build(svg, order, width, depth, choose);
    layout = key;
    for (const { one } of order) {
      const circle = circles.get(one.rank), line = lines.get(one.rank);
      const does = one.activity.split(" ")[0];
      if (circle.getAttribute("class") !== does) circle.setAttribute("class", does);
      circle.firstChild.textContent = words(one);
      const lossy = one.loss > 0.05 ? "lossy" : "";
      if ((line.getAttribute("class") || "") !== lossy) line.setAttribute("class", lossy);
    }
    return order.map((place) => [place.one, place.depth]);
  }

  function build(svg, order, width, depth, choose) {
    const leaves = order.filter((place) => place.leaf).length;
    const step = Math.min(56, (width - 32) / Math.max(1, leaves));
    const radius = Math.max(1, Math.min(6, step * 0.36));
    const row = depth > 1 ? 44 : 52;
    const height = 28 + row * depth;
    const start = (width - step * leaves) / 2;
    let leaf = 0;
    const x = new Map();
    for (const place of order) if (place.leaf) x.set(place.one.rank, start + step * (leaf++ + 0.5));
    for (const place of [...order].reverse()) {
      if (place.leaf) continue;
      const under = order.filter((other) => other.parent === place.one.rank).map((other) => x.get(other.one.rank));
      x.set(place.one.rank, (Math.min(...under) + Math.max(...under)) / 2);
    }
    const top = { x: width / 2, y: 16 };
    const at = (place) => ({ x: x.get(place.one.rank), y: 16 + row * place.depth });
    const places = new Map(order.map((place) => [place.one.rank, at(place)]));
    circles = new Map();
    lines = new Map();
    const edges = make("g"), nodes = make("g");
    for (const place of order) {
      const from = place.parent === -1 ? top : places.get(place.parent), to = places.get(place.one.rank);
      const line = make("line");
      for (const [name, value] of [["x1", from.x], ["y1", from.y], ["x2", to.x], ["y2", to.y]])
        line.setAttribute(name, value.toFixed(1));
      lines.set(place.one.rank, line);
      edges.append(line);
      const circle = make("circle");
      circle.setAttribute("cx", to.x.toFixed(1));
      circle.setAttribute("cy", to.y.toFixed(1));
      circle.setAttribute("r", radius.toFixed(1));
      circle.append(make("title"));
      circle.addEventListener("click", () => choose(place.one.rank));
      circles.set(place.one.rank, circle);
      nodes.append(circle);
      if (step >= 22) {
        const text = make("text");
        text.setAttribute("x", to.x.toFixed(1));
        text.setAttribute("y", (to.y + 20).toFixed(1));
        text.setAttribute("text-anchor", place.leaf ? "middle" : "end");
        if (!place.leaf) {
          text.setAttribute("x", (to.x - 10).toFixed(1));
          text.setAttribute("y", (to.y + 4).toFixed(1));
        }
        text.textContent = place.one.rank;
        nodes.append(text);
      }
    }
    const box = make("rect");
    for (const [name, value] of [["x", top.x - 30], ["y", 4], ["width", 60], ["height", 22], ["rx", 4],
      ["style", "fill: var(--panel); stroke: var(--line)"]]) box.setAttribute(name, value);
    const label = make("text");
    for (const [name, value] of [["x", top.x], ["y", 19], ["text-anchor", "middle"]]) label.setAttribute(name, value);
    label.textContent = "master";
    svg.setAttribute("viewBox", `0 0 ${width} ${height + 10}`);
    svg.setAttribute("height", height + 10);
    svg.replaceChildren(edges, nodes, box, label);
  }

  return { draw };
})();
