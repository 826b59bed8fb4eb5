// The section "What if": native controls on one side, what they cost on the other. It asks window.advisorModel alone.
"use strict";
(() => {
  const model = window.advisorModel;
  const { element, seconds, gib, percent } = window.advisorPage;
  const home = document.getElementById("whatif-body");
  const base = model.evaluate();
  const SHOWN = 7;
  let knobs = {};

  const worded = (value) => {
    if (typeof value === "boolean") return value ? "on" : "off";
    if (Array.isArray(value)) return value.join(" + ") || "none";
    if (value === "") return "even";
    return typeof value === "number" ? value.toLocaleString("en-US") : String(value);
  };
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const minus = (text) => text.replace(/^-/, "−");
  const signed = (value, write) => `${value < 0 ? "−" : "+"}${write(Math.abs(value))}`;

  // A control: the element, and `show(value)` which puts a value into it.
  const makers = {
    slider(control, name, set) {
      const places = control.values;
      const input = native("input", control, { type: "range", id: name, min: 0, max: places.length - 1, step: 1 });
      const output = element("output", { for: name });
      const show = (value) => {
        input.value = places.indexOf(value);
        input.setAttribute("aria-valuetext", worded(value));
        output.textContent = worded(value);
      };
      input.addEventListener("input", () => set(places[Number(input.value)]));
      const head = element("div", { class: "name" }, label(control, name), output);
      return { parts: [head, input], show };
    },
    choice(control, name, set) {
      const input = native("select", control, { id: name });
      control.values.forEach((value, i) => input.append(element("option", { value: i }, worded(value))));
      input.addEventListener("change", () => set(control.values[Number(input.value)]));
      const show = (value) => { input.value = control.values.indexOf(value); };
      return { parts: [element("div", { class: "name" }, label(control, name)), input], show };
    },
    switch(control, name, set) {
      const input = native("input", control, { type: "checkbox", role: "switch", id: name });
      input.addEventListener("change", () => set(input.checked));
      const show = (value) => { input.checked = value; };
      return { parts: [element("div", { class: "switch" }, input, label(control, name))], show };
    },
    items(control, name, set) {
      const boxes = control.values.map((item) => element("input", { type: "checkbox", id: `${name}-${item}` }));
      const taken = () => control.values.filter((_, i) => boxes[i].checked);
      boxes.forEach((box) => box.addEventListener("change", () => set(taken())));
      const rows = control.values.map((item, i) =>
        element("span", { class: "item" }, boxes[i], element("label", { for: boxes[i].id }, item.replaceAll("_", " "))));
      const show = (value) => boxes.forEach((box, i) => { box.checked = value.includes(control.values[i]); });
      const legend = element("legend", { title: control.meaning }, control.label);
      return { parts: [legend, element("div", { class: "items" }, ...rows)], show, group: true };
    },
  };
  const label = (control, name) => element("label", { for: name, title: control.meaning }, control.label);
  const native = (name, control, attributes) => element(name, { "aria-description": control.meaning, ...attributes });

  function knobOf(control) {
    const set = (value) => {
      if (same(value, control.current)) delete knobs[control.knob];
      else knobs[control.knob] = value;
      later();
    };
    const { parts, show, group } = makers[control.kind](control, `knob-${control.knob}`, set);
    const was = element("div", { class: "was" });
    const box = element(group ? "fieldset" : "div", { class: `knob${group ? " wide" : ""}` }, ...parts, was);
    const update = (settings) => {
      const changed = Object.hasOwn(knobs, control.knob);
      show(settings[control.knob]);
      box.classList.toggle("changed", changed);
      was.textContent = changed ? `was ${worded(control.current)}` : "";
    };
    return { box, update };
  }

  const made = model.controls.map((control) => ({ control, ...knobOf(control) }));
  const grid = (wanted) => element("div", { class: "knobs" }, ...made.filter(wanted).map((each) => each.box));
  const topics = [...new Set(made.filter(({ control }) => !control.main).map(({ control }) => control.topic))];
  const reset = element("button", { type: "button", class: "button" }, "Back to the plan");
  reset.addEventListener("click", () => { knobs = {}; update(); });
  const panel = element("div", {},
    element("div", { class: "acts" }, reset),
    grid(({ control }) => control.main),
    ...topics.map((topic) => element("details", {}, element("summary", {}, topic),
      grid(({ control }) => !control.main && control.topic === topic))));
  const summary = element("div", { class: "summary", "aria-hidden": "true" });
  const verdict = element("p", { class: "verdict", "aria-live": "polite" });
  const content = element("div");
  const code = element("code");
  const copy = element("button", { type: "button", class: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(code);
      copy.textContent = "Selected";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const result = element("div", { class: "result" }, verdict, content, element("p", { class: "note" }, "The same plan as a command; with --save FILE it is kept as a plan file:"),
    element("div", { class: "line" }, code, copy));
  home.replaceChildren(summary, panel, result);

  const leaves = (tree) => tree.parts.length ? tree.parts.flatMap(leaves) : [tree];
  const byTitle = (terms) => {
    const found = new Map();
    for (const term of terms) found.set(term.title, (found.get(term.title) ?? 0) + term.value);
    return found;
  };

  function change(now, before, better, write) {
    if (before === null || now === before) return element("span", { class: "delta" }, "as the plan");
    const share = now / before - 1;
    const kind = Math.abs(share) < 5e-5 ? "" : share * better > 0 ? " good" : " bad";
    return element("span", { class: `delta${kind}` }, write ? signed(now - before, write) : signed(share, percent));
  }
  const tile = (name, value, ...rest) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, element("div", { class: "value" }, value), ...rest));

  function numbers(now) {
    const share = now.memory / now.device;
    const bar = element("i", { class: now.fits ? (now.tight ? "warn" : "") : "bad" });
    bar.style.setProperty("--share", `${100 * Math.min(share, 1)}%`);
    const meter = element("span", { class: "meter", "aria-hidden": "true" }, bar);
    return element("dl", { class: "numbers" },
      tile("step time", seconds(now.step_time), change(now.step_time, base.step_time, -1)),
      tile("MFU", percent(now.mfu), change(now.mfu, base.mfu ?? null, 1)),
      tile("tokens/s per GPU", Math.round(now.tokens_per_second_per_gpu).toLocaleString("en-US"),
        change(now.tokens_per_second_per_gpu, base.tokens_per_second_per_gpu ?? null, 1)),
      tile("memory", gib(now.memory), meter, element("div", { class: "delta" }, `of ${gib(now.device)}`),
        change(now.memory, base.memory, -1, gib)));
  }

  // The terms that moved most against the plan; the largest where none did.
  function terms(caption, now, before, write) {
    const old = byTitle(before);
    const current = byTitle(now);
    const rows = [...new Set([...old.keys(), ...current.keys()])].map((title) => {
      const value = current.get(title) ?? 0;
      return { title, value, moved: value - (old.get(title) ?? 0) };
    });
    const size = rows.reduce((sum, row) => sum + Math.abs(row.value), 0);
    const moved = rows.filter((row) => Math.abs(row.moved) > 1e-6 * size);
    const shown = (moved.length ? moved : rows).sort((a, b) =>
      moved.length ? Math.abs(b.moved) - Math.abs(a.moved) : b.value - a.value).slice(0, SHOWN);
    const cell = (text, kind = "right") => element("td", { class: kind }, text);
    const delta = ({ moved: by }) => Math.abs(by) > 1e-6 * size
      ? element("td", { class: "right" }, element("span", { class: `delta ${by < 0 ? "good" : "bad"}` }, signed(by, write)))
      : cell("");
    return element("div", { class: "scroll" }, element("table", { class: "table" },
      element("caption", {}, `${caption}: ${moved.length ? "what moved most" : "the largest"}`),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "term"),
        element("th", { scope: "col", class: "right" }, "now"), element("th", { scope: "col", class: "right" }, "change"))),
      element("tbody", {}, ...shown.map((row) => element("tr", {},
        element("th", { scope: "row" }, row.title), cell(row.value ? minus(write(row.value)) : "0"), delta(row))))));
  }

  function brokenRules(now) {
    const known = new Set(base.broken.map((rule) => rule.id));
    const line = (rule) => element("li", { class: rule.severity, title: rule.source },
      element("b", {}, `${model.severities[rule.severity]}${known.has(rule.id) ? "" : ", new"}: `),
      `${rule.text}. `, element("span", { class: "out" }, rule.way_out));
    const errors = now.broken.filter((rule) => rule.severity === "ERROR");
    const others = now.broken.filter((rule) => rule.severity !== "ERROR");
    const list = (rules) => element("ul", { class: "broken" }, ...rules.map(line));
    const parts = errors.length ? [list(errors)] : [];
    if (others.length) {
      const fresh = others.some((rule) => !known.has(rule.id));
      const head = `${others.length} more worth knowing`.replace(errors.length ? "" : " more", "");
      parts.push(element("details", { open: fresh ? "" : false }, element("summary", {}, head), list(others)));
    }
    return parts;
  }

  function judgement(now) {
    const large = !now.problem && !now.fits ? ", and it does not fit" : "";
    if (now.errors) return ["bad", `Does not run: ${now.errors} error${now.errors > 1 ? "s" : ""}${large}`];
    if (now.problem) return ["bad", `Not predicted: ${now.problem}`];
    if (!now.fits) return ["bad", "Does not fit into memory"];
    return now.tight ? ["warn", "Runs, but memory is tight"] : ["good", "Runs and fits"];
  }

  function update() {
    const now = model.evaluate(knobs);
    const [kind, said] = judgement(now);
    const passes = now.settings.global_batch / (now.settings.micro_batch * now.settings.dp);
    verdict.className = `verdict ${kind}`;
    const sizes = `dp ${now.settings.dp}${Number.isInteger(passes) ? `, ${passes.toLocaleString("en-US")} micro-batches` : ""}`;
    verdict.textContent = `${said}. ${sizes}.`;
    const brief = now.problem ? "" : ` · ${seconds(now.step_time)} · ${gib(now.memory)} of ${gib(now.device)}`;
    summary.textContent = said + brief;
    const parts = now.problem ? [] : [numbers(now)];
    const rest = now.problem ? [] : [
      terms("Time", leaves(now.time), base.problem ? [] : leaves(base.time), seconds),
      terms("Memory", now.memory_tree.parts, base.problem ? [] : base.memory_tree.parts, gib),
    ];
    content.replaceChildren(...parts, ...brokenRules(now), ...rest);
    code.textContent = model.commandLine(knobs);
    reset.disabled = !Object.keys(knobs).length;
    made.forEach((each) => each.update(now.settings));
  }

  let waiting = 0;
  function later() {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(update);
  }
  update();
})();
