"use strict";
const plots = [...document.querySelectorAll(".plot")];
const touch = matchMedia("(hover: none)").matches;
const options = {
  responsive: true,
  displaylogo: false,
  plotlyServerURL: "", // nothing is sent anywhere
  displayModeBar: touch ? false : "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

for (const plot of plots) {
  const { data, layout } = JSON.parse(plot.querySelector("script").textContent);
  plot.replaceChildren();
  layout.dragmode = touch ? false : "zoom"; // else a finger could not scroll past
  Plotly.newPlot(plot, data, layout, options);
}

// An arm is switched on and off in all plots at once.
const buttons = [...document.querySelectorAll(".legend button")];
for (const button of buttons) {
  button.addEventListener("click", () => {
    const arm = button.dataset.arm;
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const each of buttons) {
      if (each.dataset.arm === arm) each.setAttribute("aria-pressed", on);
    }
    for (const plot of plots) {
      const own = plot.data.flatMap((trace, index) => (trace.meta === arm ? [index] : []));
      if (own.length) Plotly.restyle(plot, { visible: on }, own);
    }
  });
}

// Plots are drawn for the width of the screen: paper needs them narrower.
const paper = { narrow: 338, wide: 692 };
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
  for (const plot of plots) {
    const width = plot.closest(".wide") ? paper.wide : paper.narrow;
    Plotly.relayout(plot, { width, height: plot.clientHeight });
  }
});
addEventListener("afterprint", () => {
  for (const plot of plots) Plotly.relayout(plot, { width: null, height: null, autosize: true });
});
