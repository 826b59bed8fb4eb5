// Drilling down: from a term of time or memory to its formula, its inputs, and on through the formulas below it.
"use strict";
(() => {
  const page = window.advisorPage;
  const { element, data } = page;
  const { entries, documents } = data.formulas;
  const trees = { time: data.prediction.terms, memory: data.prediction.memory_terms };
  const keys = { time: "seconds", memory: "bytes" };
  const found = { time: new Map(), memory: new Map() };

  for (const [which, root] of Object.entries(trees)) {
    (function walk(term, parents) {
      found[which].set(term.name, { ...term, parents });
      term.parts.forEach((part) => walk(part, [...parents, term.name]));
    })(root, []);
  }

  function trail(which, names, last) {
    const row = element("div", { class: "trail" });
    names.forEach((name) => {
      const title = (found[which].get(name) || entries[name]).title;
      const button = element("button", { type: "button", class: "term" }, title);
      button.addEventListener("click", () => show(which, name, names.slice(0, names.indexOf(name))));
      row.append(button, " \u203a ");
    });
    row.append(last);
    return row;
  }

  function sum(which, term) {
    const key = keys[which];
    const parts = term.parts.filter((part) => part[key]);
    return element("p", {}, `= ${parts.map((part) => `${part.title} ${page.amount(part[key], key)}`).join(" + ")}`);
  }

  // Draw the panel of a term (or of an entry below one); path: what was chosen before it.
  function show(which, name, path, focus = true) {
    const panel = document.getElementById(`${which}-detail`);
    const term = found[which].get(name);
    const entry = entries[name];
    const before = path || (term ? term.parents : []);
    const title = term ? term.title : entry.title;
    const value = term ? term[keys[which]] : entry.value;
    const unit = term ? keys[which] : entry.unit;
    const share = term ? `, ${page.percent(term.share)} of the whole` : "";
    panel.replaceChildren(
      trail(which, before, title),
      element("h3", {}, title),
      element("p", {}, element("strong", {}, page.amount(value, unit)), share),
    );
    if (term && term.parts.length) {
      panel.append(sum(which, term));
    } else if (entry) {
      panel.append(...page.formula(name));
      if (entry.uses.length) panel.append(page.ingredients(name, (word) => show(which, word, [...before, name])));
    }
    const formula = entry ? entry.formula : term.formula;
    if (documents[formula]) {
      panel.append(element("details", {}, element("summary", {}, `How it is defined: ${formula}`), element("pre", { class: "document" }, documents[formula])));
    } else if (!term || !term.parts.length) {
      panel.append(element("p", { class: "note" }, `Defined in ${formula}.`));
    }
    document.querySelectorAll(`#${which} .tree tbody tr`).forEach((row) => {
      const chosen = row.querySelector(".term").dataset.term === name;
      row.toggleAttribute("aria-current", false);
      if (chosen) row.setAttribute("aria-current", "true");
    });
    if (focus) panel.focus({ preventScroll: false });
  }

  for (const which of Object.keys(trees)) {
    document.querySelectorAll(`#${which} .tree .term`).forEach((button) => {
      button.addEventListener("click", () => show(which, button.dataset.term));
    });
  }
  // Something to read at once: the largest term that has a formula.
  for (const which of Object.keys(trees)) {
    const leaves = [...found[which].values()].filter((term) => !term.parts.length && entries[term.name]);
    leaves.sort((one, other) => other[keys[which]] - one[keys[which]]);
    if (leaves.length) show(which, leaves[0].name, null, false);
  }
  page.show = show;
  page.trees = trees;
  page.keys = keys;
})();
