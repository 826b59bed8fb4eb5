// The rest of window.advisorModel's function: `data`, `ledger`, `planInputs`, `rulebook` and the translated functions
// stand above it. Everything that is computed here is put together from them.

const memory = (key, make) => {
  const known = new Map();
  return (...values) => {
    const name = key(...values);
    if (!known.has(name)) known.set(name, make(...values));
    return known.get(name);
  };
};
smaller_side = memory((...sizes) => sizes.join(), smaller_side);

// How many ranks of the group that begins with `first` each domain holds.
function _per_domain(first, stride, ranks, domain) {
  const held = new Map();
  for (let i = 0; i < ranks; i++) {
    const place = Math.floor((first + stride * i) / domain);
    held.set(place, (held.get(place) ?? 0) + 1);
  }
  return [...held.values()];
}

// What is given to the simulator is in order: the ledger's times are finite.
function _check() {}

const chunksOf = memory(
  (row) => row,
  (row) => {
    const kinds = [];
    const runs = data.layouts.rows[row][1];
    for (let i = 0; i < runs.length; i += 2)
      for (let n = 0; n < runs[i + 1]; n++) kinds.push(data.layouts.kinds[runs[i]]);
    return kinds;
  },
);

// Chunks by stage, as `costmodel.layout` gives them: virtual stage c x pp + s is chunk c of stage s.
function _layout(prediction) {
  const kinds = chunksOf(prediction.row);
  const { pp, vpp } = prediction.plan;
  return range(pp).map((stage) => range(vpp).map((chunk) => kinds[chunk * pp + stage]));
}

// Every knob with its value, where `knobs` says nothing the plan's own.
function settingsOf(knobs) {
  for (const name of Object.keys(knobs))
    if (!Object.hasOwn(data.settings, name)) throw new Error(`${name} is not a knob of this page`);
  const settings = { ...data.settings, ...knobs };
  if (data.controls.some((control) => control.knob === "zero_stage")) settings.fsdp = settings.zero_stage >= 2;
  const encoder = (settings.encoder_tp || settings.tp) * settings.encoder_pp;
  const replica = settings.cp * (settings.tp * settings.pp + encoder);
  settings.dp = Math.max(1, Math.floor(data.gpus / replica));
  return settings;
}

// Columns as `costmodel.columns` makes them: codes of choices, 0 or 1 of switches, one for each item of a list.
function columnsOf(settings) {
  const columns = {};
  for (const [name, choices] of Object.entries(data.columns))
    columns[name] = choices === null ? Number(settings[name]) : choices.indexOf(settings[name]);
  const modules = settings.recompute_modules.length ? settings.recompute_modules : data.unnamed_modules;
  const recomputed = settings.recompute === "selective" ? modules : [];
  for (const [name, [knob, item]] of Object.entries(data.items))
    columns[name] = Number((knob === "recompute_modules" ? recomputed : settings[knob]).includes(item));
  return columns;
}

function layoutPlace(settings, columns) {
  const flags = [columns.account_embedding, columns.account_loss, columns.pipeline_layout];
  const ends = [settings.first_stage_layers, settings.last_stage_layers];
  return [settings.pp, settings.vpp, ...flags, ...ends, settings.seq_len].join();
}

// Every entry of the ledger, or why nothing is predicted.
function values(settings, columns) {
  const passes = settings.global_batch / (settings.micro_batch * settings.dp);
  const encoder = (settings.encoder_tp || settings.tp) * settings.encoder_pp;
  const used = settings.dp * settings.cp * (settings.tp * settings.pp + encoder);
  if (used !== data.gpus) return { problem: `${used} of the ${data.gpus} GPUs would be used` };
  if (!Number.isInteger(passes)) return { problem: "the batch does not divide into micro-batches" };
  const row = data.layouts.index[layoutPlace(settings, columns)];
  if (row === undefined) return { problem: "fewer layers than chunks of the pipeline" };
  if (typeof row === "string") return { problem: row };
  const bound = {
    ...data.bound.base,
    ...data.bound.precision[settings.precision],
    ...data.bound.seq_len[settings.seq_len],
  };
  const blocks = Object.fromEntries(data.layouts.names.map((name, i) => [name, data.layouts.rows[row][0][i]]));
  const { tp, pp, cp, dp, ep, etp, nvl_segment } = settings;
  const places = placed(data.domain, tp, pp, cp, dp, ep, etp, nvl_segment, tp * pp * cp * dp);
  const ranks = Object.fromEntries(data.placed.map((name, i) => [name, places[i]]));
  const given = { ...data.precision[settings.precision].formats, layers_pace: blocks.layers_pace };
  const own = planInputs(columns, { ...given, global_batch: settings.global_batch });
  const inputs = { ...bound, ...blocks, ...ranks, ...own };
  const held = { ...inputs, ...ledger(inputs) };
  const found = timed(held, inputs, settings);
  const plan = { ...settings, num_microbatches: () => passes };
  if (settings.pp === 1 && !settings.encoder_pp) return { found, held, correction: 0 };
  try {
    return { found, held, correction: schedule_correction({ values: found, plan, workload: settings, row }) };
  } catch (error) {
    return { problem: error.message };
  }
}

// Entries with the time of sequences padded to the longest of a batch, as costmodel.plan_array.padded_in_full has it;
// terms of memory stay as they were found.
function timed(found, inputs, settings) {
  const longest = data.bound.longest[[settings.seq_len, settings.global_batch].join()];
  if (!longest || settings.pp > 1 || settings.ep > 1 || settings.encoder_pp || settings.cuda_graph) return found;
  const own = { ...inputs, ...longest };
  const all = { ...own, ...ledger(own) };
  const keep = ([name, , parts]) => {
    all[name] = found[name];
    parts.forEach(keep);
  };
  Object.entries(data.trees).forEach(([name, tree]) => name.startsWith("memory_") && keep(tree));
  return all;
}

function treeOf([name, title, parts], found) {
  return { name, title, value: found[name], parts: parts.map((part) => treeOf(part, found)) };
}

function predicted(settings, columns) {
  const { found, held, correction, problem } = values(settings, columns);
  if (problem) return { problem, step_time: null, memory: null };
  const stages = settings.pp > 1 ? ["first", "second", "fullest", "last"] : ["first"];
  const worst = most(stages, (stage) => found[`memory_${stage}`]);
  const peak = found[`memory_${worst}`];
  const step = found.step_time + correction;
  const time = treeOf(data.trees.step_time, found);
  if (settings.pp > 1 || settings.encoder_pp) {
    const [name, title] = data.correction;
    time.value = step;
    time.parts.push({ name, title, value: correction, parts: [] });
  }
  const flops = found.model_flops / step / data.gpus;
  return {
    problem: "",
    step_time: step,
    tokens_per_second_per_gpu: Math.round(found.fill * found.s * settings.global_batch) / step / data.gpus,
    model_tflops_per_gpu: flops / 1e12,
    mfu: flops / found.linear_peak,
    memory: peak,
    device: found.gpu_memory,
    fits: peak <= data.fits_below * found.gpu_memory,
    tight: peak > data.tight_above * found.gpu_memory,
    worst_stage: worst,
    time,
    memory_tree: treeOf(data.trees[`memory_${worst}`], found),
    values: found,
    host: nodeHost(settings, held, stages),
  };
}

// Host memory that offloading takes of the fullest node, at least and at most, as costmodel.host_memory counts it.
function nodeHost({ tp, pp, cp, dp }, held, stages) {
  if (!data.offloads.some((name) => held[name])) return [0, 0];
  const whole = ledger({ ...held, ...Object.fromEntries(data.offloads.map((name) => [name, 0])) });
  const each = stages.map((stage) => {
    const [activations, state] = ["activations", "optimizer"].map((part) => `memory_${stage}_${part}`);
    return whole[activations] - held[activations] + ((whole[state] - held[state]) * data.host_state) / held.host_state_bytes;
  });
  const ranks = Math.min(data.gpus_per_node, data.gpus);
  const apart = (tp * cp * dp) % data.gpus_per_node === 0 || pp === 1;
  return [ranks * (apart ? Math.max(...each) : Math.min(...each)), ranks * Math.max(...each)];
}

// As advisor.rules.predicted_words has it.
function overlapGain({ tp, tp_comm_overlap }, found) {
  if (tp === 1 || tp_comm_overlap) return data.unsaid;
  const { step_time } = ledger({ ...found, tp_overlap: 1, sp: 1 });
  return Math.max(0, round(100 * (1 - step_time / found.step_time)));
}

// As advisor.rules.predicted_words has it. [byte]
function dispatchBuffers({ moe_dispatcher, ep, etp, tp, cp, sequence_parallel, micro_batch, seq_len }, found) {
  if (!found.E || moe_dispatcher !== "hybridep" || ep === 1) return 0;
  const tokens = (micro_batch * seq_len) / (cp * (sequence_parallel ? tp : 1));
  return 2 * ep * etp * tokens * (found.activation_bytes * found.he + 4 * found.E);
}

// As advisor.rules.predicted_words has it. [s]
function arrivals({ zero_stage, fsdp }, found) {
  return zero_stage > 0 && !fsdp ? found.dp_gather_arrivals : 0;
}

// Values of the parts of a tree that have no parts, by name.
function leavesOf({ name, value, parts }) {
  return parts.length ? Object.assign({}, ...parts.map(leavesOf)) : { [name]: value };
}

// As advisor.rules.predicted_words has them.
function predictedWords({ problem, step_time, memory, device, values: found, host, time }, settings) {
  if (problem) return Object.fromEntries(data.unpredicted.map((name) => [name, data.unsaid]));
  const shares = data.scattered.map(([scatter, gemm]) =>
    found[scatter] > 0 && found[gemm] > 0 ? found[scatter] / found[gemm] : 0,
  );
  const spent = leavesOf(time);
  return {
    memory_percent: round((100 * memory) / device),
    dispatch_buffer_percent: round((100 * dispatchBuffers(settings, found)) / device),
    scatter_percent: round(100 * Math.max(...shares)),
    arrival_percent: round((100 * arrivals(settings, found)) / step_time),
    tp_overlap_gain: overlapGain(settings, found),
    host_gb: round(host[0] / 1e9),
    host_most_gb: round(host[1] / 1e9),
    host_memory_gb: data.host_memory_gb,
    ...Object.fromEntries(
      Object.entries(data.waits).map(([word, leaves]) => [
        word,
        round((100 * leaves.reduce((sum, leaf) => sum + (spent[leaf] ?? 0), 0)) / step_time),
      ]),
    ),
  };
}

// Rules that the settings break, in the order in which they are told.
function judged(settings, columns, prediction) {
  const world = settings.tp * settings.pp * settings.cp * settings.dp;
  const encoder = settings.encoder_pp
    ? settings.dp * settings.cp * Math.max(settings.encoder_tp, 1) * settings.encoder_pp
    : 0;
  const given = {
    ...data.precision[settings.precision].words,
    global_batch: settings.global_batch,
    seq_len: settings.seq_len,
    used: used_domain(data.domain, world + encoder, settings.nvl_segment),
    layout_problem: data.layouts.problems[layoutPlace(settings, columns)] ?? "",
    layout_layers: data.layouts.layers[layoutPlace(settings, columns)] ?? 0,
    ...predictedWords(prediction, settings),
    modules_given: settings.recompute_modules.length > 0,
  };
  const { broken, words, lacks } = rulebook.judge(columns, given);
  return rulebook.rules
    .map((rule, i) => broken[i] && { ...rule, text: rule.text(words), way_out: rule.way_out(words, lacks[i]) })
    .filter(Boolean);
}

// Ways out that the stack and the machine have, as advisor.rules has them. ways: each with what it may lack, in words;
// lacks: which of these it does, -1 for none; most: how many are told, 0 for all; then: what is said behind them.
function wayOut(ways, lacks, most = 0, then = "") {
  const there = ways.filter(([way], i) => lacks[i] < 0 && way).map(([way]) => way);
  if (!there.length) {
    const lacking = ways.filter((_, i) => lacks[i] >= 0).map(([, texts], i) => texts[lacks.filter((n) => n >= 0)[i]]);
    return `${rulebook.nothing}${[...new Set(lacking)].join(", ")}.`;
  }
  let verb = "";
  const parts = there.slice(0, most || there.length).map((way) => {
    const first = way.split(" ", 1)[0];
    const part = first === verb ? way.slice(first.length + 1) : way;
    verb = first;
    return part;
  });
  const text = parts.join(", or ");
  return `${text[0].toUpperCase()}${text.slice(1)}.${then && ` ${then}`}`;
}

function evaluate(knobs = {}) {
  const settings = settingsOf(knobs);
  const columns = columnsOf(settings);
  const prediction = predicted(settings, columns);
  const broken = judged(settings, columns, prediction);
  const errors = broken.filter((rule) => rule.severity === "ERROR").length;
  const holds = !prediction.problem && errors === 0 && prediction.fits;
  return { ...prediction, settings, broken, errors, holds };
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const worded = (value) => (Array.isArray(value) ? value.join("+") || "none" : String(value));
const SIZES = ["tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch"];

// `advisor predict` of this very plan: the sizes, every knob that is not at its default, and the plan's settings.
function commandLine(knobs = {}) {
  const settings = settingsOf(knobs);
  const words = ["advisor", "predict"];
  const say = (name, value) => {
    const option = name.replaceAll("_", "-");
    if (typeof value === "boolean") words.push(`--${value ? "" : "no-"}${option}`);
    else words.push(`--${option}`, quoted(worded(value)));
  };
  Object.entries(data.command).forEach(([name, value]) => say(name, value));
  for (const name of ["seq_len", "global_batch", "precision"]) say(name, settings[name]);
  for (const [name, usual] of Object.entries(data.defaults)) {
    if (["dp", "precision"].includes(name) || (!data.experts && ["ep", "etp"].includes(name))) continue;
    if (SIZES.includes(name) || worded(settings[name]) !== worded(usual)) say(name, settings[name]);
  }
  data.kept.forEach((pair) => say("set", pair));
  return words.join(" ");
}

return {
  evaluate,
  commandLine,
  controls: data.controls,
  severities: data.severities,
  settings: settingsOf({}),
  gpus: data.gpus,
};
