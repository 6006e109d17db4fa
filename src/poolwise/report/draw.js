// Draw each chart when it becomes visible: at once, or when its folded section is opened.
"use strict";
const draw = (element) => {
  if (element.dataset.drawn) return;
  element.dataset.drawn = "begun";
  const spec = JSON.parse(document.getElementById(element.dataset.spec).textContent);
  vegaEmbed(element, spec, { actions: false, renderer: "svg", ast: true })
    .then(() => { element.dataset.drawn = "done"; })
    .catch((error) => { element.dataset.drawn = "failed"; console.error(error); });
};
const drawVisible = () => {
  for (const element of document.querySelectorAll(".chart")) {
    if (!element.closest("details:not([open])")) draw(element);
  }
};
for (const section of document.querySelectorAll("details")) {
  section.addEventListener("toggle", () => {
    drawVisible();
    if (section.open) window.dispatchEvent(new Event("resize"));
  });
}
// Paper shows everything.
window.addEventListener("beforeprint", () => {
  for (const section of document.querySelectorAll("details.part")) section.open = true;
});
drawVisible();
