"use strict";
// What a figure says where somebody points: values by bin, as text, from the JSON beside it.
for (const figure of document.querySelectorAll("figure[data-hover]")) {
  const about = JSON.parse(document.getElementById(figure.dataset.hover).textContent);
  const svg = figure.querySelector("svg");
  const guide = svg.querySelector(".guide");
  const tip = figure.querySelector(".tip");
  const hide = () => { tip.style.visibility = guide.style.visibility = "hidden"; };
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale;
    if (x < about.edges[0] || x > about.edges[about.edges.length - 1]) { hide(); return; }
    let bin = about.edges.findIndex((edge) => edge > x) - 1;
    bin = Math.max(0, bin < 0 ? about.edges.length - 2 : bin);
    const middle = (about.edges[bin] + about.edges[bin + 1]) / 2;
    guide.setAttribute("x1", middle);
    guide.setAttribute("x2", middle);
    tip.replaceChildren();
    const title = document.createElement("b");
    title.textContent = about.titles[bin];
    tip.append(title);
    for (const series of about.series) {
      const line = document.createElement("div");
      if (series.colour) {
        const swatch = document.createElement("span");
        swatch.className = "swatch";
        swatch.style.background = `var(${series.colour})`;
        line.append(swatch);
      }
      line.append(`${series.name}: ${series.values[bin]}`);
      tip.append(line);
    }
    tip.style.visibility = guide.style.visibility = "visible";
    const left = event.clientX - box.left;
    tip.style.left = left > box.width / 2 ? `${left - tip.offsetWidth - 14}px` : `${left + 14}px`;
    tip.style.top = `${Math.max(0, event.clientY - box.top - tip.offsetHeight / 2) + svg.offsetTop}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerleave", hide);
}
document.documentElement.dataset.ready = "yes";
