"use strict";
{
  const element = (id) => document.getElementById(id);
  const names = JSON.parse(element("names").textContent);
  const lower = names.map((name) => name.toLowerCase());
  const marked = Array.from(document.querySelectorAll("[data-n]"), (drawn) => (
    { drawn, numbers: drawn.getAttribute("data-n").split(" ").map(Number) }
  ));
  const find = () => {
    const text = element("find").value.trim().toLowerCase();
    const found = new Set();
    if (text) lower.forEach((name, number) => { if (name.includes(text)) found.add(number); });
    let bars = 0;
    for (const { drawn, numbers } of marked) {
      const isHit = numbers.some((number) => found.has(number));
      drawn.classList.toggle("hit", isHit);
      if (isHit) bars += drawn.tagName === "rect" ? 1 : 0;
    }
    document.body.classList.toggle("finding", text !== "");
    element("found").textContent = text ? summary(Array.from(found, (number) => names[number]), bars) : "";
  };
  const summary = (found, bars) => {
    if (found.length === 0) return "no such name";
    const first = found.slice(0, 5).join(", ") + (found.length > 5 ? ", …" : "");
    return `${found.length} of ${names.length} names, in ${bars} bars: ${first}`;
  };
  element("find").addEventListener("input", find);
  element("search").hidden = false;
  find();
}
