// SPDX-License-Identifier: Apache-2.0
// The models of the page: calls the C code (model.wasm) and reads its tables. It has no formula
// and draws nothing.
"use strict";

const PARTS = ["params", "results", "presets"];
const FIELDS = ["name", "unit", "choices", "about", "source", "formula"];

let wasm = null;
const models = [];

function bytesOf(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  return Uint8Array.from(text, (c) => c.charCodeAt(0));
}

// Returns the C string at an address.
function textAt(address) {
  const bytes = new Uint8Array(wasm.memory.buffer);
  const end = bytes.indexOf(0, address);
  return new TextDecoder().decode(bytes.subarray(address, end));
}

function rowOf(model, part, i) {
  const row = {};
  FIELDS.forEach((field, k) => { row[field] = textAt(wasm.part_text(model, part, i, k)); });
  row.choices = row.choices ? row.choices.split("|") : null;
  row.whole = row.unit === "bytes" || row.unit === "count";
  if (part === 0)
    ["value", "min", "max"].forEach((n, k) => { row[n] = wasm.param_number(model, i, k); });
  return row;
}

function modelRead(index) {
  const model = {index, name: textAt(wasm.model_text(index, 0)),
    summary: textAt(wasm.model_text(index, 1))};
  PARTS.forEach((part, p) => {
    model[part] = [];
    for (let i = 0; i < wasm.part_count(index, p); i++)
      model[part].push(rowOf(index, p, i));
  });
  return model;
}

async function modelsLoad() {
  const made = await WebAssembly.instantiate(bytesOf("wasm"), {});
  wasm = made.instance.exports;
  for (let i = 0; textAt(wasm.model_text(i, 0)); i++)
    models.push(modelRead(i));
}

// Returns the values of all parameters after a preset (its index, or -1).
function modelDefaults(model, preset) {
  wasm.model_preset(model.index, preset);
  return Array.from(new Float64Array(wasm.memory.buffer, wasm.input(), model.params.length));
}

// Runs a model. Returns its results, or throws the model's message.
function modelRun(model, values) {
  new Float64Array(wasm.memory.buffer, wasm.input(), values.length).set(values);
  const wrong = textAt(wasm.model_run(model.index));
  if (wrong)
    throw new Error(wrong);
  return Array.from(new Float64Array(wasm.memory.buffer, wasm.output(), model.results.length));
}

function paramIndex(model, name) {
  return model.params.findIndex((p) => p.name === name);
}

function resultIndex(model, name) {
  return model.results.findIndex((r) => r.name === name);
}

const SIZES = {KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, K: 2 ** 10, M: 2 ** 20,
  G: 2 ** 30, T: 2 ** 40, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12};

// Parses the text of an input. Returns a number, or null if the parameter may not have it.
function valueParse(model, i, text) {
  const param = model.params[i];
  if (param.choices) {
    const at = param.choices.indexOf(text);
    return at < 0 ? null : at;
  }
  const found = /^\s*([-+0-9.eE]+)\s*([A-Za-z]*)\s*$/.exec(text);
  if (!found || (found[2] && (param.unit !== "bytes" || !SIZES[found[2]])))
    return null;
  let value = Number(found[1]) * (found[2] ? SIZES[found[2]] : 1);
  if (found[2])
    value = Math.floor(value);
  return wasm.param_check(model.index, i, value) ? value : null;
}

// Reads the text of a Hugging Face config.json as model_config_parse (cli/model_data.c) does. Returns
// the parameters of the model kvcache that it sets, by name. Throws a message if it sets none.
function configParse(text) {
  let all;
  try {
    all = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is no JSON: ${error.message}`);
  }
  // Models with vision have the settings of the language model in text_config.
  const config = {...all, ...(all && all.text_config)};
  const number = (key) => typeof config[key] === "number" ? config[key] : 0;
  const heads = number("num_attention_heads"), type = String(config.torch_dtype || config.dtype);
  const found = {
    "layers": number("num_hidden_layers"),
    // Without this key, each head has its own keys and values.
    "kv-heads": number("num_key_value_heads") || heads,
    "head-dim": number("head_dim") || (heads > 0 ? Math.floor(number("hidden_size") / heads) : 0),
    "latent-dim": number("kv_lora_rank") > 0 ? number("kv_lora_rank") + number("qk_rope_head_dim")
      : 0,
    "element-bytes": type === "float32" ? 4 : type.startsWith("float8") ? 1 : 2,
  };
  if (found.layers < 1 || (found["latent-dim"] < 1 && (found["kv-heads"] < 1 ||
      found["head-dim"] < 1)))
    throw new Error("this is no config.json of a language model: num_hidden_layers, " +
      "num_attention_heads or hidden_size is missing");
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value > 0));
}

// Returns a value as text with six digits; a choice as its word.
function valueText(row, value) {
  if (Number.isNaN(value))
    return "–";
  if (row.choices)
    return row.choices[value];
  if (Number.isInteger(value) && Math.abs(value) < 1e15)
    return String(value);
  return String(Number(value.toPrecision(6)));
}

// Returns the state of the last run of the model `contention`.
function contentionDetails(streams) {
  const links = [], paths = [], rates = [];
  for (let i = 0; i < wasm.link_count(); i++)
    links.push({name: textAt(wasm.link_name(i)), kind: wasm.link_kind(i), use: wasm.link_use(i)});
  for (let s = 0; s < streams; s++) {
    const path = [];
    for (let h = 0; h < wasm.stream_hops(s); h++)
      path.push(wasm.stream_hop(s, h));
    paths.push(path);
    rates.push(wasm.stream_rate(s) * 1e-9);
  }
  return {links, paths, rates};
}

function casesRead() {
  const rows = [];
  for (let i = 0; i < wasm.case_count(); i++) {
    const [model, claim, result, note] = [0, 1, 2, 3].map((f) => textAt(wasm.case_text(i, f)));
    const follows = wasm.case_run(i);
    const [value, low, high] = new Float64Array(wasm.memory.buffer, wasm.output(), 3);
    rows.push({model, claim, result, note, follows, value, low, high});
  }
  return rows;
}
