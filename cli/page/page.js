// SPDX-License-Identifier: Apache-2.0
// The page of `penstock model --html`: inputs beside live results, plots, links that restore the
// state, and exports. core.js computes, draw.js draws.
"use strict";

const FIRST_PLOT = {registration: ["size", "efficiency-each"], fence: ["chunk", "fence-share"],
  pipeline: ["size", "speed-gbps"], contention: ["streams", "total-gbps"],
  checkpoint: ["interval-min", "waste"], sizing: ["window-s", "drives"],
  cost: ["wait-s", "wasted-day"], kvcache: ["tokens", "reload-ms"], weights: ["hosts", "herd-s"],
  training: ["accelerators", "reached"]};
const POINTS = 41, SURFACE = 28, KEPT_MAX = 3;

// model: null for the view of published figures. kept: columns of results beside the live ones,
// each with its values. eye: place from which the surface is seen; null: as it is drawn first.
const state = {model: null, values: [], preset: -1, plot: null, kept: [], eye: null};
const $ = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on"))
      e.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null)
      e.setAttribute(key, value);
  }
  e.append(...children);
  return e;
}

// ---- the address ----

function inputText(param, value) {
  return param.choices ? param.choices[value] : String(value);
}

// Returns the values that differ from the defaults, each as "name", `equals` and its text.
function changesOf(values, equals) {
  const defaults = modelDefaults(state.model, -1);
  return state.model.params.map((p, i) => values[i] === defaults[i] ? "" :
    `${p.name}${equals}${encodeURIComponent(inputText(p, values[i]))}`).filter((w) => w);
}

function addressOf() {
  if (!state.model)
    return "#cases";
  const words = [`#${state.model.name}`], plot = state.plot;
  if (state.preset >= 0)
    words.push(`preset=${state.model.presets[state.preset].name}`);
  words.push(...changesOf(state.values, "="));
  words.push(`plot=${[plot.x, plot.y, plot.from, plot.to, plot.log ? "log" : "linear"].join(":")}`);
  words.push(...state.kept.map((k) => `keep=${changesOf(k.values, ":").join(";")}`));
  if (state.eye)
    words.push(`eye=${state.eye.join(":")}`);
  return words.join("&");
}

function plotDefaults(model) {
  const [x, y] = FIRST_PLOT[model.name], param = model.params[paramIndex(model, x)];
  const from = Math.max(param.min, param.value / 64), to = Math.min(param.max, param.value * 64);
  if (x === "streams")
    return {x, y, from: 1, to: 16, log: false};
  return {x, y, from: param.whole ? Math.max(1, Math.round(from)) : from, to, log: true};
}

// Adds the columns of results that the address names.
function keptRead(words) {
  for (const word of words.filter((w) => w.startsWith("keep=")).slice(0, KEPT_MAX)) {
    const values = modelDefaults(state.model, -1);
    for (const [name, text] of word.slice(5).split(";").map((w) => w.split(":"))) {
      const i = paramIndex(state.model, name);
      values[i] = i < 0 ? 0 : valueParse(state.model, i, text || "") ?? values[i];
    }
    try {
      state.kept.push({values, out: [...modelRun(state.model, values)]});
    } catch {
      // Settings that contradict each other have no results.
    }
  }
}

function addressRead() {
  const [name, ...words] = decodeURIComponent(location.hash.slice(1)).split("&");
  const model = models.find((m) => m.name === name);
  state.kept = [];
  state.eye = null;
  state.model = name === "cases" ? null : model || models[0];
  if (!state.model)
    return;
  keptRead(words);
  const settings = new Map(words.map((w) => [w.split("=")[0], w.slice(w.indexOf("=") + 1)]));
  state.preset = state.model.presets.findIndex((p) => p.name === settings.get("preset"));
  state.values = modelDefaults(state.model, -1);
  state.model.params.forEach((p, i) => {
    const value = settings.has(p.name) ? valueParse(state.model, i, settings.get(p.name)) : null;
    if (value !== null)
      state.values[i] = value;
  });
  if (words.length === 1 && state.preset >= 0)
    state.values = modelDefaults(state.model, state.preset);
  state.plot = plotDefaults(state.model);
  const [x, y, first, last, log] = (settings.get("plot") || "").split(":");
  const from = Number(first), to = Number(last);
  if (paramIndex(state.model, x) >= 0 && resultIndex(state.model, y) >= 0 && from < to)
    state.plot = {x, y, from, to, log: log === "log" && from > 0};
  const eye = (settings.get("eye") || "").split(":").map(Number);
  if (eye.length === 3 && eye.every(Number.isFinite))
    state.eye = eye;
}

function addressWrite() {
  history.replaceState(null, "", addressOf());
}

function say(text) {
  $("status").textContent = text;
}

// ---- exports ----

function download(name, type, text) {
  const a = make("a", {href: URL.createObjectURL(new Blob([text], {type})), download: name});
  a.click();
  // The browser reads the text after the click. A text that is freed at once can be missing.
  setTimeout(() => URL.revokeObjectURL(a.href), 60000);
  say(`${name} is saved.`);
}

function csvOf(rows) {
  return rows.map((r) => r.map((c) => /[",\n]/.test(c) ? `"${String(c).replaceAll('"', '""')}"` : c)
    .join(",")).join("\n") + "\n";
}

function resultsCsv() {
  const rows = [["name", "unit", "value", ...state.kept.map((k, n) => `kept ${n + 1}`)]];
  state.model.params.forEach((p, i) => rows.push([p.name, p.unit, inputText(p, state.values[i]),
    ...state.kept.map((k) => inputText(p, k.values[i]))]));
  state.model.results.forEach((r, i) => rows.push([r.name, r.unit, valueText(r, state.out[i]),
    ...state.kept.map((k) => valueText(r, k.out[i]))]));
  return csvOf(rows);
}

async function plotSvg(element, name) {
  const url = await Plotly.toImage(element, {format: "svg", width: 1000, height: 600});
  download(`${name}.svg`, "image/svg+xml", decodeURIComponent(url.slice(url.indexOf(",") + 1)));
}

function drawingSvg(element, name) {
  const svg = element.querySelector("svg").cloneNode(true);
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  download(`${name}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(svg));
}

// ---- the inputs ----

function fieldMake(param, i) {
  const id = `param-${param.name}`;
  const tip = `${param.about}. Default: ${valueText(param, param.value)} ` +
    `(${param.source})`;
  const input = param.choices ? make("select", {id, title: tip},
    ...param.choices.map((c) => make("option", {value: c}, c))) :
    make("input", {id, title: tip, inputmode: "decimal", autocomplete: "off",
      "aria-describedby": `${id}-error`});
  input.addEventListener(param.choices ? "change" : "input", () => valueChange(param, i, input));
  return make("div", {class: "field"}, make("label", {for: id, title: tip}, param.name), input,
    make("span", {class: "unit"}, param.unit === "count" || param.unit === "ratio" ? "" :
      param.unit), make("p", {class: "error", id: `${id}-error`}));
}

function valueChange(param, i, input) {
  const value = valueParse(state.model, i, input.value);
  input.setAttribute("aria-invalid", value === null);
  $(`${input.id}-error`).textContent = value !== null ? "" :
    `give a ${param.whole ? "whole " : ""}number from ${Number(param.min.toPrecision(9))} to ` +
    `${Number(param.max.toPrecision(9))}`;
  if (value === null)
    return;
  state.values[i] = value;
  update();
}

function inputsFill() {
  const defaults = modelDefaults(state.model, -1);
  state.model.params.forEach((p, i) => {
    const input = $(`param-${p.name}`), value = state.values[i];
    const text = inputText(p, value);
    input.closest(".field").classList.toggle("changed", value !== defaults[i]);
    if (document.activeElement !== input)
      input.value = text;
  });
}

function presetMake() {
  const select = make("select", {id: "preset"}, make("option", {value: -1}, "defaults"),
    ...state.model.presets.map((p, i) => make("option", {value: i, title: p.about},
      `${p.name}: ${p.about}`)));
  select.value = state.preset;
  select.addEventListener("change", () => {
    state.preset = Number(select.value);
    state.values = modelDefaults(state.model, state.preset);
    document.querySelectorAll("[aria-invalid]").forEach((e) => e.removeAttribute("aria-invalid"));
    document.querySelectorAll(".error").forEach((e) => { e.textContent = ""; });
    update();
  });
  return make("div", {class: "bar"}, make("label", {}, "preset", select));
}

// Sets the parameters from the pasted config.json.
function configTake(text, error) {
  error.textContent = "";
  if (!text.trim())
    return;
  try {
    const values = [...state.values];
    for (const [name, value] of Object.entries(configParse(text))) {
      const i = paramIndex(state.model, name);
      if (!wasm.param_check(state.model.index, i, value))
        throw new Error(`${name} cannot be ${value}`);
      values[i] = value;
    }
    state.values = values;
    update();
    say("The parameters are those of the pasted config.json.");
  } catch (wrong) {
    error.textContent = wrong.message;
  }
}

function configMake() {
  if (state.model.name !== "kvcache")
    return "";
  const error = make("p", {class: "error", id: "config-error"});
  const area = make("textarea", {id: "config", rows: 3, spellcheck: "false",
    placeholder: "paste a model's config.json", "aria-describedby": "config-error",
    oninput: () => configTake(area.value, error)});
  return make("div", {class: "bar"}, make("label", {}, "config.json", area), error);
}

// ---- the results ----

function keep() {
  if (state.kept.length === KEPT_MAX)
    state.kept.shift();
  state.kept.push({values: [...state.values], out: [...state.out]});
  update();
  say("The results are kept as a column beside the live ones.");
}

function resultsFill(wrong) {
  const head = make("tr", {}, make("th", {}, "result"), make("th", {class: "number"}, "value"),
    ...state.kept.map((k, n) => make("th", {class: "number",
      title: changesOf(k.values, " = ").join(", ") || "defaults"}, `kept ${n + 1}`)),
    make("th", {}, "unit"),
    make("th", {class: "about"}, "meaning"));
  const rows = wrong ? [] : state.model.results.map((r, i) => make("tr",
    {title: `${r.formula} (${r.source})`},
    make("th", {scope: "row"}, r.name),
    make("td", {class: "number", "data-result": r.name, "data-value": state.out[i]},
      valueText(r, state.out[i])),
    ...state.kept.map((k) => make("td", {class: "number"}, valueText(r, k.out[i]))),
    make("td", {class: "unit"}, r.unit === "count" || r.unit === "ratio" ? "" : r.unit),
    make("td", {class: "about"}, r.about)));
  $("results").replaceChildren(wrong ? make("p", {class: "error"}, wrong) :
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

// ---- the plots ----

function sweepRun() {
  const {model, plot} = state, at = paramIndex(model, plot.x), y = resultIndex(model, plot.y);
  const values = [...state.values], xs = [], ys = [];
  for (let i = 0; i < POINTS; i++) {
    const share = i / (POINTS - 1);
    let x = plot.log ? plot.from * (plot.to / plot.from) ** share :
      plot.from + (plot.to - plot.from) * share;
    if (model.params[at].whole)
      x = Math.round(x);
    if (x === xs[xs.length - 1] || !wasm.param_check(model.index, at, x))
      continue;
    values[at] = x;
    xs.push(x);
    try {
      ys.push(modelRun(model, values)[y]);
    } catch {
      ys.push(NaN);
    }
  }
  return {xs, ys, x: model.params[at], y: model.results[y]};
}

function sweepDraw() {
  const sweep = state.sweep = sweepRun();
  linePlot($("sweep"), sweep.x, sweep.y, sweep.xs, sweep.ys, state.plot.log);
}

function sweepChange() {
  const old = state.plot.x;
  state.plot.x = $("plot-x").value;
  state.plot.y = $("plot-y").value;
  const param = state.model.params[paramIndex(state.model, state.plot.x)];
  if (state.plot.x !== old) {
    const value = state.values[paramIndex(state.model, state.plot.x)] || 1;
    $("plot-from").value = Math.max(param.min, param.whole ? 1 : value / 64);
    $("plot-to").value = Math.min(param.max, value * 64);
  }
  const from = Number($("plot-from").value), to = Number($("plot-to").value);
  const bad = !(from < to) || from < param.min || to > param.max;
  $("plot-from").setAttribute("aria-invalid", bad);
  if (bad)
    return;
  Object.assign(state.plot, {from, to, log: $("plot-log").value === "log" && from > 0});
  addressWrite();
  sweepDraw();
}

function sweepMake() {
  const {model, plot} = state;
  const choose = (id, rows, value) => {
    const select = make("select", {id, onchange: sweepChange}, ...rows.filter((r) => !r.choices)
      .map((r) => make("option", {value: r.name}, r.name)));
    select.value = value;
    return select;
  };
  const number = (id, value) => make("input", {id, inputmode: "decimal", size: 9, value,
    onchange: sweepChange});
  const scale = make("select", {id: "plot-log", onchange: sweepChange},
    make("option", {value: "log"}, "logarithmic"), make("option", {value: "linear"}, "linear"));
  scale.value = plot.log ? "log" : "linear";
  return make("section", {}, make("h2", {}, "One parameter changes"),
    make("div", {class: "bar"}, make("label", {}, "result", choose("plot-y", model.results, plot.y)),
      make("label", {}, "over", choose("plot-x", model.params, plot.x)),
      make("label", {}, "from", number("plot-from", plot.from)),
      make("label", {}, "to", number("plot-to", plot.to)), make("label", {}, "scale", scale),
      make("button", {type: "button", onclick: () => download("sweep.csv", "text/csv", csvOf([
        [state.sweep.x.name, state.sweep.y.name],
        ...state.sweep.xs.map((x, i) => [x, state.sweep.ys[i]])]))}, "CSV"),
      make("button", {type: "button", onclick: () => plotSvg($("sweep"), "sweep")}, "SVG")),
    make("div", {class: "plot", id: "sweep"}));
}

// Computes the surfaces of the model registration over size and number of transfers.
function surfaceRun() {
  const model = state.model, values = [...state.values];
  const [size, ios] = [paramIndex(model, "size"), paramIndex(model, "ios")];
  const [kept, each, cross] = ["efficiency-kept-gpu", "efficiency-each", "crossover-ios"]
    .map((n) => resultIndex(model, n));
  const s = {sizes: [], ios: [], kept: [], each: [], line: {x: [], y: [], z: []}};
  for (let i = 0; i < SURFACE; i++) {
    s.sizes.push(Math.round(4096 * (2 ** 30 / 4096) ** (i / (SURFACE - 1))));
    s.ios.push(Number((1000 ** (i / (SURFACE - 1))).toPrecision(6)));
  }
  for (const n of s.ios) {
    values[ios] = n;
    const rows = s.sizes.map((bytes) => {
      values[size] = bytes;
      return modelRun(model, values);
    });
    s.kept.push(rows.map((r) => r[kept]));
    s.each.push(rows.map((r) => r[each]));
  }
  for (const bytes of s.sizes) {
    values[size] = bytes;
    values[ios] = 1;
    const n = modelRun(model, values)[cross];
    values[ios] = n;
    if (n >= 1 && n <= 1000) {
      s.line.x.push(bytes);
      s.line.y.push(n);
      s.line.z.push(modelRun(model, values)[kept] + 0.01);
    }
  }
  return s;
}

function surfaceCsv() {
  const s = state.surface, rows = [["size", "ios", "efficiency-kept-gpu", "efficiency-each"]];
  s.ios.forEach((n, k) => s.sizes.forEach((bytes, i) => rows.push([bytes, n, s.kept[k][i],
    s.each[k][i]])));
  return csvOf(rows);
}

// The drawings that only some models have: [title, whether plotly draws it, explanation].
const SPECIAL = {
  registration: ["Efficiency over size and number of transfers", true, "Drag it, or press the " +
    "left and right arrow keys, to turn it. The orange " +
    "surface is host memory that is registered for each transfer; on the pink line, one kept GPU " +
    "registration starts to cost no more."],
  contention: ["The tree", false, "Each link has the colour and the share of the time in which it " +
    "is busy."],
  checkpoint: ["Timeline", false, "Two checkpoints, a failure half an interval later, and the " +
    "recovery."],
};

function specialMake() {
  const special = SPECIAL[state.model.name];
  if (!special)
    return "";
  const [title, plotted, words] = special;
  const csv = plotted ? make("button", {type: "button", onclick: () => download("surface.csv",
    "text/csv", surfaceCsv())}, "CSV") : "";
  return make("section", {}, make("h2", {}, title), make("div", {class: "bar"}, csv,
    make("button", {type: "button", onclick: () => plotted ? plotSvg($("special"), "surface") :
      drawingSvg($("special"), state.model.name)}, "SVG"), make("span", {class: "about"}, words)),
  make("div", {id: "special", class: plotted ? "plot tall" : "drawing scroll", tabindex: 0,
    role: "group", "aria-label": title, onkeydown: (e) => plotted && surfaceKey(e)}));
}

function surfaceKey(event) {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight")
    return;
  event.preventDefault();
  surfaceTurn($("special"), event.key === "ArrowLeft" ? -0.15 : 0.15);
}

function specialDraw() {
  const {model} = state, get = (name) => state.values[paramIndex(model, name)];
  const result = (name) => state.out[resultIndex(model, name)];
  if (model.name === "registration") {
    state.surface = surfaceRun();
    surfacePlot($("special"), state.surface, state.eye, (eye) => {
      state.eye = eye.map((v) => Number(v.toPrecision(4)));
      addressWrite();
    });
  } else if (model.name === "contention") {
    modelRun(model, state.values);
    $("special").replaceChildren(treeDraw(contentionDetails(get("streams"))));
  } else if (model.name === "checkpoint") {
    $("special").replaceChildren(timelineDraw(get, result));
  }
}

// ---- the views ----

let drawing = 0;

// Computes the results of the present values and shows them. The plots follow when the browser
// has time, so that typing stays quick.
function update() {
  let wrong = "";
  try {
    state.out = modelRun(state.model, state.values);
  } catch (error) {
    wrong = error.message;
  }
  inputsFill();
  resultsFill(wrong);
  addressWrite();
  clearTimeout(drawing);
  if (!wrong)
    drawing = setTimeout(() => {
      sweepDraw();
      specialDraw();
      // The state, not the address: the address may be that of a view that is not shown yet.
      document.body.dataset.drawn = addressOf();
    }, 60);
}

function modelShow() {
  const {model} = state, main = $("main");
  main.className = "";
  main.replaceChildren(
    make("div", {}, make("section", {}, make("h2", {}, `${model.name}: ${model.summary}`),
      presetMake(), configMake(), ...model.params.map(fieldMake))),
    make("div", {}, make("section", {}, make("h2", {}, "Results"),
      make("div", {class: "bar"}, make("button", {type: "button", onclick: keep}, "Keep beside"),
        make("button", {type: "button", onclick: () => download(`${model.name}.csv`, "text/csv",
          resultsCsv())}, "CSV"),
        make("button", {type: "button", onclick: linkCopy}, "Copy link")),
      make("div", {id: "results", class: "scroll"})), specialMake(), sweepMake()));
  update();
}

async function linkCopy() {
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
  } catch {
    say(`The link is the address of this page: ${location.href}`);
  }
}

function casesShow() {
  const rows = casesRead();
  const main = $("main");
  main.className = "wide";
  main.replaceChildren(make("section", {}, make("h2", {}, "Published figures"),
    make("p", {class: "about"}, "Each figure is computed from the inputs of its publisher."),
    make("div", {class: "bar"}, make("button", {type: "button", onclick: () => download("cases.csv",
      "text/csv", csvOf([["model", "claim", "result", "value", "low", "high", "verdict", "note"],
        ...rows.map((r) => [r.model, r.claim, r.result, r.value, r.low, r.high,
          r.follows ? "follows" : "does not follow", r.note])]))}, "CSV")),
    make("div", {class: "scroll"}, make("table", {}, make("thead", {}, make("tr", {},
      ...["verdict", "claim", "model", "result", "value", "published"].map((t) =>
        make("th", {}, t)))),
    make("tbody", {}, ...rows.map((r) => make("tr", {},
      make("td", {class: r.follows ? "yes" : "no"}, r.follows ? "follows" : "does not follow"),
      make("td", {}, r.claim, make("div", {class: "about"}, r.note)), make("td", {}, r.model),
      make("td", {}, r.result), make("td", {class: "number"}, String(Number(r.value.toPrecision(6)))),
      make("td", {class: "number"}, r.low === r.high ? String(r.low) :
        `${Number(r.low.toPrecision(6))} to ${Number(r.high.toPrecision(6))}`))))))));
  document.body.dataset.drawn = location.hash;
}

function show() {
  clearTimeout(drawing); // of the view before
  document.body.dataset.drawn = "";
  addressRead();
  const name = state.model ? state.model.name : "cases";
  $("nav").replaceChildren(...[...models.map((m) => m.name), "cases"].map((n) => make("a",
    {href: `#${n}`, "aria-current": n === name ? "page" : null}, n === "cases" ?
      "published figures" : n)));
  document.title = `penstock model ${name}`;
  if (state.model)
    modelShow();
  else
    casesShow();
}

async function plotlyLoad() {
  const packed = new Blob([bytesOf("plotly")]).stream();
  const text = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(Object.assign(document.createElement("script"), {textContent: text}));
}

async function start() {
  try {
    await modelsLoad();
    await plotlyLoad();
  } catch (error) {
    say(`This browser cannot run the page: ${error.message}`);
    throw error;
  }
  show();
  addEventListener("hashchange", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (state.model)
      update();
  });
}

// For tests: computes a model with the given values of its parameters, by name.
window.penstockModel = (name, settings) => {
  const model = models.find((m) => m.name === name), values = modelDefaults(model, -1);
  for (const [key, text] of Object.entries(settings))
    values[paramIndex(model, key)] = valueParse(model, paramIndex(model, key), text);
  const out = modelRun(model, values);
  return Object.fromEntries(model.results.map((r, i) => [r.name, r.choices ?
    r.choices[out[i]] ?? null : Number.isFinite(out[i]) ? out[i] : null]));
};
start();
