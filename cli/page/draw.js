// SPDX-License-Identifier: Apache-2.0
// Draws the tree of the model contention and the timeline of the model checkpoint as SVG, and the
// plots through plotly.js. Each function gets values and returns or fills an element.
"use strict";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function svgElement(name, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes))
    e.setAttribute(key, value);
  if (text !== undefined)
    e.textContent = text;
  return e;
}

function svgRoot(width, height, title) {
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": title, "font-family": "system-ui, sans-serif", "font-size": 13});
  svg.append(svgElement("title", {}, title));
  svg.append(svgElement("rect", {width, height, fill: color("--box")}));
  return svg;
}

// Returns the colour of a link that is busy for this share of the time: green, yellow, red.
function useColor(use) {
  if (use < 0)
    return color("--soft");
  return `hsl(${Math.round(140 - 140 * Math.min(1, use))}, 75%, 42%)`;
}

function percent(use) {
  return use < 0 ? "" : `${Math.round(use * 100)} %`;
}

const KINDS = ["memory", "uplink", "crossbar", "gpu", "drive", "nic", "source"];

// Returns the tree that the paths of the streams span: switches with their devices and memories.
function treeOf(details) {
  const switches = new Map(), memories = new Map(), ups = new Map();
  const number = (link) => Number(/\d+/.exec(link.name)[0]);
  for (const path of details.paths) {
    const links = path.map((l) => details.links[l]);
    links.forEach((link, i) => {
      const kind = KINDS[link.kind];
      if (kind === "crossbar" && !switches.has(number(link)))
        switches.set(number(link), {link, devices: new Map(), memory: null});
      if (kind === "memory")
        memories.set(number(link), link);
      if (kind === "uplink") {
        const way = link.name.endsWith(" up") ? "up" : "down";
        ups.set(`${number(link)} ${way}`, link);
        const memory = links.find((l) => KINDS[l.kind] === "memory");
        if (memory)
          ups.set(`${number(link)} memory`, number(memory));
      }
      if (["gpu", "drive", "nic"].includes(kind)) {
        const near = [links[i - 1], links[i + 1]].find((l) => l && KINDS[l.kind] === "crossbar");
        if (near && !switches.has(number(near)))
          switches.set(number(near), {link: near, devices: new Map(), memory: null});
        if (near)
          switches.get(number(near)).devices.set(link.name, link);
      }
    });
  }
  return {switches, memories, ups};
}

function boxDraw(svg, x, y, width, height, link, label) {
  svg.append(svgElement("rect", {x, y, width, height, rx: 6, fill: color("--bg"),
    stroke: useColor(link ? link.use : -1), "stroke-width": 3}));
  svg.append(svgElement("text", {x: x + width / 2, y: y + height / 2 - (link ? 3 : -4),
    "text-anchor": "middle", fill: color("--fg")}, label));
  if (link)
    svg.append(svgElement("text", {x: x + width / 2, y: y + height / 2 + 14,
      "text-anchor": "middle", fill: color("--soft"), "font-size": 12}, percent(link.use)));
}

function lineDraw(svg, x1, y1, x2, y2, link) {
  svg.append(svgElement("line", {x1, y1, x2, y2, stroke: useColor(link.use), "stroke-width": 5}));
  // The outline in the colour of the background keeps the number readable on a slanted line.
  svg.append(svgElement("text", {x: (x1 + x2) / 2 + 8, y: (y1 + y2) / 2 + 4, "font-size": 12,
    fill: color("--fg"), stroke: color("--box"), "stroke-width": 5, "paint-order": "stroke"},
  percent(link.use)));
}

// Draws the tree of a run: memories above, switches below them, devices at the bottom.
function treeDraw(details) {
  const tree = treeOf(details), switches = [...tree.switches].sort((a, b) => a[0] - b[0]);
  const slot = 76, gap = 24;
  const widths = switches.map(([, s]) => Math.max(2, s.devices.size) * slot);
  const width = Math.max(520, widths.reduce((a, b) => a + b + gap, gap));
  const svg = svgRoot(width, 300, "PCIe tree, each link coloured by the share of time in use");
  const memories = [...tree.memories].sort((a, b) => a[0] - b[0]);
  const memoryX = new Map(memories.map(([n], i) => [n, width * (i + 1) / (memories.length + 1)]));
  let x = gap + (width - widths.reduce((a, b) => a + b + gap, gap)) / 2;
  for (const [n, s] of switches) {
    const w = widths[switches.findIndex(([k]) => k === n)], middle = x + w / 2;
    const down = tree.ups.get(`${n} down`), up = tree.ups.get(`${n} up`);
    const top = memoryX.get(tree.ups.get(`${n} memory`)) ?? middle;
    if (down)
      lineDraw(svg, top, 70, middle - (up ? 10 : 0), 130, down);
    if (up)
      lineDraw(svg, top, 70, middle + (down ? 34 : 0), 130, up);
    if (!memories.length && (down || up))
      boxDraw(svg, middle - 50, 24, 100, 46, null, "host");
    [...s.devices.values()].forEach((link, i) => {
      const dx = x + slot * (i + 0.5) + (w - s.devices.size * slot) / 2;
      lineDraw(svg, dx, 176, dx, 236, link);
      boxDraw(svg, dx - 33, 236, 66, 46, null, link.name);
    });
    boxDraw(svg, x + 6, 130, w - 12, 46, s.link, `switch ${n}`);
    x += w + gap;
  }
  for (const [n, link] of memories)
    boxDraw(svg, memoryX.get(n) - 60, 24, 120, 46, link, `memory ${n}`);
  return svg;
}

function spanDraw(svg, x, y, width, fill, label) {
  svg.append(svgElement("rect", {x, y, width: Math.max(1, width), height: 30, fill, rx: 2}));
  if (label && width > 7.2 * label.length)
    svg.append(svgElement("text", {x: x + width / 2, y: y + 20, "text-anchor": "middle",
      fill: "#fff"}, label));
}

const SPANS = [["train", "#2b7a4b"], ["wait", "#b3261e", "wait for it"],
  ["write", "#0b62a8", "write checkpoint"], ["lost", "#8a6d1b", "lost and repeated"],
  ["recover", "#7b3fa0"]];
const SPAN_COLORS = Object.fromEntries(SPANS);

// Draws two checkpoints, a failure half an interval later, the recovery and the repeated work.
function timelineDraw(get, result) {
  const width = 900, left = 92, right = 20;
  const interval = get("interval-min"), stall = result("stall-s") / 60;
  const window = result("window-s") / 60, recovery = result("recovery-s") / 60;
  const lost = interval / 2, end = 2 * (interval + stall) + lost + recovery + lost;
  const svg = svgRoot(width, 222, "timeline of training, checkpoints, a failure and the recovery");
  const at = (t) => left + (width - left - right) * t / end;
  const rows = [["training", 24], ["writing", 64], ["failure", 104]];
  rows.forEach(([name, y]) => svg.append(svgElement("text", {x: left - 8, y: y + 20,
    "text-anchor": "end", fill: color("--fg")}, name)));
  let t = 0;
  for (let i = 0; i < 2; i++) {
    spanDraw(svg, at(t), 24, at(interval) - at(0), SPAN_COLORS.train, "train");
    t += interval;
    spanDraw(svg, at(t), 24, at(stall) - at(0), SPAN_COLORS.wait, "wait");
    spanDraw(svg, at(t), 64, at(window) - at(0), SPAN_COLORS.write, "write");
    t += stall;
  }
  spanDraw(svg, at(t), 24, at(lost) - at(0), SPAN_COLORS.lost, "lost");
  t += lost;
  spanDraw(svg, at(t), 104, at(recovery) - at(0), SPAN_COLORS.recover, "recover");
  t += recovery;
  spanDraw(svg, at(t), 24, at(lost) - at(0), SPAN_COLORS.lost, "repeat");
  for (let i = 0; i <= 5; i++)
    svg.append(svgElement("text", {x: at(end * i / 5), y: 168, "text-anchor": i ? i < 5 ?
      "middle" : "end" : "start", fill: color("--soft")},
    `${Number((end * i / 5).toPrecision(3))} min`));
  svg.append(svgElement("line", {x1: left, x2: width - right, y1: 148, y2: 148,
    stroke: color("--line")}));
  SPANS.forEach(([name, fill, words], i) => {
    svg.append(svgElement("rect", {x: left + 165 * i, y: 192, width: 13, height: 13, fill}));
    svg.append(svgElement("text", {x: left + 165 * i + 19, y: 203, fill: color("--soft")},
      words || name));
  });
  return svg;
}

// ---- plotly ----

function plotLayout(more) {
  const axis = {gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true};
  const layout = {paper_bgcolor: color("--box"), plot_bgcolor: color("--box"),
    font: {color: color("--fg"), size: 13}, margin: {l: 60, r: 20, t: 20, b: 50},
    showlegend: false, ...more};
  layout.xaxis = {...axis, ...layout.xaxis};
  layout.yaxis = {...axis, ...layout.yaxis};
  return layout;
}

const PLOT_OPTIONS = {displaylogo: false, responsive: true, displayModeBar: false};

function axisTitle(row) {
  return {text: row.unit && row.unit !== "ratio" && row.unit !== "count" ?
    `${row.name} (${row.unit})` : row.name};
}

function linePlot(element, x, y, xs, ys, log) {
  return Plotly.react(element, [{x: xs, y: ys, mode: "lines+markers", marker: {size: 5},
    line: {color: color("--accent"), width: 2.5}, connectgaps: false}],
  plotLayout({xaxis: {title: axisTitle(x), type: log ? "log" : "linear"},
    yaxis: {title: axisTitle(y), rangemode: "tozero"}}), PLOT_OPTIONS);
}

// Draws the two surfaces of the model registration and the line on which they cross. They are seen
// from `eye`, if it is given. Calls `turned` with the new eye when the user has turned them.
function surfacePlot(element, surface, eye, turned) {
  const scene = (title, type) => ({title: {text: title}, type, gridcolor: color("--line"),
    color: color("--fg"), backgroundcolor: color("--box")});
  const narrow = element.clientWidth < 500, far = narrow ? 1.5 : 1;
  const [x, y, z] = eye || [-1.5 * far, -1.6 * far, 0.9 * far];
  Plotly.react(element, [
    {type: "surface", x: surface.sizes, y: surface.ios, z: surface.kept, colorscale: "Viridis",
      cmin: 0, cmax: 1, showscale: !narrow, colorbar: {title: {text: "kept on GPU"}, thickness: 12, len: 0.7},
      name: "kept on GPU"},
    {type: "surface", x: surface.sizes, y: surface.ios, z: surface.each, opacity: 0.45,
      showscale: false, colorscale: [[0, "#d55e00"], [1, "#d55e00"]], name: "each time"},
    {type: "scatter3d", mode: "lines", x: surface.line.x, y: surface.line.y, z: surface.line.z,
      line: {color: "#e4007c", width: 8}, name: "crossover"}],
  plotLayout({margin: {l: 0, r: 0, t: 0, b: 0}, scene: {xaxis: scene("size (bytes)", "log"),
    yaxis: scene("transfers", "log"), zaxis: {...scene("efficiency", "linear"), range: [0, 1]},
    camera: {eye: {x, y, z}}}}), PLOT_OPTIONS);
  element.removeAllListeners("plotly_relayout");
  element.on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((key) => key.startsWith("scene.camera")))
      return; // the window has another size
    const now = element.layout.scene.camera.eye;
    turned([now.x, now.y, now.z]);
  });
}

// Turns a surface by an angle around its vertical axis.
function surfaceTurn(element, angle) {
  const eye = element.layout.scene.camera.eye, [c, s] = [Math.cos(angle), Math.sin(angle)];
  return Plotly.relayout(element, {"scene.camera.eye": {x: c * eye.x - s * eye.y,
    y: s * eye.x + c * eye.y, z: eye.z}});
}
