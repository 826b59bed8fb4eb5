// Numbers with units, in the words of the command line (advisor/render.py); and small helpers of the page.
"use strict";
window.advisorPage = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  function figures(value, digits = 4) {
    const whole = Math.trunc(Math.abs(value)).toString().length;
    const after = Math.max(0, digits - whole);
    return value.toLocaleString("en-US", { minimumFractionDigits: after, maximumFractionDigits: after });
  }
  function seconds(value) {
    const size = Math.abs(value);
    if (size >= 3600) {
      const minutes = Math.round(value / 60);
      return `${Math.floor(minutes / 60).toLocaleString("en-US")} h ${String(minutes % 60).padStart(2, "0")} min`;
    }
    for (const [unit, scale] of [["s", 1], ["ms", 1e-3]]) {
      if (size >= scale * 0.9995) return `${figures(value / scale)} ${unit}`;
    }
    return `${figures(value / 1e-6)} us`;
  }
  function gib(value) {
    const amount = value / 2 ** 30;
    return Math.abs(amount) >= 0.05 || !amount ? `${amount.toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(1)} MiB`;
  }
  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
  function number(value) {
    if (value === null || value === undefined) return "";
    if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US");
    if (Math.abs(value) >= 1e4 && Math.abs(value) < 1e15) return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
    return Number(value.toPrecision(6)).toString();
  }
  function amount(value, unit) {
    if (unit === "s" || unit === "seconds") return seconds(value);
    if ((unit === "byte" || unit === "bytes") && Math.abs(value) >= 2 ** 15) return gib(value);
    return `${number(value)} ${unit === "1" ? "" : unit}`.trim();
  }
  // A label of a time axis, whose first is 0.
  const tick = (value) => (value ? seconds(value) : "0");
  // An element; children that are text stay text.
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }
  // Text for a chart's tooltip, which is HTML.
  function escaped(text) {
    return String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
  }
  // Text that the page holds packed: zlib in base64.
  async function unpack(identity) {
    const packed = Uint8Array.from(atob(document.getElementById(identity).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return { data, seconds, gib, percent, number, amount, element, escaped, color, tick, unpack };
})();
