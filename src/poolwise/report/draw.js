// Draws each chart when it is first seen: at once, or when its folder is opened.
"use strict";
const draw = (place) => {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "begun";
  const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
  vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: true })
    .then(() => { place.dataset.drawn = "done"; })
    .catch((error) => { place.dataset.drawn = "failed"; console.error(error); });
};
const drawVisible = () => {
  for (const place of document.querySelectorAll(".chart")) {
    if (!place.closest("details:not([open])")) draw(place);
  }
};
for (const folder of document.querySelectorAll("details")) {
  folder.addEventListener("toggle", () => {
    drawVisible();
    if (folder.open) window.dispatchEvent(new Event("resize"));
  });
}
drawVisible();
