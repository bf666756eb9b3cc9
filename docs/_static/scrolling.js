// Marks what is wider than its place, so that the style sheet fades out its right edge, and says below it that it scrolls.
"use strict";

function watchWidth(box) {
  const hint = document.createElement("p");
  hint.className = "scroll-hint";
  hint.textContent = "scroll for the rest →";
  box.after(hint);
  const update = () => {
    const more = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
    box.classList.toggle("more-right", more);
    hint.hidden = box.scrollWidth <= box.clientWidth + 1;
  };
  box.addEventListener("scroll", update, { passive: true });
  addEventListener("resize", update);
  update();
}

addEventListener("load", () => document.querySelectorAll("article :is(.lanes, .table-wrapper, .highlight pre)").forEach(watchWidth));
