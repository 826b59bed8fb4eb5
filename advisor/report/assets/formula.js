// Formulas: MathML as the cost model's expressions were printed, the same with this plan's numbers put in.
"use strict";
(() => {
  const page = window.advisorPage;
  const { entries, inputs } = page.data.formulas;
  const typeset = window.DecompressionStream
    ? page.unpack("formulas").then(JSON.parse)
    : Promise.reject(new Error("no way to unpack"));
  const MATH = "http://www.w3.org/1998/Math/MathML";

  const valueOf = (name) => (entries[name] || inputs[name] || {}).value;

  // Numbers in four figures; powers of ten as in 3.35 x 10^12.
  function numeral(value) {
    const row = document.createElementNS(MATH, "mrow");
    const piece = (name, text) => {
      const made = document.createElementNS(MATH, name);
      made.textContent = text;
      return made;
    };
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e6) {
      row.append(piece("mn", String(value)));
    } else if (value !== 0 && (size >= 1e6 || size < 1e-3)) {
      const [digits, power] = value.toExponential(3).split("e");
      const raised = document.createElementNS(MATH, "msup");
      raised.append(piece("mn", "10"), piece("mn", String(Number(power)).replace("-", "\u2212")));
      row.append(piece("mn", String(Number(digits))), piece("mo", "\u00b7"), raised);
    } else {
      row.append(piece("mn", String(Number(value.toPrecision(4)))));
    }
    return row;
  }

  function math(mathml, numbers) {
    const made = document.createElementNS(MATH, "math");
    made.setAttribute("display", "block");
    // Printed by this package from its own expressions: nothing in it comes from a user.
    made.innerHTML = `<mrow>${mathml}</mrow>`;
    if (numbers) {
      for (const word of [...made.querySelectorAll("mi")]) {
        const value = valueOf(word.textContent);
        if (value !== undefined && value !== null) {
          const shown = numeral(value);
          shown.setAttribute("title", word.textContent);
          word.replaceWith(shown);
        }
      }
    }
    return made;
  }

  function formula(name) {
    const entry = entries[name];
    const { element } = page;
    const place = (label) => element("div", { class: "formula", tabindex: "0", role: "group", "aria-label": label });
    const lines = [place("Formula")];
    if (entry.uses.length) {
      lines.push(element("div", { class: "note" }, "with the numbers of this plan"), place("Formula with numbers"));
    }
    typeset.then(
      (known) => lines.filter((line) => line.className === "formula").forEach((line, number) => line.append(math(known[name], number === 1))),
      () => lines[0].append("This browser is too old to show the formula; `advisor predict --term` prints it."),
    );
    lines.push(element("p", {}, `= ${page.amount(entry.value, entry.unit)}`, entry.unit === "1" ? "" : ` (${page.number(entry.value)} ${entry.unit})`));
    return lines;
  }

  // What a formula is made of: earlier entries to go on with, and inputs with their sources.
  function ingredients(name, go) {
    const { element } = page;
    const rows = entries[name].uses.map((word) => {
      const inner = entries[word];
      const known = inner || inputs[word];
      const label = inner
        ? element("button", { type: "button", class: "term", "data-word": word }, word)
        : element("code", {}, word);
      if (inner) label.addEventListener("click", () => go(word));
      let source = inner ? "a formula: choose it to go on" : known.source;
      if (known.link) source = element("a", { href: known.link, rel: "noopener noreferrer" }, known.source);
      const kind = inner ? "formula" : known.kind;
      return element(
        "tr", {},
        element("th", { scope: "row" }, label),
        element("td", { class: "right" }, page.amount(known.value, known.unit)),
        element("td", {}, inner ? inner.title : known.meaning),
        element("td", {}, element("span", { class: `kind ${kind.split(" ")[0]}` }, kind)),
        element("td", {}, source),
      );
    });
    const names = ["symbol", "value", "meaning", "how known", "source"];
    const head = element("tr", {}, ...names.map((text) => element("th", { scope: "col" }, text)));
    const table = element(
      "table", { class: "table" },
      element("caption", {}, "What it is made of"), element("thead", {}, head), element("tbody", {}, ...rows),
    );
    return element("div", { class: "scroll" }, table);
  }

  page.formula = formula;
  page.ingredients = ingredients;
})();
